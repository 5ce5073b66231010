"""``job.plan(target=...)``: the report, errors, the cache and the command, without the compilers (their answers are stored)."""

from __future__ import annotations

import contextlib
import html
import re
import subprocess
import sys
from pathlib import Path

import jax.export
import numpy as np
import pytest
from jobs import small, small_body

import oneflow as flow
import oneflow.typing as tp
from oneflow._targets import cache, process
from oneflow.plan import main

SCRIPT = """
import numpy as np
import sys
sys.path.insert(0, {here!r})
from jobs import small
assert sys.argv[1:] == ["--batch", "16"], sys.argv
job = small()
job(np.zeros((16, 64), np.float32))
raise RuntimeError("it was trained")
"""


def test_a_plan_says_what_is_where_and_what_bounds_it(stored):
    job = small()
    plan = job.plan(target="h100:2")
    row = plan.fullest
    weights = (128 * 64 + 128 + 32 * 128 + 32) * 4
    assert [d.device for d in plan.devices] == ["0:0", "0:1"] and plan.fits and plan.samples == 16
    assert row.optimizer_state == 2 * row.parameters and weights / 2 <= row.parameters <= weights
    assert row.inputs == 16 * 64 * 4 // 2 and row.memory == 84942979072
    assert row.total == sum((row.parameters, row.optimizer_state, row.other_state, row.inputs, row.activations, row.temporary))
    assert {"first-matmul", "second-matmul"} <= {r.name for r in plan.parts} and plan.host_bytes == (16 * 64 * 4, 16 * 4)
    line = next(r.source for r in plan.parts if r.name == "second-matmul")
    number = int(line.rpartition(":")[2])
    assert 'name="second"' in (Path(__file__).parent / "jobs.py").read_text().splitlines()[number - 1]
    assert {r.phase for r in plan.parts} >= {"forward", "backward", "update"}
    assert sum(r.share for r in plan.parts) == pytest.approx(1) and sum(plan.bounds.values()) == pytest.approx(1)
    both_passes = 3 * 2 * 16 * (64 * 128 + 128 * 32) - 2 * 16 * 64 * 128  # the gradient of the input is not needed
    assert both_passes <= plan.flops <= 1.6 * both_passes
    sent = {(r.kind, r.devices, r.axis) for r in plan.collectives}
    assert ("all-reduce", 2, "0") in sent and all(r.source for r in plan.collectives if r.name)
    assert 0 < plan.seconds < 1e-3 and plan.seconds >= max(plan.compute_seconds, 0) and 0 < plan.utilisation < 1
    text = str(plan)
    for words in ("fits: ", "bound by", "memory per device", "largest values at the peak", "collectives per call", "ops by time"):
        assert words in text
    assert str(plan) in repr(plan) and len(plan.table()) >= len(text)


def test_a_tpus_plan_has_its_compilers_estimate_beside_it(stored):
    plan = small().plan(target="tpu-v5e:1x2")
    assert plan.compiler_seconds > 0 and "the compiler's own estimate" in str(plan)
    assert small().plan(target="h100:2").compiler_seconds is None


def test_what_does_not_fit_says_by_how_much(stored):
    plan = small().plan(target=flow.Target("h100:2", memory=100_000))
    assert not plan.fits and plan.verdict.startswith("does not fit by ") and "97.66 KiB" in plan.verdict


def test_slower_figures_make_a_slower_plan(stored):
    fast, slow = small().plan("h100:2"), small().plan(flow.Target("h100:2", bandwidth=3352320000000 / 10))
    assert slow.memory_seconds == pytest.approx(10 * fast.memory_seconds) and slow.seconds > fast.seconds
    assert slow.flops == fast.flops and slow.bytes == fast.bytes


def test_the_session_has_no_part_in_it(stored):
    job = small()
    job.plan(target="h100:2")
    assert not job.is_built
    x = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    first = job(x)
    job.plan(target="tpu-v5e:1x2")
    again = job(x)
    assert (again != first).any() and flow.get_all_variables()["first-weight"].devices == ["0:0"]


def test_programs_come_from_the_disk_the_second_time(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("ONEFLOW_CACHE_DIR", str(tmp_path))
    job = small()
    first = job.plan(target="h100:2")
    second = job.plan(target="h100:2")
    assert (first.from_cache, second.from_cache, len(stored)) == (0, 1, 1) and str(first) == str(second)
    entry = next((tmp_path / "plans").glob("*.json.gz"))
    entry.write_bytes(entry.read_bytes()[:100])
    assert job.plan(target="h100:2").from_cache == 0 and len(stored) == 2, "a damaged entry is none"
    job.plan(target=flow.Target("h100:2", memory=2**30))
    assert len(stored) == 2, "figures change what is made of a program, not the program"
    assert cache.key_of("gpu", {"a": 1}, b"x") != cache.key_of("gpu", {"a": 2}, b"x") != cache.key_of("tpu", {"a": 2}, b"x")


def test_the_cache_holds_no_more_than_it_may(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEFLOW_CACHE_DIR", str(tmp_path))
    cache.save("k", {"text": "k"})
    size = next((tmp_path / "plans").glob("*")).stat().st_size
    monkeypatch.setattr(cache, "MAX_BYTES", int(2.5 * size))
    for number in range(100):
        cache.save(f"k{number}", {"text": str(number)})
    assert len(list((tmp_path / "plans").glob("*"))) <= 2 + 16 and cache.load("k0") is None, "it looks after every 16 entries"
    monkeypatch.setenv("ONEFLOW_CACHE_DIR", "")
    cache.save("off", {})
    assert cache.directory() is None and cache.load("off") is None


def test_plans_side_by_side(stored):
    one, other = small().plan("h100:2"), small().plan("tpu-v5e:1x2")
    text = one.compare(other)
    assert "h100:2" in text and "tpu-v5e:1x2" in text and f"{other.seconds / one.seconds:.2f}" in text
    with pytest.raises(flow.errors.ArgumentError, match="another plan"):
        one.compare(small())


def test_a_sweep_sorts_by_time_per_sample_and_keeps_what_fails(stored):
    def make(name):
        if name == "wrong":
            raise flow.errors.ShapeError("no such split")
        return small(name=name)

    table = flow.plan_sweep(make, ["tpu-v5e:1x2", flow.Target("h100:2", memory=1000), "h100:2"], name=["right", "wrong"])
    plans = [r.plan for r in table.rows if r.plan is not None]
    assert [str(p.target) for p in plans] == ["h100:2", "tpu-v5e:1x2", "h100:2"] and [p.fits for p in plans] == [
        True,
        True,
        False,
    ]
    assert table.best is table.rows[0] and sum(r.error == "no such split" for r in table.rows) == 3
    assert "no such split" in str(table) and "time per sample" in str(table)
    for bad in (
        {"make_job": small(), "targets": "h100"},
        {"make_job": make, "targets": []},
        {"make_job": make, "targets": "h100", "name": "ab"},
        {"make_job": make, "targets": "h100", "name": []},
        {"make_job": lambda: 3, "targets": "h100"},
    ):
        with pytest.raises(flow.errors.ArgumentError):
            flow.plan_sweep(**bad)


def test_the_picture_has_every_device_and_is_escaped(stored, tmp_path):
    plan = small().plan("h100:2")
    plan.save_html(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    assert text.startswith("<!DOCTYPE html>") and text.count("<svg") == 2 and ">0:1</text>" in text and "second-matmul" in text
    summary = str(plan).partition("memory per device")[0].splitlines()
    assert len(summary) > 6 and all(html.escape(line) in text for line in summary) and "backward pass" in text
    with pytest.raises(flow.errors.ArgumentError, match="takes a path"):
        plan.save_html(3)


def test_the_command(stored, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(here=str(Path(__file__).parent)))
    page = tmp_path / "p.html"
    assert (
        main([f"{script}:small", "--target", "h100:2", "--target", "tpu-v5e:1x2", "--html", str(page), "--", "--batch", "16"])
        == 0
    )
    text = capsys.readouterr().out
    assert "planned for h100:2" in text and "ratio" in text and page.exists()
    flow.clear_default_session()
    help_text = subprocess.run([sys.executable, "-m", "oneflow.plan", "--help"], capture_output=True, text=True, timeout=120)
    assert help_text.returncode == 0 and "--target" in help_text.stdout


def test_without_the_compiler_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: None)
    for target, extra in (("h100:8", "plan-gpu"), ("tpu-v5e:4x4", "plan-tpu")):
        with pytest.raises(flow.errors.MissingExtraError, match=rf"(?s)is not installed.*oneflow-jax\[{extra}\]"):
            small().plan(target=target)


def placed_job(*places):
    """A predict job with one op on each place, (tag, devices) or None for the default."""

    @flow.global_function()
    def placed(x: tp.Numpy.Placeholder((4, 4))) -> tp.Numpy:
        for number, place in enumerate(places):
            with contextlib.nullcontext() if place is None else flow.scope.placement(*place):
                x = flow.nn.relu(x, name=f"here{number}")
        return x

    return placed


@pytest.mark.parametrize("tag", ["gpu", "cpu"])
def test_placements_beyond_the_target_are_refused(stored, tag):
    rule = rf"(?s)'here0' on {tag} 0:0-7, and h100:2 has one machine with 2 devices.*your line"
    with pytest.raises(flow.errors.DeviceError, match=rule):
        placed_job((tag, "0:0-7")).plan(target="h100:2")


def test_a_job_of_both_cpu_and_gpu_ops_is_refused_with_the_line_of_a_cpu_op(stored):
    rule = r"(?s)'here1' on cpu 0:0-0, and other ops on \"gpu\".*your line.*place all of it on \"gpu\""
    with pytest.raises(flow.errors.DeviceError, match=rule):
        placed_job(("gpu", "0:0-1"), ("cpu", "0:0")).plan(target="h100:2")
    assert not stored


@pytest.mark.parametrize("places", [[("cpu", "0:0")], [("cpu", "0:0"), None]])
def test_the_placements_of_a_job_for_cpus_mean_the_targets_devices(monkeypatch, places):
    asked = []
    monkeypatch.setattr("oneflow.job.planning.check_installed", lambda platform: None)

    def answer(self, request, program, job):
        asked.append(request)
        raise flow.errors.CompileError("enough")

    monkeypatch.setattr(process.WorkerProcess, "ask", answer)
    with pytest.raises(flow.errors.CompileError, match="enough"):
        placed_job(*places).plan(target="h100:2")
    assert [request["sizes"] for request in asked] == [[1]], "one stage, of the one device that the job names"


def test_a_plan_says_that_cpu_placements_were_taken_for_the_target(stored):
    @flow.global_function(type="train")
    def body(x: tp.Numpy.Placeholder((16, 64))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            return small_body(x)

    assert small().plan(target="h100:2").notes == ()
    plan = body.plan(target="h100:2")
    assert 'placements on "cpu" are planned as devices of the target' in str(plan) and plan.fits


def test_python_code_during_a_step_is_refused_with_its_line(stored):
    @flow.global_function()
    def calling(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        return flow.nn.relu(flow.sleep_identity(x, 1, name="nap"))

    with pytest.raises(
        flow.errors.CompileError, match=r"(?s)sleep_identity 'nap' calls Python code during a step.*your line.*nap"
    ):
        calling.plan(target="h100:2")
    assert not stored


@pytest.mark.parametrize("narrow", [True, False])
def test_pieces_of_parameters_are_gathered_in_the_dtype_of_mixed_precision(narrow, stored, monkeypatch):
    programs = []

    def keep(self, request, program, job):
        programs.append(program)
        raise flow.errors.CompileError("seen")

    monkeypatch.setattr(process.WorkerProcess, "ask", keep)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(narrow)
    config.optimizer_placement_optimization_mode("distributed_split")

    @flow.global_function(type="train", function_config=config)
    def sharded(x: tp.Numpy.Placeholder((16, 256))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.layers.dense(x, 128, name="d", use_bias=False))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    with pytest.raises(flow.errors.CompileError, match="seen"):
        sharded.plan("h100:4")
    text = jax.export.deserialize(bytearray(programs[0])).mlir_module()
    laid_out = re.findall(r"(?:sharding_constraint|@Sharding).*tensor<128x256x(\w+)>", text)
    assert laid_out == (["bf16", "bf16"] if narrow else ["f32"]), "the pieces are cast before they are gathered"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "import sys, os\nsys.stdin.buffer.read(4)\nsys.stderr.write('Check failed: cats')\nsys.stderr.flush()\nos._exit(6)\n",
            "(?s)ended while it compiled job 'small'.*Check failed: cats",
        ),
        (
            "import sys\nfrom oneflow._targets.worker import read, write\nread(sys.stdin.buffer)\n"
            "write(sys.stdout.buffer, {'error': 'INTERNAL: libdevice not found at ./libdevice.10.bc'}, b'')\n",
            r"libdevice not found.*\n  try .*nvidia-cuda-nvcc-cu12",
        ),
    ],
    ids=["dies", "has no libdevice"],
)
def test_a_compiler_that_fails_is_an_error_with_its_last_words(program, told, tmp_path, monkeypatch):
    monkeypatch.setattr("oneflow.job.planning.check_installed", lambda platform: None)
    monkeypatch.setattr(process, "check_installed", lambda platform: None)
    monkeypatch.setenv("ONEFLOW_CACHE_DIR", "")
    worker = tmp_path / "worker.py"
    worker.write_text(program)
    monkeypatch.setattr(process, "WORKER", worker)
    with pytest.raises(flow.errors.CompileError, match=told):
        small().plan(target="h100:2")


def test_inside_of_a_job_nothing_is_planned(stored):
    other = small()

    @flow.global_function()
    def outer(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        other.plan(target="h100:2")
        return x

    with pytest.raises(flow.errors.ModeError, match="planned while the body"):
        outer.build()
