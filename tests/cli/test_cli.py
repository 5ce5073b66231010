"""The command ``oneflow``."""

from __future__ import annotations

import errno
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.cli import main
from oneflow.cli.main import COMMANDS
from oneflow.cli.scripts import load_first_call, load_job
from oneflow.cli.train import examples

SCRIPT = """
import argparse
import numpy as np
import oneflow as flow
import oneflow.typing as tp

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=3)
    width = parser.parse_args().width

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        loss = flow.layers.dense(x, width, name="only")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        return flow.layers.dense(x, width, name="only")

    train(np.ones((4, 2), np.float32))
    raise RuntimeError("it was trained")

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


def test_help_version_and_words_that_are_none(capsys):
    for word, told in (("--help", "exit statuses"), ("--version", flow.__version__)):
        with pytest.raises(SystemExit) as left:
            main([word])
        assert left.value.code == 0 and told in capsys.readouterr().out
    assert main([]) == 2
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert main(["docter"]) == 2
    assert "did you mean `oneflow doctor`?" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(name, capsys):
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert left.value.code == 0 and text.startswith(f"usage: oneflow {name}") and f"oneflow {name}" in text.split("example", 1)[1]


def test_a_script_is_read_as_far_as_its_jobs(script, capsys):
    assert main(["summary", f"{script}:predict"]) == 0
    assert "only-matmul" in capsys.readouterr().out
    flow.clear_default_session()
    job = load_job(f"{script}:train", ["--width", "7"])
    assert job.train and job.graph.variables["only-weight"].shape == (7, 2)
    assert repr(sys.argv[0]) != repr(script)


@pytest.mark.parametrize("logger", ["CSVLogger", "TensorBoardLogger"])
def test_reading_a_script_with_a_trainer_leaves_no_files(logger, tmp_path, monkeypatch):
    script = SCRIPT.replace(
        "    train(np.ones((4, 2), np.float32))",
        f"""
    class Notes(flow.callbacks.Callback):
        def on_train_begin(self, logs):
            assert self.trainer.logger.log_dir.endswith("version_0")

    logger = flow.loggers.{logger}("runs", "name")
    trainer = flow.Trainer(max_epochs=1, enable_progress_bar=False, logger=logger, callbacks=[Notes()])
    trainer.fit(train, [np.ones((4, 2), np.float32)])""",
    )
    (tmp_path / "trained.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trained.py"])
    for load in (load_job, load_first_call):
        load("trained.py:train")
        flow.clear_default_session()
        assert not Path("runs").exists()
    with pytest.raises(RuntimeError, match="it was trained"):
        runpy.run_path("trained.py", run_name="__main__")
    assert list(Path("runs/name/version_0").iterdir())


def test_what_cannot_be_loaded_is_one_line_with_a_way_out(script, tmp_path, capsys):
    (tmp_path / "empty.py").write_text("x = 1\n")
    for target, words in (
        ("nothing.py:job", "there is no script 'nothing.py'"),
        (f"{script}:trian", "train.py:train"),
        (script, "declares several jobs"),
        (str(tmp_path / "empty.py"), "declares no job"),
    ):
        flow.clear_default_session()
        assert main(["summary", target]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["summary"])
    assert left.value.code == 2 and "--help` says more" in capsys.readouterr().err


def test_jobs_are_called_as_ever_afterwards(script):
    load_job(f"{script}:train")

    @flow.global_function()
    def job(x: flow.typing.Numpy.Placeholder((1,))) -> flow.typing.Numpy:
        return x + 1

    assert job(np.ones(1, np.float32))[0] == 2


def run(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=500, cwd=cwd, env=os.environ | environment
    )


def test_help_imports_neither_jax_nor_the_subcommands():
    heavy = ("jax", "uvicorn", "onnx", "oneflow.doctor", "oneflow.serving", "oneflow.launch", "oneflow.cli.scripts")
    program = (
        "import contextlib, sys\nfrom oneflow.cli import main\nwith contextlib.suppress(SystemExit):\n    main(['--help'])\n"
        f"assert not [m for m in {heavy} if m in sys.modules]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["launch", "data", "checkpoint", "doctor", "serving"])
def test_the_older_spellings(module):
    done = run(f"oneflow.{module}", "--help")
    name = {"serving": "serve"}.get(module, module)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: oneflow {name}"), done.stderr


def test_a_plan_and_a_profile(script, capsys, tmp_path):
    assert main(["plan", f"{script}:predict"]) == 0
    assert "only-weight" in capsys.readouterr().out
    flow.clear_default_session()
    assert (
        main(["profile", f"{script}:train", "--steps", "2", "--save", str(tmp_path / "trace.json.gz"), "--", "--width", "5"]) == 0
    )
    assert "over 2 steps" in capsys.readouterr().out and (tmp_path / "trace.json.gz").stat().st_size > 0
    flow.clear_default_session()
    job, args, kwargs = load_first_call(f"{script}:train", ["--width", "5"])
    assert job.name == "train" and not kwargs
    np.testing.assert_array_equal(args[0], np.ones((4, 2), np.float32))


def test_the_calls_of_other_jobs_before_the_profiled_one_are_made(tmp_path, capsys):
    (tmp_path / "two.py").write_text(
        SCRIPT.replace("    train(np.ones((4, 2), np.float32))\n    raise RuntimeError(\"it was trained\")\n",
                       "    loss = train(np.ones((4, 2), np.float32))\n    predict(np.full((4, 2), 7, np.float32))\n")
    )  # fmt: skip
    job, args, _ = load_first_call(f"{tmp_path}/two.py:predict")
    assert job.name == "predict" and args[0][0, 0] == 7
    assert flow.get_all_variables()["System-Train-TrainStep-train"].numpy() == 1
    (tmp_path / "none.py").write_text(SCRIPT.replace("    train(np.ones((4, 2), np.float32))\n", "    return\n"))
    flow.clear_default_session()
    assert main(["profile", f"{tmp_path}/none.py:predict"]) == 2
    assert "ended without calling job 'predict'" in capsys.readouterr().err


def test_a_job_is_exported_with_the_weights_of_a_checkpoint(script, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    job = load_job(f"{script}:predict")
    x = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    expected = job(x)
    flow.checkpoint.save(str(tmp_path / "saved"))
    flow.clear_default_session()
    path = str(tmp_path / "model.onnx")
    assert main(["export", f"{script}:predict", "--weights", str(tmp_path / "saved"), "--out", path]) == 0
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
    flow.clear_default_session()
    assert main(["export", f"{script}:predict", "--untrained", "--out", str(tmp_path / "model.stablehlo")]) == 0
    assert flow.export.load(str(tmp_path / "model.stablehlo"))(x).shape == (4, 3)
    capsys.readouterr()


def test_paths_are_those_of_the_shell(script, tmp_path, monkeypatch, capsys):
    job = load_job(f"{script}:predict")
    flow.checkpoint.save(str(tmp_path / "saved"))
    expected = job(np.ones((4, 2), np.float32))
    flow.clear_default_session()
    (tmp_path / "elsewhere").mkdir()
    elsewhere = SCRIPT.replace("def main", f"import os\nos.chdir({str(tmp_path / 'elsewhere')!r})\n\ndef main", 1)
    Path(script).write_text(elsewhere)
    monkeypatch.chdir(tmp_path)
    assert main(["export", "train.py:predict", "--weights", "saved", "--out", "model.stablehlo"]) == 0
    np.testing.assert_allclose(flow.export.load(tmp_path / "model.stablehlo")(np.ones((4, 2), np.float32)), expected, rtol=1e-6)
    flow.clear_default_session()
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "train.py:train", "--steps", "1", "--save", "trace.json"]) == 0
    assert (tmp_path / "trace.json").exists() and not list((tmp_path / "elsewhere").iterdir())
    capsys.readouterr()


def test_an_empty_path_is_none(script, tmp_path, monkeypatch, capsys):
    load_job(f"{script}:predict")(np.ones((4, 2), np.float32))
    flow.checkpoint.save(str(tmp_path / "saved"))
    flow.clear_default_session()
    monkeypatch.chdir(tmp_path / "saved")
    assert main(["export", f"{script}:predict", "--weights", "", "--out", str(tmp_path / "m.stablehlo")]) == 2
    assert "a checkpoint's path must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "status", "told"), [("True", 1, ""), ("2", 2, ""), ("'give me --data DIR'", 1, "give me --data DIR\n")]
)
def test_a_script_that_exits_says_so(code, status, told, tmp_path, capsys):
    (tmp_path / "early.py").write_text(f"import sys\nsys.exit({code})\n")
    assert main(["summary", str(tmp_path / "early.py")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(told) and f"early.py exited with status {status} before it declared a job" in error


def test_wrong_exports_are_refused(script, tmp_path, capsys):
    assert main(["export", f"{script}:train", "--untrained", "--out", str(tmp_path / "a.onnx")]) == 2
    assert "try a predict job of the same layers" in capsys.readouterr().err
    for words, told in (
        (["--untrained", "--out", "a.pt"], "--out must end in .onnx or .stablehlo"),
        (["--untrained", "--out", "a.stablehlo", "--opset", "17"], "--opset is for ONNX"),
        (["--out", "a.onnx"], "one of the arguments --weights --untrained is required"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["export", f"{script}:predict", *words])
        error = capsys.readouterr().err
        assert left.value.code == 2 and told in error and error.count("\n") == 1


def test_errors_of_the_command_line_are_one_line(script, capsys):
    for words in (["summary", "nothing.py:job"], ["plan", f"{script}:trian"], ["new", str(Path(script).parent)], ["nonsense"]):
        flow.clear_default_session()
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("command", "needed"), [("train", "EXAMPLE"), ("launch", "script")])
def test_only_what_is_required_is_asked_for(command, needed, capsys):
    with pytest.raises(SystemExit):
        main([command])
    assert f"the following arguments are required: {needed};" in capsys.readouterr().err


def test_the_help_of_data_names_its_commands(capsys):
    about = COMMANDS["data"].load().parser().description
    for verb in ("pack", "show", "verify", "sample"):
        assert verb in about and verb in COMMANDS["data"].help
        with pytest.raises(SystemExit) as left:
            main(["data", verb, "--help"])
        assert left.value.code == 0
    capsys.readouterr()


@pytest.mark.parametrize("command", [["summary"], ["plan"], ["export", "--untrained", "--out", "job.onnx"]])
def test_errors_of_a_job_are_those_of_a_program(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT.replace("x, width, name", "x, -width, name"))
    assert main([command[0], "train.py:predict", *command[1:]]) == 2
    error = capsys.readouterr().err.splitlines()
    row = '  your line  train.py:20   return flow.layers.dense(x, -width, name="only")'
    assert error[0].startswith("error: ") and row in error


@pytest.mark.parametrize(
    "text, status, shown",
    [
        ("def f():\n    raise ValueError('mine')\nf()\n", 1, ["in <module>", "in f", "ValueError: mine"]),
        ("x = (\n", 1, ['script.py", line 1', "SyntaxError: '(' was never closed"]),
        ("import oneflow as flow\nflow.nosuch\n", 1, ["in <module>", "AttributeError: module 'oneflow'"]),
    ],
)
def test_a_script_that_raises_is_shown_without_the_frames_of_the_command(text, status, shown, tmp_path, capsys):
    (tmp_path / "script.py").write_text(text)
    assert main(["summary", str(tmp_path / "script.py")]) == status
    error = capsys.readouterr().err
    assert all(part in error for part in shown)
    assert error.count("  File ") == error.count("script.py") == len(shown) - 1


@pytest.mark.timeout(600)
def test_a_new_project_passes_its_tests_and_is_a_script_for_the_other_commands(tmp_path, capsys):
    project = tmp_path / "digits"
    assert main(["new", str(project)]) == 0
    assert main(["new", str(project)]) == 2 and "not an empty directory" in capsys.readouterr().err
    for wrong, text in (("", "DIRECTORY must be a path"), ("n" * 300, "File name too long")):
        assert main(["new", wrong]) == 2 and text in capsys.readouterr().err
    assert {p.name for p in project.iterdir()} == {"train.py", "config.toml", "tests", "README.md", ".gitignore"}
    done = run("pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=project, PYTEST_ADDOPTS="")
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
    done = run("oneflow", "summary", "train.py:evaluate", cwd=project)
    assert done.returncode == 0 and "hidden-matmul" in done.stdout, done.stderr
    assert "# digits" in (project / "README.md").read_text()


def test_the_next_step_is_a_command_for_a_shell(tmp_path, capsys):
    assert main(["new", str(tmp_path / "my digits")]) == 0
    assert f"next: cd '{tmp_path}/my digits' && python train.py" in capsys.readouterr().out


def test_examples_by_their_names(capsys):
    assert {"lenet", "gpt", "images"} <= examples().keys()
    assert main(["train", "--path", "lenet"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "train_lenet.py"
    done = run("oneflow", "train", "lenet", "--help")  # the example's own
    assert done.returncode == 0 and "--batches" in done.stdout
    with pytest.raises(SystemExit) as left:
        main(["train", "lenett"])
    assert left.value.code == 2 and "'lenet'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line, expected", [("oneflow do", "doctor"), ("oneflow data pack im", "images"), ("oneflow train le", "lenet")]
)
def test_the_shell_completes(line, expected, tmp_path):
    pytest.importorskip("argcomplete", reason="the extra [completion] is not installed")
    answer = tmp_path / "answer"
    run("oneflow", _ARGCOMPLETE="1", _ARGCOMPLETE_STDOUT_FILENAME=str(answer), COMP_LINE=line, COMP_POINT=str(len(line)))
    assert answer.read_text().strip() == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, capsys):
    pytest.importorskip("argcomplete", reason="the extra [completion] is not installed")
    assert main(["completion", shell]) == 0
    assert ("complete" in (text := capsys.readouterr().out)) and "oneflow" in text


def test_options_of_the_planner_need_a_target(script, capsys):
    with pytest.raises(SystemExit) as left:
        main(["plan", f"{script}:train", "--html", "plan.html"])
    assert left.value.code == 2 and "--html and --all are for plans with --target" in capsys.readouterr().err


def test_a_plan_for_other_hardware_is_the_planners(script, monkeypatch, capsys):
    given = []
    monkeypatch.setattr("oneflow.plan.main", lambda arguments: given.append(arguments) or 1)
    assert main(["plan", "a.py:job", "--target", "h100:8", "--", "-x"]) == 1
    assert given == [["a.py:job", "--target", "h100:8", "--", "-x"]]
    assert main(["plan", f"{script}:predict"]) == 0 and len(given) == 1  # of this machine
    assert "only-weight" in capsys.readouterr().out


def test_a_command_whose_output_is_closed_succeeds(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["new", str(tmp_path / "project")]) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["--version"], [], ["completion", "bash"], ["checkpoint", "list", "."], ["new", "--help"]])
def test_output_to_a_full_disk_is_one_line(words, monkeypatch, tmp_path, capsys):
    flow.checkpoint.save(str(tmp_path / "saved"))
    monkeypatch.chdir(tmp_path)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 2
    assert capsys.readouterr().err == "oneflow: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("encoding, name", [("latin-1", "\u03b1"), ("ascii", "\xe9")])
def test_an_output_that_lacks_characters(script, encoding, name, tmp_path):
    Path(script).write_text(SCRIPT.replace('"only"', f'"{name}"'))
    escaped = name.encode("ascii", "backslashreplace").decode()
    for command in ("summary", "plan"):
        done = run("oneflow", command, f"{script}:train", PYTHONIOENCODING=encoding)
        assert done.returncode == 0 and f"{escaped}-" in done.stdout and "-----" in done.stdout, done.stderr
    flow.checkpoint.save(tmp_path / "saved", {name: np.zeros(2, np.float32)})
    done = run("oneflow", "checkpoint", "show", str(tmp_path / "saved"), PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and f"{escaped}  float32[2]" in done.stdout, done.stderr


def test_tables_are_printed_in_ascii_where_the_output_has_nothing_else(monkeypatch):
    def job(x):
        return flow.layers.dense(x, 2, name="only")

    job.__annotations__ = {"x": tp.Numpy.Placeholder((4, 2)), "return": tp.Numpy}
    job = flow.global_function()(job)
    summary = flow.job_summary(job)
    with_lines = str(summary)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert str(summary).isascii() and "-----" in str(summary) and not with_lines.isascii()
    plan = job.plan()
    assert str(plan).isascii() and plan.draw().isascii()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_new_project_is_whole_where_its_output_cannot_be_written(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["new", "full"]) == 2
    assert capsys.readouterr().err == "oneflow: cannot write the output: No space left on device\n"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["new", "closed"]) == 0
    assert not capsys.readouterr().err
    for name in ("full", "closed"):
        assert {p.name for p in Path(name).iterdir()} == {"train.py", "config.toml", "tests", "README.md", ".gitignore"}


def test_a_full_disk_of_another_file_is_not_that_of_the_output(monkeypatch, capsys):
    def fails(arguments):
        print("x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("oneflow.cli.new.main", fails)
    assert main(["new", "x"]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("x\n") and "No space left" in shown.err and "Traceback" in shown.err
