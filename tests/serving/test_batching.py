"""Requests are joined, padded, refused where too many wait, and given up when their time is over."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients import Http, metric, values, write_affine

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ServingError
from oneflow.serving._model import rows_to_take

FOR_EVER = 60_000.0  # milliseconds that requests wait for others, in tests in which they are joined earlier


def waiting(url: str, count: int, ask: Callable[[Http, int], Any], pool: ThreadPoolExecutor) -> list[Future[Any]]:
    """Sends requests side by side; returns when all of them wait in the server's queue."""

    def asked(i: int) -> Any:
        with Http(url) as http:
            return ask(http, i)

    made = [pool.submit(asked, i) for i in range(count)]
    with Http(url) as http:
        while metric(http, "oneflow_queue_length") < count and not any(f.done() for f in made):
            pass
    return made


def row(i: int) -> np.ndarray:
    return np.full((1, 3), i, np.float32)


def test_requests_are_joined_and_each_gets_its_own_rows(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 3.0)
    server, http = start(max_delay_ms=FOR_EVER, batch_sizes=[2, 6])
    with ThreadPoolExecutor(6) as pool:
        answers = waiting(server.url, 3, lambda http, i: http.infer(np.full((1 + i % 2, 3), i)), pool)  # 1, 2 and 1 rows
        status, last = http.infer(np.full((2, 3), 7))  # which makes six
        assert status == 200 and (values(last) == 21).all() and values(last).shape == (2, 3)
        for i, answer in enumerate(answers):
            status, content = answer.result()
            assert status == 200 and (values(content, "z") == 6 * i).all() and len(values(content)) == 1 + i % 2
    assert metric(http, "oneflow_batch_requests_count") == 1 and metric(http, "oneflow_batch_requests_sum") == 4
    assert metric(http, "oneflow_batch_rows_sum") == 6 and metric(http, "oneflow_padding_rows_total") == 0


def test_a_request_that_does_not_fit_goes_with_the_next_batch(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 3.0)
    server, http = start(max_delay_ms=FOR_EVER, batch_sizes=[4])
    with ThreadPoolExecutor(4) as pool:
        first = waiting(server.url, 1, lambda http, i: http.infer(np.full((3, 3), 1)), pool)
        second = pool.submit(http.infer, np.full((2, 3), 2))  # five rows are more than a batch: the first three go
        assert (values(first[0].result()[1]) == 3).all()
        with Http(server.url) as other:
            status, answer = other.infer(np.full((2, 3), 4))
        assert (values(answer) == 12).all() and (values(second.result()[1]) == 6).all()
    assert metric(http, "oneflow_padding_rows_total") == 1 and metric(http, "oneflow_batch_rows_count") == 2


def test_without_batching_each_runs_by_itself(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 3.0)
    server, http = start(batching=False, max_delay_ms=FOR_EVER)
    with ThreadPoolExecutor(4) as pool:

        def ask(i: int) -> Any:
            with Http(server.url) as own:
                return own.infer(row(i))

        for i, (status, answer) in enumerate(pool.map(ask, range(8))):
            assert status == 200 and (values(answer) == 3 * i).all()
    assert metric(http, "oneflow_batch_requests_count") == 8


def test_a_full_queue_and_the_time_of_a_request(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 3.0)
    server, http = start(max_delay_ms=FOR_EVER, max_queue=2)
    with ThreadPoolExecutor(2) as pool:
        patient = waiting(server.url, 1, lambda http, i: http.infer(row(1)), pool)
        status, answer = http.infer(row(9), parameters={"timeout": 1000})
        assert status == 504 and "was not answered within its 0.001 s" in answer["error"]
        second = waiting(server.url, 1, lambda http, i: http.infer(row(2)), pool)  # the place of the one before is free again
        while metric(http, "oneflow_queue_length") < 2:
            pass
        status, answer = http.infer(row(9))
        assert status == 429 and "as many as it may have" in answer["error"] and http.headers["retry-after"] == "1"
        server.stop()  # those that wait are answered
        for i, found in enumerate([*patient, *second]):
            status, answer = found.result()
            assert status == 200 and (values(answer) == 3 * (i + 1)).all()


def test_the_server_has_a_time_limit_of_its_own(tmp_path: Path, start: Any) -> None:
    write_affine(tmp_path / "models" / "affine.stablehlo", 3.0)
    _, http = start(max_delay_ms=FOR_EVER, timeout=0.05)
    assert http.infer(row(1), parameters={"timeout": 10**9})[0] == 504
    assert metric(http, "oneflow_requests_total", status="504") == 1


def test_sizes_other_than_the_batch_are_compiled_and_not_mixed(tmp_path: Path, start: Any) -> None:
    from clients import write_counts

    write_counts(tmp_path / "models" / "counts" / "1" / "counts.stablehlo")
    config = tmp_path / "models" / "counts" / "config.json"
    config.write_text(json.dumps({"sizes": {"length": [2, 3]}, "max_delay_ms": FOR_EVER, "max_batch_size": 2}))
    server, http = start()
    assert metric(http, "oneflow_compilations_total") >= 4

    def ask(http: Http, length: int) -> Any:
        inputs = [{"name": name, "datatype": kind, "shape": [1, length], "data": [length] * length}
                  for name, kind in (("values", "INT64"), ("chosen", "INT8"))]  # fmt: skip
        return http("POST", "/v2/models/counts/infer", {"inputs": inputs})

    with ThreadPoolExecutor(4) as pool:
        first = waiting(server.url, 2, lambda http, i: ask(http, 2 + i), pool)
        for length in (2, 3):
            assert ask(http, length)[1]["outputs"][0]["data"] == [length**3]
            assert first[length - 2].result()[1]["outputs"][0]["data"] == [length**3]
    status, answer = ask(http, 4)
    assert status == 400 and "'length' must be 2 or 3, got 4" in answer["error"]


def test_how_many_rows_are_taken() -> None:
    in_proportion = rows_to_take({size: 0.1 + size for size in (1, 2, 4, 8, 16, 32)})
    assert [in_proportion[rows] for rows in (1, 2, 3, 4, 7, 15, 16, 20, 31, 32)] == [1, 2, 2, 4, 7, 15, 16, 16, 31, 32]
    whatever_the_size = rows_to_take({size: 1.0 for size in (1, 2, 4, 8, 16, 32)})
    assert all(taken == rows for rows, taken in whatever_the_size.items()) and len(whatever_the_size) == 32
    assert rows_to_take({4: 1.0}) == {1: 1, 2: 2, 3: 3, 4: 4}


def test_a_model_without_a_batch_axis(tmp_path: Path, start: Any) -> None:
    @flow.global_function()
    def whole(x: tp.Numpy.Placeholder((2, 3))) -> tp.Dict[str, tp.Numpy]:
        return {"mean": flow.math.reduce_mean(x)}

    (tmp_path / "models").mkdir()
    flow.export.stablehlo(whole, tmp_path / "models" / "fixed.stablehlo", "cpu", dynamic_axes={})
    server, http = start()
    status, answer = http.infer(np.full((2, 3), 5), "fixed")
    assert status == 200 and answer["outputs"][0] == {"name": "mean", "datatype": "FP32", "shape": [1], "data": [5.0]}
    assert http("GET", "/v2/models/fixed/config")[1]["max_batch_size"] == 0
    assert http.infer(np.zeros((1, 3)), "fixed")[0] == 400


def test_an_open_size_without_a_list_of_values_is_refused(tmp_path: Path, start: Any) -> None:
    from clients import write_counts

    write_counts(tmp_path / "models" / "counts" / "1" / "counts.stablehlo")
    with pytest.raises(ServingError, match=r'(?s)the size \'length\' of input \'values\' is open.*"sizes": {"length"'):
        start()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object"),
        ('{"max_batch": 3}', "did you mean 'max_batch_size'"),
        ('{"max_batch_size": 0}', "max_batch_size must be an int in"),
        ('{"batch_sizes": []}', "must be a list of batch sizes"),
        ('{"batch_sizes": [1, 4], "max_batch_size": 8}', "the largest of batch_sizes 4"),
        ('{"sizes": {"width": [3]}}', "lists sizes of width; the open sizes are batch"),
        ('{"versions": [2]}', "lists version 2, which is not there"),
        ('{"versions": "newest"}', '"all", how many of the newest'),
        ('{"max_delay_ms": -1}', "max_delay_ms must be a number"),
    ],
)
def test_a_bad_config_says_where_and_why(tmp_path: Path, start: Any, config: str, reason: str) -> None:
    write_affine(tmp_path / "models" / "affine" / "1" / "model.stablehlo", 3.0)
    (tmp_path / "models" / "affine" / "config.json").write_text(config)
    with pytest.raises(ServingError) as caught:
        start()
    assert "affine" in str(caught.value) and reason in str(caught.value)


def test_bad_arguments(tmp_path: Path) -> None:
    for options, reason in (
        ({"port": 70000}, "port must be an int in"), ({"timeout": 0}, "timeout must be a number > 0"),
        ({"token": "n\u00e4"}, "printable ASCII"), ({"max_batch_size": "3"}, "max_batch_size must be an int"),
        ({"batch_sizes": [1, 2], "max_batch_size": 4}, "the largest of batch_sizes 2"),
        ({"ssl_keyfile": "key.pem"}, "needs ssl_certfile"), ({"allowed_hosts": "example"}, "a list of host names"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="flow.serving.Server") as caught:
            flow.serving.Server(tmp_path, **options)
        assert reason in str(caught.value)
    with pytest.raises(ArgumentError, match="there is no directory"):
        flow.serving.Server(tmp_path / "nothing")


class Evil:
    """Raises whatever it is asked."""

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("evil")

    __repr__ = __str__ = __array__ = __len__ = __iter__ = __float__ = __int__ = __index__ = __bool__ = __eq__ = _raise
    __hash__ = __fspath__ = __getitem__ = __contains__ = _raise  # type: ignore[assignment]


@pytest.mark.parametrize("name", [name for name in inspect.signature(flow.serving.Server).parameters])
def test_hostile_arguments_are_refused_with_the_users_line(tmp_path: Path, name: str) -> None:
    huge, array = 10**5000, np.zeros((2, 2))
    for value in (Evil(), [Evil()], {"a": Evil()}, huge, -huge, float("nan"), b"\xff", array, "\0", lambda: 0):
        try:
            flow.serving.Server(**{"directory": tmp_path, name: value})
        except ArgumentError as error:
            assert "your line" in str(error) and Path(__file__).name in str(error)


def test_a_single_client_does_not_wait_for_others_unless_it_is_told_to(tmp_path: Path, start: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("oneflow.serving._settings._USUAL_DELAY", FOR_EVER)
    write_affine(tmp_path / "models" / "affine.stablehlo", 3.0)
    server, http = start()
    for _ in range(3):
        assert http.infer(row(1))[0] == 200
    _, patient = start(max_delay_ms=FOR_EVER, timeout=0.05)
    assert patient.infer(row(1))[0] == 504


@pytest.mark.timeout(120)
def test_a_program_that_ends_during_a_batch_ends_in_order() -> None:
    program = """
import asyncio, time
import jax, jax.numpy as jnp
from oneflow.runtime.process import COMPUTING_THREADS
from oneflow.serving._workers import Workers

slow = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda i, a: jnp.tanh(a @ a), x))
x = jnp.ones((700, 700))
slow.lower(x).compile()
Workers(1, COMPUTING_THREADS + "m", asyncio.new_event_loop()).start(lambda: slow(x).block_until_ready(), print)
time.sleep(0.05)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_rows_that_depend_on_each_other_are_neither_joined_nor_padded(
    tmp_path: Path, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @flow.global_function("predict")
    def centered(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.identity(x - flow.math.reduce_mean(x, axis=[0], keepdims=True), name="y")

    (tmp_path / "models").mkdir()
    flow.export.stablehlo(centered, tmp_path / "models" / "affine.stablehlo")
    with caplog.at_level("WARNING", "oneflow.serving"):
        _, http = start(batch_sizes=[1, 4], max_delay_ms=FOR_EVER)
    assert "the results of a row depend on the other rows of its batch" in caplog.text
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    status, answer = http.infer(x)
    np.testing.assert_allclose(values(answer, answer["outputs"][0]["name"]), x - x.mean(0))
    status, answer = http.infer(x[:1])  # at once: it waits for no others
    assert status == 200 and not values(answer, answer["outputs"][0]["name"]).any()
    status, answer = http.infer(x[:3])
    assert status == 400 and "must be 1 or 4, got 3" in answer["error"]
