"""Versions are loaded, replaced and unloaded while requests go on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from clients import Http, metric, values, write_affine
from safetensors.numpy import save_file

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ServingError
from oneflow.serving._convert import main as convert
from oneflow.serving._metrics import Metrics
from oneflow.serving._model import read_model
from oneflow.serving._protocol import RequestError
from oneflow.serving._repository import Repository
from oneflow.serving._repository import _versions_of as versions_of
from oneflow.serving._settings import ModelSettings

ONE = np.ones((1, 3), np.float32)


def test_versions_side_by_side_and_the_newest_by_default(tmp_path: Path, start: Any) -> None:
    models = tmp_path / "models" / "affine"
    for version, weight in ((1, 10.0), (2, 20.0), (10, 100.0)):
        write_affine(models / str(version) / "model.stablehlo", weight)
    (models / "03").mkdir()
    (models / "notes").mkdir()
    server, http = start(max_delay_ms=0)
    for version, value in (("", 100), ("1", 10), ("2", 20), ("10", 100)):
        status, answer = http.infer(ONE, version=version)
        assert status == 200 and (values(answer) == value).all() and answer["model_version"] == (version or "10")
    assert http("GET", "/v2/models/affine")[1]["versions"] == ["1", "2", "10"]
    (models / "config.json").write_text('{"versions": 1}')
    assert http("POST", "/v2/repository/models/affine/load")[0] == 200
    assert http("GET", "/v2/models/affine")[1]["versions"] == ["10"] and http.infer(ONE, version="2")[0] == 404


def test_statistics_are_those_of_each_version(tmp_path: Path, start: Any) -> None:
    models = tmp_path / "models"
    for version in (1, 2):
        write_affine(models / "affine" / str(version) / "model.stablehlo", 1.0)
    write_affine(models / "other.stablehlo", 1.0)
    server, http = start(max_delay_ms=0)
    for rows, version in ((1, "1"), (3, "1"), (2, "2"), (2, "")):
        assert http.infer(np.ones((rows, 3)), version=version)[0] == 200
    assert http("POST", "/v2/models/affine/versions/2/infer", b"{")[0] == 400
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        found = client.get_inference_statistics("affine")["model_stats"]
        assert [(s["name"], s["version"], s["inference_count"], s["execution_count"]) for s in found] == [
            ("affine", "1", 4, 2), ("affine", "2", 4, 2)]  # fmt: skip
        assert client.get_inference_statistics("affine", "2")["model_stats"] == found[1:]
        everything = client.get_inference_statistics()["model_stats"]
    assert [(s["name"], s["version"]) for s in everything] == [("affine", "1"), ("affine", "2"), ("other", "1")]
    assert [batch["batch_size"] for batch in found[0]["batch_stats"]] == [1, 4]  # three rows were padded
    assert [s["inference_stats"]["fail"]["count"] for s in everything] == [0, 1, 0]
    for s in found:
        times = s["inference_stats"]
        assert times["success"]["count"] == times["queue"]["count"] == times["compute_infer"]["count"] == 2
        assert 0 < times["compute_infer"]["ns"] < times["success"]["ns"] and s["last_inference"] > 1.6e12
    assert everything[2]["last_inference"] == 0 and everything[2]["batch_stats"] == []
    assert http("GET", "/v2/models/affine/versions/3/stats")[0] == 404


def test_load_unload_and_index(tmp_path: Path, start: Any) -> None:
    models = tmp_path / "models"
    write_affine(models / "affine.stablehlo", 1.0)
    server, http = start(max_delay_ms=0)
    write_affine(models / "later" / "1" / "model.stablehlo", 5.0)
    assert http.infer(ONE, "later")[0] == 404
    index = http("POST", "/v2/repository/index")[1]
    assert [(m["name"], m["state"]) for m in index] == [("affine", "READY"), ("later", "UNAVAILABLE")]
    assert http("POST", "/v2/repository/models/later/load", {})[0] == 200
    assert (values(http.infer(ONE, "later")[1]) == 5).all()
    assert http("POST", "/v2/repository/models/later/unload", {"parameters": {"unload_dependents": False}})[0] == 200
    status, answer = http.infer(ONE, "later")
    assert status == 404 and "not loaded" in answer["error"]
    assert [m["name"] for m in http("POST", "/v2/repository/index", {"ready": True})[1]] == ["affine"]
    assert http("POST", "/v2/repository/models/later/load")[0] == 200 and http.infer(ONE, "later")[0] == 200


def test_a_failed_reload_leaves_what_serves(tmp_path: Path, start: Any) -> None:
    path = write_affine(tmp_path / "models" / "affine" / "1" / "model.stablehlo", 4.0)
    server, http = start(max_delay_ms=0)
    path.write_bytes(b"rubbish")
    status, answer = http("POST", "/v2/repository/models/affine/load")
    assert status == 400 and "is not a file that flow.export.stablehlo wrote" in answer["error"]
    assert (values(http.infer(ONE)[1]) == 4).all()
    (entry,) = http("POST", "/v2/repository/index")[1]
    assert entry["state"] == "READY" and "flow.export.stablehlo" in entry["reason"]
    assert metric(http, "oneflow_loads_total", result="failed") == 1
    write_affine(path, 6.0)
    assert http("POST", "/v2/repository/models/affine/load")[0] == 200 and (values(http.infer(ONE)[1]) == 6).all()
    assert http("POST", "/v2/repository/index")[1][0]["reason"] == ""


def test_all_versions_serve_on_where_all_files_are_gone(tmp_path: Path, start: Any) -> None:
    """One of them may be version 1, which a model without versions is called."""
    folder = tmp_path / "models" / "affine"
    for number in (1, 2):
        write_affine(folder / str(number) / "model.stablehlo", float(number))
    (folder / "config.json").write_text('{"versions": 2}')
    _, http = start(max_delay_ms=0)
    for number in (1, 2):
        shutil.rmtree(folder / str(number))
    status, answer = http("POST", "/v2/repository/models/affine/load")
    assert status == 400 and "(versions 1, 2 continue to serve)" in answer["error"]
    assert (values(http.infer(ONE)[1]) == 2).all()


@pytest.mark.parametrize("gone", ["model", "version", "newest"])
def test_a_reload_of_what_is_gone_leaves_what_serves(tmp_path: Path, start: Any, gone: str) -> None:
    folder = tmp_path / "models" / "affine"
    write_affine(folder / "2" / "model.stablehlo", 4.0)
    server, http = start(max_delay_ms=0)
    (folder / "2").rename(tmp_path / "kept")
    if gone == "model":
        folder.rmdir()
    if gone == "newest":
        (folder / "3").mkdir()
    status, answer = http("POST", "/v2/repository/models/affine/load")
    assert status == 400 and answer["error"].startswith("failed to load 'affine' (version 2 continues to serve): ")
    assert {"model": "its files are gone", "version": "has no model"}.get(gone, "version 3: ") in answer["error"]
    assert (values(http.infer(ONE)[1]) == 4).all()
    entry, *others = http("POST", "/v2/repository/index")[1]
    assert (entry["version"], entry["state"]) == ("2", "READY") and [m["version"] for m in others] == ["3"] * (gone == "newest")
    assert (others or [entry])[0]["reason"]

    folder.mkdir(exist_ok=True)
    (tmp_path / "kept").rename(folder / "4")
    if gone == "newest":
        (folder / "3").rmdir()
    assert http("POST", "/v2/repository/models/affine/load")[0] == 200
    assert [(m["version"], m["reason"]) for m in http("POST", "/v2/repository/index")[1]] == [("4", "")]
    shutil.rmtree(folder)
    server.refresh()
    while http.infer(ONE)[0] != 404:
        pass


def test_versions_are_replaced_without_a_failed_or_a_torn_request(tmp_path: Path, start: Any) -> None:
    models = tmp_path / "models"
    sources = [write_affine(tmp_path / "made" / f"{i}.stablehlo", 1.0, float(i)).read_bytes() for i in range(3)]

    def publish(i: int) -> None:
        (tmp_path / "staged").write_bytes(sources[i])
        os.replace(tmp_path / "staged", models / "affine.stablehlo")

    models.mkdir()
    publish(0)
    server, http = start(batch_sizes=[8])
    over = threading.Event()
    problems: list[Any] = []
    seen: set[float] = set()

    def client(number: int) -> None:
        asked = 0
        with Http(server.url) as own:
            while not over.is_set():
                x = np.full((1 + asked % 3, 3), 10.0 * number, np.float32)
                asked += 1
                status, answer = own.infer(x)
                if status != 200:
                    problems.append((status, answer))
                    continue
                bias = values(answer) - x
                if bias.shape != x.shape or len(np.unique(bias)) != 1 or (values(answer, "z") != 2 * values(answer)).any():
                    problems.append(answer)
                seen.add(float(bias[0, 0]))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for reload in range(1, 10):
        publish(reload % 3)
        assert http("POST", "/v2/repository/models/affine/load")[0] == 200
        assert (values(http.infer(ONE)[1]) == 1 + reload % 3).all()  # at once
    over.set()
    for thread in threads:
        thread.join()
    assert not problems and seen == {0.0, 1.0, 2.0}
    assert metric(http, "oneflow_loads_total", result="loaded") == 10
    while len([t for t in threading.enumerate() if t.name.startswith("oneflow-serving-affine")]) > 2:
        pass  # threads of old versions end


def test_the_directory_is_looked_at_again(tmp_path: Path, start: Any) -> None:
    models = tmp_path / "models"
    write_affine(models / "a.stablehlo", 1.0)
    write_affine(models / "b.stablehlo", 2.0)
    server, http = start(max_delay_ms=0, poll=0.05)
    (models / "b.stablehlo").unlink()
    write_affine(models / "c.stablehlo", 3.0)
    while http.infer(ONE, "c")[0] != 200 or http.infer(ONE, "b")[0] != 404:
        pass
    assert (values(http.infer(ONE, "a")[1]) == 1).all()
    assert metric(http, "oneflow_loads_total", model="a") == 1  # it had not changed
    write_affine(models / "b.stablehlo", 4.0)
    while http.infer(ONE, "b")[0] != 200:
        pass
    assert (values(http.infer(ONE, "b")[1]) == 4).all()
    assert http("POST", "/v2/repository/models/b/unload")[0] == 200
    write_affine(models / "d.stablehlo", 5.0)
    while http.infer(ONE, "d")[0] != 200:
        pass
    assert http.infer(ONE, "b")[0] == 404  # what was unloaded by request stays so


def test_saved_models(tmp_path: Path, start: Any) -> None:
    """The layout of OneFlow's builder is that of the repository: model/version."""
    pytest.importorskip("google.protobuf", reason="needs the extra [data]")
    flow.clear_default_session()
    lbn = {}

    @flow.global_function("predict")
    def scaled(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        y = x * flow.get_variable("w", (3,), initializer=flow.constant_initializer(4.0))
        lbn.update(x=x.logical_blob_name, y=y.logical_blob_name)
        return y

    scaled.graph  # noqa: B018 - runs the body
    for version in (1, 2):
        model = flow.saved_model.ModelBuilder(str(tmp_path / "models" / "affine")).ModelName("net").Version(version)
        model.AddFunction(scaled).AddSignature("s").Input("x", lbn["x"]).Output("y", lbn["y"])
        model.Save()
    server, http = start(max_delay_ms=0)
    status, answer = http.infer(ONE)
    assert status == 200 and (values(answer) == 4).all() and answer["model_version"] == "2"
    assert http("GET", "/v2/models/affine")[1]["platform"] == "oneflow_saved_model"
    wide = np.ones((3, 3), np.float32)
    assert (values(http.infer(wide)[1]) == 4).all()


def test_what_is_no_model_is_refused_at_the_start(tmp_path: Path, start: Any) -> None:
    folder = tmp_path / "models" / "digits" / "1"
    folder.mkdir(parents=True)
    for name, reason in (("", "has no model"), ("saved_model.pb", "is not a saved model"),
                         ("snapshot_done", 'which does not say how the model computes')):  # fmt: skip
        if name:
            (folder / name).write_bytes(b"")
        with pytest.raises(ServingError, match=reason):
            start()
        if name:
            (folder / name).unlink()


SCRIPT = """
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function()
def predict(x: tp.Numpy.Placeholder((4, 3))) -> tp.Dict[str, tp.Numpy]:
    w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
    return {"y": x * w}

@flow.global_function()
def random(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    return x + flow.random.normal((4, 3))

if __name__ == "__main__":
    predict(np.ones((4, 3), np.float32))
    raise RuntimeError("it went on")
"""


@pytest.mark.parametrize("version", ["1", "."])
def test_a_checkpoint_with_a_job(tmp_path: Path, start: Any, version: str) -> None:
    folder = tmp_path / "models" / "trained"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "config.json").write_text(json.dumps({"job": "train.py:predict"}))

    @flow.global_function()
    def job() -> flow.typing.Numpy:
        return flow.get_variable("w", (3,), initializer=flow.constant_initializer(7.0))

    job()
    flow.checkpoint.save(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", folder / version, dirs_exist_ok=True)
    if version != ".":
        (folder / version / "config.json").write_text('{"hidden_size": 3}')  # of the program that saved it
    server, http = start(max_delay_ms=0)
    assert (values(http.infer(2 * ONE, "trained", "1")[1]) == 14).all()
    (folder / "config.json").write_text('{"job": 3}')
    status, answer = http("POST", "/v2/repository/models/trained/load")
    assert status == 400 and "job must be a non-empty str" in answer["error"]
    assert http.infer(ONE, "trained")[0] == 200


def test_a_changed_script_is_a_changed_version(tmp_path: Path) -> None:
    folder = tmp_path / "trained"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "snapshot_done").touch()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "config.json").write_text(json.dumps({"job": "train.py:predict"}))
    _, before = versions_of(folder, ModelSettings())
    assert versions_of(folder, ModelSettings())[1] == before
    (folder / "train.py").write_text(SCRIPT + "\n")
    _, after = versions_of(folder, ModelSettings())
    assert before.keys() == after.keys() == {1} and before != after


def test_the_process_that_exports_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    save_file({"w": np.full(3, 7, np.float32)}, tmp_path / "w.safetensors")
    arguments = [str(tmp_path / "w.safetensors"), str(tmp_path / "model.stablehlo")]
    assert convert([f"{tmp_path / 'train.py'}:predict", *arguments]) == 0
    assert (flow.export.load(arguments[1])(ONE)["y"] == 7).all()
    flow.clear_default_session()
    assert convert([f"{tmp_path / 'train.py'}:random", *arguments]) == 2
    assert "draws random numbers" in capsys.readouterr().err


def test_models_that_wait_to_be_loaded_are_not_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    for name in ("first", "second", "größe"):
        write_affine(tmp_path / f"{name}.stablehlo", 1.0)
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return read_model(*arguments)

    monkeypatch.setattr("oneflow.serving._repository.read_model", slow)

    def told(repository: Repository, name: str, version: str | None = None) -> int:
        with pytest.raises(RequestError) as refused:
            repository.find(name, version)
        return refused.value.status

    async def load() -> None:
        repository = Repository(tmp_path, ModelSettings(batch_sizes=(1,)), Metrics(), 2)
        loading = asyncio.create_task(repository.load_all())
        while not begun.is_set():
            await asyncio.sleep(0.01)
        assert [told(repository, name) for name in ("first", "second", "third")] == [503, 503, 404]
        assert told(repository, "second", "1") == 503
        assert [(m["name"], m["state"]) for m in repository.index()] == [("first", "LOADING"), ("second", "LOADING")]
        unloading = asyncio.create_task(repository.unload("second"))
        go_on.set()
        assert await loading == {}
        await unloading
        assert repository.find("first", None) is not None and told(repository, "second") == 404
        assert told(repository, "first", "2") == 404
        await repository.close()

    asyncio.run(load())
    assert caplog.text.count("größe.stablehlo is ignored") == 1


def test_a_directory_without_models_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def load() -> None:
        repository = Repository(tmp_path, ModelSettings(), Metrics(), 1)
        assert await repository.load_all() == {}
        await repository.close()

    asyncio.run(load())
    assert caplog.messages == [
        f"{tmp_path} has no models yet: it takes NAME.stablehlo, or NAME/1/ with a checkpoint or a StableHLO export"
    ]


def test_no_model_takes_the_name_of_the_statistics(tmp_path: Path, start: Any, caplog: Any) -> None:
    for name in ("affine", "stats", "stats2"):
        write_affine(tmp_path / "models" / f"{name}.stablehlo", 1.0)
    _, http = start()
    assert "stats.stablehlo is ignored" in caplog.text and "are not 'stats'" in caplog.text
    assert {entry["name"] for entry in http("POST", "/v2/repository/index")[1]} == {"affine", "stats2"}
    assert http("POST", "/v2/repository/models/stats/load")[0] == 404
    assert {each["name"] for each in http("GET", "/v2/models/stats")[1]["model_stats"]} == {"affine", "stats2"}
