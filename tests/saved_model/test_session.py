"""``InferenceSession``: loading, running, other batch sizes, newer versions, and what is refused."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saving import X, affine, launched, save, session

import oneflow as flow
import oneflow.typing as tp
from oneflow.core.serving import saved_model_pb2
from oneflow.errors import (
    CheckpointError,
    CheckpointWarning,
    DeviceError,
    FeedDtypeError,
    FeedError,
    FeedShapeError,
    OneFlowError,
    SavedModelError,
)

text_format = pytest.importorskip("google.protobuf.text_format", reason="needs the extra [data]")
LATEST = flow.serving.ModelVersionPolicy.LATEST


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "net"
    save(path, 3.0, version=2)
    return save(path, 2.0, version=10)


def test_it_runs_and_describes_itself(model: Path, capsys: Any) -> None:
    s = launched(model)
    assert s.list_jobs() == ["affine"] and s.list_inputs() == ("image",) and s.list_outputs() == ("prob",)
    assert s.input_info("image", "affine") == {"shape": (4, 3), "dtype": flow.float32}
    assert s.output_info("prob", job_name="affine") == {"shape": (4, 3), "dtype": flow.float32}
    (prob,) = s.run("affine", image=X)
    np.testing.assert_allclose(prob, X * 2 + 1)
    prob[:] = 0  # a fresh array
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 2 + 1)
    np.testing.assert_allclose(asyncio.run(s.async_run("affine", image=X))[0], X * 2 + 1)
    s.print_job_set()
    assert "job_name: affine" in capsys.readouterr().out
    s.close()
    s.close()


def test_the_default_session_is_left_alone(model: Path) -> None:
    flow.clear_default_session()
    job, _ = affine(7.0)
    label = np.zeros(4, np.int32)
    before = job(X, label)[0]
    s = launched(model)
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 2 + 1)
    with pytest.raises(OneFlowError):
        session().load_saved_model(str(model / "nothing"))
    np.testing.assert_allclose(job(X, label)[0], before)
    np.testing.assert_allclose(before, X * 7 + 1)


def test_versions_and_signatures(model: Path) -> None:
    np.testing.assert_allclose(launched(model, 2).run("affine", image=X)[0], X * 3 + 1)
    np.testing.assert_allclose(launched(model, LATEST, signature_name="rest").run("affine", scaled=X)[0], (X + 1) / 2)
    s = launched(model, model_version=10, graph_name="affine", signature_name="predict")
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 2 + 1)


def test_without_a_signature_the_job_is_as_it_was_saved(tmp_path: Path) -> None:
    flow.clear_default_session()
    job, _ = affine(5.0)
    builder = flow.saved_model.ModelBuilder(str(tmp_path / "net")).ModelName("net").Version(1)
    builder.AddFunction(job)
    builder.Save()
    s = launched(tmp_path / "net")
    assert s.list_inputs() == ("Input_0", "Input_1") and s.list_outputs() == ("Return_0", "Return_1")
    label = np.array([0, 1, 2, 1], np.int32)
    for made, wanted in zip(s.run("affine", Input_0=X, Input_1=label), job(X, label), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-6)


def test_the_manual_way(model: Path) -> None:
    """As OneFlow's own programs do it: the text of the message, ``open`` and ``compile``."""
    proto = text_format.Parse((model / "10" / "saved_model.prototxt").read_text(), saved_model_pb2.SavedModel())
    assert proto.name == "net" and proto.version == 10 and proto.checkpoint_dir == "variables"
    graph = proto.graphs[proto.default_graph_name]
    signature = graph.signatures[graph.default_signature_name]
    s = session()
    s.set_checkpoint_path(str(model / "10" / proto.checkpoint_dir))
    with s.open("affine", signature, 6):
        s.compile(graph.op_list)
        assert s.input_info("image") == {"shape": (6, 3), "dtype": flow.float32}
    s.launch()
    wide = np.arange(18, dtype=np.float32).reshape(6, 3)
    np.testing.assert_allclose(s.run("affine", image=wide)[0], wide * 2 + 1)
    s = session()
    s.set_job_signature("affine", signature)
    s.set_job_batch_size("affine", 2)
    with s.open("affine"):
        s.compile(graph.op_list)
    with pytest.raises(ValueError, match="set_checkpoint_path"):
        s.launch()


def launched_with(folder: Path, **jobs: Any) -> Any:
    """A session that runs jobs which were saved to a folder, by their names."""
    builder = flow.saved_model.ModelBuilder(str(folder)).ModelName("net").Version(1)
    for job in jobs.values():
        builder.AddFunction(job)
    builder.Save()
    s = session()
    for name in jobs:
        s.load_saved_model(str(folder), graph_name=name)
    s.launch()
    return s


def test_other_batch_sizes(model: Path, tmp_path: Path) -> None:
    s = launched(model)
    for size in (1, 3, 4, 9):
        rows = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        np.testing.assert_allclose(s.run("affine", image=rows)[0], rows * 2 + 1, rtol=1e-6)

    @flow.global_function("predict")
    def fixed(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.math.add(x, flow.constant_like(flow.slice_v2(x, [(1, 2, 1)]), 1.0))  # the second sample

    @flow.global_function("predict")
    def tied(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.reshape(x, (2, 6))

    s = launched_with(tmp_path / "net", fixed=fixed, tied=tied)
    assert s.list_jobs() == ["fixed", "tied"]
    for size in (4, 2, 7, 2):
        np.testing.assert_allclose(s.run("fixed", Input_0=np.ones((size, 3), np.float32))[0], 2.0)
    np.testing.assert_allclose(s.run("tied", Input_0=X)[0], X.reshape(2, 6))
    with pytest.raises(FeedShapeError, match="works for a batch of 4 only, and was given 5"):
        s.run("tied", Input_0=np.ones((5, 3), np.float32))
    np.testing.assert_allclose(s.run("tied", Input_0=X)[0], X.reshape(2, 6))


def test_graphs_of_one_batch_size_refuse_a_single_row_and_rows_by_number_stay_those(tmp_path: Path) -> None:
    @flow.global_function("predict")
    def states(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return x + flow.get_variable("states", (4, 3), initializer=flow.ones_initializer())  # a row would be broadcast

    @flow.global_function("predict")
    def last(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.slice(x, [3, 0], [1, 3])

    s = launched_with(tmp_path / "net", states=states, last=last)
    np.testing.assert_allclose(s.run("states", Input_0=X)[0], X + 1)
    for size in (1, 2):
        with pytest.raises(FeedShapeError, match=f"works for a batch of 4 only, and was given {size}"):
            s.run("states", Input_0=X[:size])
    rows = np.arange(18, dtype=np.float32).reshape(6, 3)
    np.testing.assert_array_equal(s.run("last", Input_0=rows[:4])[0], rows[3:4])
    np.testing.assert_array_equal(s.run("last", Input_0=rows)[0], rows[3:4])
    with pytest.raises(FeedShapeError, match="works for a batch of 4 only, and was given 2"):
        s.run("last", Input_0=rows[:2])


def test_wrong_inputs(model: Path) -> None:
    s = launched(model)
    with pytest.raises(ValueError, match='input "image" is absent'):
        s.run("affine")
    with pytest.raises(ValueError, match=r"(?s)given      img.*try        run\('affine', image=\.\.\.\)"):
        s.run("affine", img=X)
    with pytest.raises(ValueError, match=r"must be a numpy.ndarray, got \[\[1"):
        s.run("affine", image=[[1.0]])  # type: ignore[arg-type]
    with pytest.raises(FeedShapeError, match=r"image has shape \[batch, 3\], and was given \(4, 2\)"):
        s.run("affine", image=np.ones((4, 2), np.float32))
    with pytest.raises(FeedDtypeError, match="image is float32, and was given complex64"):
        s.run("affine", image=X.astype(np.complex64))
    with pytest.raises(FeedError, match="has no input 'other'; it takes image"):
        s.run("affine", image=X, other=X)
    with pytest.raises(ValueError, match="there is no job 'another'; the session has 'affine'"):
        s.run("another", image=X)
    with pytest.raises(ValueError, match="has no output 'x'; it has prob"):
        s.output_info("x", "affine")
    with pytest.raises(ValueError, match="needs job_name"):
        s.input_info("image")
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 2 + 1)


def test_states(model: Path) -> None:
    s = session()
    for call in (s.list_jobs, s.list_inputs, s.list_outputs, s.reload, lambda: s.run("affine", image=X)):
        with pytest.raises(ValueError, match=r"is for a session after launch\(\); this one is not launched yet"):
            call()
    with pytest.raises(ValueError, match="no job is open"):
        s.compile([])
    s.load_saved_model(str(model))
    with pytest.raises(ValueError, match="has a job named 'affine' already"):
        s.load_saved_model(str(model))
    s.launch()
    for call in (s.launch, lambda: s.load_saved_model(str(model)), lambda: s.set_checkpoint_path("x"), s.init):
        with pytest.raises(ValueError, match="launched already|after launch"):
            call()
    s.close()
    with pytest.raises(ValueError, match="this one is closed"):
        s.run("affine", image=X)
    s.init()
    assert repr(s) == "<InferenceSession, open, 0 jobs>"
    s.load_saved_model(str(model), 2)
    s.launch()
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 3 + 1)


def test_what_is_not_there(model: Path, tmp_path: Path) -> None:
    s = session()
    for args, message in (
        ((str(tmp_path / "nothing"),), "there is no saved model at .*nothing"),
        ((str(model), 3), "version 3 of saved model in dir .* do not exist"),
        ((str(model), 10, "meta"), "it has neither meta.pb nor meta.prototxt"),
        ((str(model), 10, "saved_model", "other"), "has no graph 'other'"),
        ((str(model), 10, "saved_model", "affine", "other"), "has no signature 'other'"),
        ((str(model), "10"), "model_version"),
        ((3,), "saved_model_dir"),
    ):
        with pytest.raises(ValueError, match=message):
            s.load_saved_model(*args)
    with pytest.raises(IndexError, match="has no version"):
        s.load_saved_model(str(tmp_path))
    s.load_saved_model(str(model))
    s.launch()
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 2 + 1)


def test_options() -> None:
    with pytest.raises(NotImplementedError, match="device_tag"):
        session(device_tag="tpu")
    for key, value in (("device_num", 0), ("device_num", "x"), ("reload_seconds", -1)):
        with pytest.raises(ValueError, match=key):
            session(**{key: value})
    with pytest.raises(ValueError, match="SessionOption"):
        flow.serving.InferenceSession("cpu")  # type: ignore[arg-type]
    with pytest.raises(DeviceError):
        session(device_num=4096)


def test_variables_that_do_not_fit(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "net"
    shutil.copytree(model, copy)
    variables = copy / "10" / "variables"
    shutil.rmtree(variables / "b")
    s = session()
    s.load_saved_model(str(copy))
    with pytest.warns(CheckpointWarning, match="variable 'b' is not in .*; it gets its first value"):
        s.launch()
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 2 + 1)
    shutil.copytree(model / "10" / "variables" / "b", variables / "b")
    (variables / "w" / "out").write_bytes(b"\0" * 12)
    with pytest.raises(CheckpointError, match="variable 'w'"):
        launched(copy)
    (variables / "w" / "out").write_bytes(b"\0" * 8)
    with pytest.raises(CheckpointError, match="variable 'w'"):
        launched(copy)
    shutil.rmtree(variables)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        launched(copy)


def test_threads_and_a_newer_version(tmp_path: Path) -> None:
    """No call is missed while a newer version takes over, and each one is answered by one version alone."""
    path = save(tmp_path / "net", 1.0, version=1)
    s = session(reload_seconds=0.05)
    s.load_saved_model(str(path))
    s.launch()
    answers: list[set[float]] = [set() for _ in range(4)]
    errors: list[BaseException] = []
    newer = threading.Event()

    def work(seen: set[float]) -> None:
        try:
            while not (newer.is_set() and 5.0 in seen):
                (found,) = s.run("affine", image=np.ones((4, 3), np.float32))
                seen.add(float(found[0, 0]) - 1)
                assert (found == found[0, 0]).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seen,)) for seen in answers]
    for thread in threads:
        thread.start()
    save(path, 5.0, version=2)
    newer.set()
    for thread in threads:
        thread.join()
    assert not errors and all(seen <= {1.0, 5.0} and 5.0 in seen for seen in answers)
    assert not s.reload()
    s.close()


def test_a_newer_version_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "net", 1.0, version=1)
    s = launched(path)
    pinned = launched(path, 1)
    flow.clear_default_session()
    job, lbn = affine(2.0)
    builder = flow.saved_model.ModelBuilder(str(path)).ModelName("net").Version(2)
    builder.AddFunction(job).AddSignature("predict").Input("picture", lbn["x"]).Output("prob", lbn["y"])
    builder.Save()
    with pytest.raises(SavedModelError, match="version 2 of .* has other inputs than version 1"):
        s.reload()
    np.testing.assert_allclose(s.run("affine", image=X)[0], X + 1)
    save(path, 3.0, version=3)
    assert s.reload() and not pinned.reload()
    np.testing.assert_allclose(s.run("affine", image=X)[0], X * 3 + 1)
    np.testing.assert_allclose(pinned.run("affine", image=X)[0], X + 1)


def test_several_devices(model: Path) -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(2)
    s = session(device_num=2, is_mirrored_view=True)
    s.load_saved_model(str(model))
    s.launch()
    for size in (4, 3):
        rows = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        np.testing.assert_allclose(s.run("affine", image=rows)[0], rows * 2 + 1, rtol=1e-6)
    s.close()
