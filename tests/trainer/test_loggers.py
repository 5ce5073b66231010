"""Loggers: what lands in their files, and what the clients of services are told."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import trainer_jobs as jobs
from trainer_jobs import quiet

import oneflow as flow
from oneflow.errors import ArgumentError, CallbackError, DataError, MissingExtraError, ModeError


def fit(logger, epochs=2, **options):
    trainer = quiet(max_epochs=epochs, logger=logger, log_every_n_steps=4, seed=1, **options)
    trainer.fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(20, 1))
    return trainer


def table(path):
    with open(path, newline="") as file:
        return [{k: v for k, v in row.items() if v != ""} for row in csv.DictReader(file)]


# --- CSV


def test_two_csv_loggers_with_one_file_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"(?s)two CSVLoggers .*metrics\.csv.*try .*CSVLogger\(name="):
        fit([flow.loggers.CSVLogger(tmp_path), flow.loggers.CSVLogger(tmp_path)])
    assert not list(tmp_path.iterdir())
    fit([flow.loggers.CSVLogger(tmp_path), flow.loggers.CSVLogger(tmp_path, "other")])


@pytest.mark.parametrize("save_dir", ["runs", None])
def test_a_program_that_changes_its_directory_keeps_one_csv_file(tmp_path, monkeypatch, save_dir):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    class Moves(flow.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            os.chdir(tmp_path / "elsewhere")

    logger = flow.loggers.CSVLogger(save_dir, flush_seconds=0.0)
    trainer = fit(logger, callbacks=Moves())
    assert logger.path == str(tmp_path / (save_dir or "") / "logs" / "version_0" / "metrics.csv")
    assert len([row for row in table(logger.path) if "loss" in row]) == len(trainer.history.steps)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert repr(logger) == f"CSVLogger({'save_dir=' + repr(save_dir) + ', ' if save_dir else ''}flush_seconds=0.0)"


@pytest.mark.parametrize("flush_seconds", [0.0, 60.0])
def test_a_csv_file_has_a_row_for_each_thing_logged(tmp_path, flush_seconds):
    logger = flow.loggers.CSVLogger(tmp_path, flush_seconds=flush_seconds)
    trainer = fit(logger)
    rows = table(logger.path)
    assert logger.log_dir == str(tmp_path / "logs" / "version_0")
    steps = [row for row in rows if "loss" in row]
    assert [(int(r["step"]), float(r["loss"])) for r in steps] == [(r["step"], r["loss"]) for r in trainer.history.steps]
    assert [float(r["val_loss"]) for r in rows if "val_loss" in r] == trainer.history["val_loss"]
    assert [float(r["loss_epoch"]) for r in rows if "loss_epoch" in r] == trainer.history["loss"]
    assert [int(r["epoch"]) for r in rows] == sorted(int(r["epoch"]) for r in rows)


def test_each_run_has_a_directory_and_loggers_of_one_run_share_it(tmp_path):
    first = fit([flow.loggers.CSVLogger(tmp_path), flow.loggers.TensorBoardLogger(tmp_path)])
    assert {logger.log_dir for logger in first.loggers} == {str(tmp_path / "logs" / "version_0")}
    assert fit(flow.loggers.CSVLogger(tmp_path)).logger.log_dir.endswith("version_1")
    assert fit(flow.loggers.CSVLogger(tmp_path, "other", "best")).logger.log_dir == str(tmp_path / "other" / "best")
    trainer = fit(True, default_root_dir=tmp_path / "root")
    assert trainer.logger.path == str(tmp_path / "root" / "logs" / "version_0" / "metrics.csv")
    assert flow.Trainer().loggers == flow.Trainer(logger=False).loggers == [] and flow.Trainer().logger is None


def test_values_that_are_no_numbers_are_left_out(tmp_path):
    logger = flow.loggers.CSVLogger(tmp_path)
    trainer = fit(logger, epochs=1, metrics=flow.metrics.ConfusionMatrix(3))
    assert trainer.history["val_confusion_matrix"][0].sum() == 20
    assert "confusion" not in Path(logger.path).read_text()


def test_a_half_written_row_does_not_survive(tmp_path):
    logger = flow.loggers.CSVLogger(tmp_path)
    logger.prepare(str(tmp_path), None)
    logger.begin(None, 0)
    for step in range(4):
        logger.log_metrics({"loss": step / 2}, step)
    logger.save()
    state = dict(logger.state_dict())
    with open(logger.path, "a") as file:
        file.write("4,2.0\r\n5,2")  # of a run that was killed
    again = flow.loggers.CSVLogger(tmp_path)
    again.prepare(str(tmp_path), state)
    again.begin(state, 4)
    again.log_metrics({"loss": 9.0, "accuracy": 1.0}, 4)
    again.finalize("success")
    assert [row["loss"] for row in table(again.path)] == ["0.0", "0.5", "1.0", "1.5", "9.0"]
    assert table(again.path)[-1] == {"step": "4", "loss": "9.0", "accuracy": "1.0"}


# --- TensorBoard


def events(directory):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    found = []
    for path in sorted(directory.rglob("events*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            body = data[at + 12 : at + 12 + size]
            assert masked_crc32c(body) == int.from_bytes(data[at + 12 + size : at + 16 + size], "little")
            found.append(Event.FromString(body))
            at += 16 + size
    return found


def scalars(directory, tag):
    return [(e.step, v.simple_value) for e in events(directory) for v in e.summary.value if v.tag == tag]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    logger = flow.loggers.TensorBoardLogger(tmp_path, log_graph=True)
    trainer = fit(logger)
    assert scalars(tmp_path, "val_loss") == [(row["step"], pytest.approx(row["val_loss"])) for row in trainer.history.rows]
    assert scalars(tmp_path, "loss") == [(row["step"], pytest.approx(row["loss"])) for row in trainer.history.steps]
    from tensorboardX.proto.graph_pb2 import GraphDef

    (graph,) = [GraphDef.FromString(e.graph_def) for e in events(tmp_path) if e.graph_def]
    nodes = {node.name: node for node in graph.node}
    assert {node.op for node in graph.node} >= {"matmul", "relu", "variable", "input"}
    weight = nodes["hidden/weight"]
    assert [d.size for d in weight.attr["_output_shapes"].list.shape[0].dim] == [8, 4]
    assert all(i.split(":")[0] in nodes for node in graph.node for i in node.input)


def test_all_kinds_of_rows_reach_tensorboard_in_order(tmp_path):
    pytest.importorskip("tensorboardX")
    logger = flow.loggers.TensorBoardLogger(tmp_path, flush_seconds=1000)
    logger.prepare(str(tmp_path), None)
    logger.begin(None, 0)
    steps = [0, 1, 127, 128, 129, 16_383, 16_384, 2**31, 2**40, *range(300)]
    for step in steps:
        row = {"loss": step / 3, "epoch": step % 7, "confusion": np.eye(2)}
        if step % 5 == 0:
            row["größe/" + "x" * 300] = 1e300 if step % 2 else -0.5
        logger.log_metrics(row, step)
        row["loss"] = -1.0  # the caller's dictionary is the caller's
    logger.log_metrics({"loss": float("nan")}, 5)
    logger.log_metrics({"confusion": np.eye(2)}, 6)
    logger.save()
    found = scalars(tmp_path, "loss")  # before the file is closed
    assert found[:-1] == [(step, np.float32(step / 3)) for step in steps]
    assert found[-1][0] == 5 and np.isnan(found[-1][1])
    assert scalars(tmp_path, "epoch") == [(step, step % 7) for step in steps]
    long = scalars(tmp_path, "größe/" + "x" * 300)
    assert long == [(step, float("inf") if step % 2 else -0.5) for step in steps if step % 5 == 0]
    times = [e.wall_time for e in events(tmp_path)]
    assert times[1:] == sorted(times[1:]) and not scalars(tmp_path, "confusion")
    logger.finalize("success")
    logger.log_image("late", np.zeros((2, 2)), 0)
    logger.log_metrics({"late_too": 2.0}, 4)
    assert scalars(tmp_path, "late_too") == [(4, 2.0)] and any(v.tag == "late" for e in events(tmp_path) for v in e.summary.value)


def test_tensorboard_images_histograms_and_hyperparameters(tmp_path):
    pytest.importorskip("tensorboardX")
    logger = flow.loggers.TensorBoardLogger(tmp_path)
    with pytest.raises(ModeError, match="no directory before"):
        _ = logger.log_dir
    logger.prepare(str(tmp_path), None)
    logger.begin(None, 0)
    gray = np.linspace(0, 1, 15, dtype=np.float32).reshape(3, 5)
    colours = np.zeros((2, 3, 5, 6), np.uint8)
    for key, images in {
        "gray": gray,
        "grays": np.stack([gray] * 2),
        "first": colours[0],
        "batch": colours,
        "last": colours[0].transpose(1, 2, 0),
    }.items():
        logger.log_image(key, images, 7)
    logger.log_histogram("weights", np.arange(10.0), 7)
    logger.log_hyperparams({"rate": 0.1, "name": "x", "layers": [1, 2]}, {"loss": 0.5})
    logger.finalize("success")
    values = {v.tag: v for e in events(tmp_path) for v in e.summary.value}
    sizes = {tag: (v.image.height, v.image.width) for tag, v in values.items() if v.HasField("image")}
    assert sizes == {"gray": (3, 5), "grays": (3, 10), "first": (5, 6), "batch": (5, 12), "last": (5, 6)}
    assert values["weights"].histo.num == 10 and values["weights"].histo.sum == 45
    assert any(tag.startswith("_hparams_") for tag in values)


def test_tensorboard_takes_events_before_a_run_and_after_it(tmp_path):
    pytest.importorskip("tensorboardX")
    logger = flow.loggers.TensorBoardLogger(tmp_path)
    logger.log_hyperparams({"rate": 0.1})
    assert not events(tmp_path)
    trainer = fit(logger)
    logger.log_histogram("weights", np.arange(10.0), trainer.global_step)
    logger.log_hyperparams({"rate": 0.1}, {"best": 0.25})
    assert scalars(tmp_path, "best") == [(0, 0.25)]
    tags = {v.tag for e in events(tmp_path) for v in e.summary.value}
    assert {"loss", "weights", "_hparams_/session_start_info"} <= tags


def test_a_run_that_goes_on_continues_its_events(tmp_path):
    pytest.importorskip("tensorboardX")
    saving = lambda: flow.callbacks.ModelCheckpoint(tmp_path / "saved", save_last=True)  # noqa: E731
    fit(flow.loggers.TensorBoardLogger(tmp_path), callbacks=saving())
    trainer = quiet(max_epochs=3, logger=flow.loggers.TensorBoardLogger(tmp_path), callbacks=saving())
    trainer.fit(jobs.train_job(), jobs.data(), jobs.eval_job(), jobs.data(20, 1), ckpt_path="last")
    assert trainer.logger.log_dir.endswith("version_0")
    assert [step for step, _ in scalars(tmp_path, "val_loss")] == [5, 11, 17]


def test_without_tensorboard(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"TensorBoardLogger needs tensorboardX.*\n.*oneflow-jax\[tensorboard\]"):
        flow.loggers.TensorBoardLogger()


# --- services, of which the client is played by a stand-in


class Client(ModuleType):
    """Notes what is called, with which arguments."""

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def note(self, name, result=None):
        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            return result

        return call

    def called(self, name):
        return [(arguments, options) for what, arguments, options in self.calls if what == name]


@pytest.fixture
def wandb(monkeypatch):
    client = Client("wandb")
    run = SimpleNamespace(
        id="abc", log=client.note("log"), finish=client.note("finish"),
        config=SimpleNamespace(update=client.note("config")), summary=SimpleNamespace(update=client.note("summary")),
        define_metric=client.note("define_metric"),
    )  # fmt: skip
    client.init = client.note("init", run)
    client.Image = client.Histogram = lambda array: array.shape
    monkeypatch.setitem(sys.modules, "wandb", client)
    return client


def test_wandb(wandb, tmp_path):
    logger = flow.loggers.WandbLogger("mine", project="p", offline=True, tags=["a"])
    trainer = fit(logger, default_root_dir=tmp_path)
    ((arguments, options),) = wandb.called("init")
    assert options == {"dir": str(tmp_path), "mode": "offline", "name": "mine", "project": "p", "tags": ["a"]}
    logged = [arguments[0] for arguments, _ in wandb.called("log")]
    assert [row["val_loss"] for row in logged if "val_loss" in row] == trainer.history["val_loss"]
    assert [row["step"] for row in logged if "loss" in row] == [3, 7, 11]
    assert wandb.called("finish") == [((), {"exit_code": 0})]
    logger.begin({"id": "abc"}, 5)
    assert wandb.called("init")[-1][1]["id"] == "abc" and logger.state_dict() == {"id": "abc"}
    logger.log_hyperparams({"rate": 0.1}, {"loss": 1.0})
    logger.log_image("i", np.zeros((2, 2)), 1)
    logger.log_histogram("h", np.zeros(3), 1)
    assert wandb.called("config")[0][0] == ({"rate": 0.1},) and wandb.called("summary")[0][0] == ({"loss": 1.0},)
    assert [a[0] for a, _ in wandb.called("log")[-2:]] == [{"i": (2, 2), "step": 1}, {"h": (3,), "step": 1}]
    with pytest.raises(ModeError, match="WandbLogger has no log_graph"):
        logger.log_graph(None)


def test_mlflow(monkeypatch):
    client = Client("mlflow")
    methods = SimpleNamespace(
        get_experiment_by_name=client.note("get"), create_experiment=client.note("experiment", "7"),
        create_run=client.note("run", SimpleNamespace(info=SimpleNamespace(run_id="r1"))), log_metric=client.note("metric"),
        log_param=client.note("param"), set_terminated=client.note("end"), update_run=client.note("update"),
    )  # fmt: skip
    client.MlflowClient = client.note("client", methods)
    monkeypatch.setitem(sys.modules, "mlflow", client)
    logger = flow.loggers.MLFlowLogger("digits", "first", "sqlite:///x", {"a": 1})
    trainer = fit(logger)
    assert client.called("client") == [(("sqlite:///x",), {})] and client.called("experiment") == [(("digits",), {})]
    assert client.called("run") == [(("7",), {"tags": {"a": 1}, "run_name": "first"})]
    losses = [(arguments[2], options["step"]) for arguments, options in client.called("metric") if arguments[1] == "val_loss"]
    assert losses == [(row["val_loss"], row["step"]) for row in trainer.history.rows]
    assert client.called("end") == [(("r1", "FINISHED"), {})] and logger.state_dict() == {"run_id": "r1"}
    logger.log_hyperparams({"rate": 0.1}, {"loss": 1.0})
    assert client.called("param") == [(("r1", "rate", 0.1), {})]
    with pytest.raises(ModeError, match="MLFlowLogger has no log_image"):
        logger.log_image("i", None, 0)


def test_trackio(monkeypatch):
    client = Client("trackio")
    run = SimpleNamespace(name="n", log=client.note("log"), finish=client.note("finish"), config={})
    client.init = client.note("init", run)
    monkeypatch.setitem(sys.modules, "trackio", client)
    logger = flow.loggers.TrackioLogger("p", "n")
    trainer = fit(logger)
    assert client.called("init") == [((), {"project": "p", "name": "n"})] and client.called("finish")
    losses = [
        (arguments[0]["val_loss"], options["step"]) for arguments, options in client.called("log") if "val_loss" in arguments[0]
    ]
    assert losses == [(row["val_loss"], row["step"]) for row in trainer.history.rows]


def test_what_services_are_told_before_and_after_a_run(wandb, tmp_path):
    logger = flow.loggers.WandbLogger()
    logger.log_hyperparams({"rate": 0.1}, {"best": 1.0})
    logger.log_image("i", np.zeros((2, 8, 8, 3)), 0)
    assert not wandb.calls
    fit(logger, default_root_dir=tmp_path)
    assert [name for name, *_ in wandb.calls][:5] == ["init", "define_metric", "config", "summary", "log"]
    assert wandb.called("log")[0][0] == ({"i": (8, 16, 3), "step": 0},)
    logger.log_hyperparams({"test": 1})
    assert [options.get("id") for _, options in wandb.called("init")] == [None, "abc"]
    assert wandb.calls[-1] == ("finish", (), {"exit_code": 0}) and len(wandb.called("finish")) == 2
    assert wandb.called("config")[-1][0] == ({"test": 1},) and logger.state_dict() == {"id": "abc"}


@pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies
@pytest.mark.parametrize("kind", ["WandbLogger", "MLFlowLogger", "TrackioLogger"])
def test_a_real_client_in_a_run_that_goes_on(kind, tmp_path, monkeypatch):
    pytest.importorskip(kind.removesuffix("Logger").lower())
    monkeypatch.chdir(tmp_path)
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("TRACKIO_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    options = {"MLFlowLogger": {"tracking_uri": f"sqlite:///{tmp_path}/runs.db"}}.get(kind, {})
    states = []
    for epochs in (1, 2):
        logger = getattr(flow.loggers, kind)(**options)
        logger.log_hyperparams({"rate": 0.1}, {"best": 1.0})
        saving = flow.callbacks.ModelCheckpoint(tmp_path / "saved", save_last=True)
        trainer = quiet(max_epochs=epochs, logger=logger, callbacks=saving, default_root_dir=tmp_path, log_every_n_steps=1)
        trainer.fit(jobs.train_job(), jobs.data(), ckpt_path="last")
        logger.log_hyperparams({"after": 1})
        states.append(logger.state_dict())
    assert states[0] == states[1] and all(states[0].values())


@pytest.mark.parametrize("kind", ["WandbLogger", "MLFlowLogger", "TrackioLogger"])
def test_without_the_client(monkeypatch, kind):
    package = kind.removesuffix("Logger").lower()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"{kind} needs {package}.*\n.*pip install {package}"):
        getattr(flow.loggers, kind)()


def test_mistakes():
    for call, text in (
        (lambda: flow.loggers.CSVLogger(name="../x"), "name must be"),
        (lambda: flow.loggers.CSVLogger(version=1.5), "version must be"),
        (lambda: flow.loggers.CSVLogger(flush_seconds=-1), "flush_seconds must be"),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()


@pytest.mark.parametrize("wrong", [{"name": "a\0b"}, {"version": "../out"}, {"version": ".."}, {"version": ""}])
def test_a_run_stays_in_its_directory(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        flow.loggers.CSVLogger("runs", **wrong)


def test_tensorboard_refuses_what_cannot_be_shown(tmp_path):
    logger = flow.loggers.TensorBoardLogger(tmp_path)
    fit(logger, epochs=1)
    logger.log_histogram("partly", np.array([np.nan, 1.0, np.inf]), 0)
    for wrong in ([], [np.nan, np.inf]):
        with pytest.raises(ArgumentError, match="no finite value"):
            logger.log_histogram("none", np.array(wrong), 0)
    for params, metrics in ([1], None), ({1: 2}, None), ({"a": 1}, {2: 3.0}):
        with pytest.raises(ArgumentError, match="must be a dictionary whose keys are names"):
            logger.log_hyperparams(params, metrics)
    with pytest.raises(ArgumentError, match="takes a job function"):
        logger.log_graph(3)


def test_numbers_of_numpy_are_logged_as_others(tmp_path):
    class Largest(flow.metrics.Metric):
        def accumulate(self, weights, logits):
            self.state["largest"] = max(self.state.get("largest", np.float32(-1e9)), logits.max())

        def compute(self):
            return self.state["largest"]

    csv_logger, board = flow.loggers.CSVLogger(tmp_path / "csv"), flow.loggers.TensorBoardLogger(tmp_path / "board")
    trainer = fit([csv_logger, board], epochs=1, metrics=Largest(["logits"]))
    found = trainer.history["val_largest"][0]
    assert type(found) is float and f"{found}" in Path(csv_logger.path).read_text()
    board.log_metrics({"a": np.float32(1.5), "b": np.int64(2), "c": np.ones(3)}, 7)
    tags = {v.tag: v.simple_value for e in events(Path(board.log_dir)) for v in e.summary.value}
    assert tags["val_largest"] == pytest.approx(found) and (tags["a"], tags["b"]) == (1.5, 2.0) and "c" not in tags


@pytest.mark.parametrize("method", ["save", "finalize"])
def test_a_logger_that_fails_at_the_end_is_named(tmp_path, method):
    class Failing(flow.loggers.Logger):
        pass

    def fail(self, *arguments):
        raise RuntimeError("the disk is gone")

    fail.__name__ = method
    setattr(Failing, method, fail)
    saving = flow.callbacks.ModelCheckpoint(tmp_path)
    with pytest.raises(CallbackError, match=f"Failing.{method} raised RuntimeError.*the disk is gone"):
        fit(Failing(), epochs=1, callbacks=saving)


@pytest.mark.parametrize("columns", [("a",), ("a", "b")])
def test_a_csv_file_that_the_disk_refuses_is_named_and_keeps_what_it_had(tmp_path, monkeypatch, columns):
    logger = flow.loggers.CSVLogger(tmp_path, flush_seconds=0.0)
    logger.prepare(str(tmp_path), None)
    logger.begin(None, 0)
    logger.log_metrics({"a": 1.5}, 0)
    before = Path(logger.path).read_text()

    def refuses(writer, rows):
        writer.writerow(rows[0])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(csv.DictWriter, "writerows", refuses)
        with pytest.raises(DataError, match="(?s)cannot write its file: No space left on device.*metrics.csv"):
            logger.log_metrics(dict.fromkeys(columns, 2.5), 1)
    assert Path(logger.path).read_text() == before and [p.name for p in Path(logger.log_dir).iterdir()] == ["metrics.csv"]
    logger.save()
    assert [row["a"] for row in table(logger.path)] == ["1.5", "2.5"]
