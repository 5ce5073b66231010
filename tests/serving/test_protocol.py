"""The protocol: a stock client, plain JSON, binary data, and requests that are refused with the reason."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from clients import Http, metric, values, write_affine, write_counts
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

import oneflow as flow

X = np.arange(6, dtype=np.float32).reshape(2, 3)
INPUT = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.ravel().tolist()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[flow.serving.Server]:
    models = tmp_path_factory.mktemp("models")
    write_affine(models / "affine.stablehlo", 2.0, 1.0)
    write_counts(models / "counts" / "3" / "model.stablehlo")
    (models / "counts" / "config.json").write_text('{"sizes": {"length": [5, 8]}, "batch_sizes": [2]}')
    with flow.serving.Server(models, port=0, batch_sizes=[1, 4], max_body=1 << 20) as server:
        yield server


@pytest.fixture
def http(server: flow.serving.Server) -> Iterator[Http]:
    with Http(server.url) as http:
        yield http


# --- clients


def test_a_stock_client_works_unchanged(server: flow.serving.Server) -> None:
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("affine") and client.is_model_ready("counts", "3") and not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "oneflow"
    metadata = client.get_model_metadata("counts")
    assert metadata["versions"] == ["3"] and metadata["outputs"] == [{"name": "sum", "datatype": "INT64", "shape": [-1]}]
    assert {"name": "values", "datatype": "INT64", "shape": [-1, -1]} in metadata["inputs"]
    assert client.get_model_config("affine")["max_batch_size"] == 4
    assert {(m["name"], m["state"]) for m in client.get_model_repository_index()} == {("affine", "READY"), ("counts", "READY")}
    x = triton.InferInput("x", [2, 3], "FP32").set_data_from_numpy(X)
    for binary in (True, False):
        x.set_data_from_numpy(X, binary_data=binary)
        wanted = [triton.InferRequestedOutput(name, binary_data=not binary) for name in ("z", "y")]
        for outputs, compression in ((None, None), (wanted, "gzip"), (wanted[:1], "deflate")):
            result = client.infer("affine", [x], outputs=outputs, request_id="seven", timeout=10**7,
                                  request_compression_algorithm=compression)  # fmt: skip
            np.testing.assert_allclose(result.as_numpy("z"), 4 * X + 2)
            assert result.get_response()["id"] == "seven" and result.get_response()["model_version"] == "1"
            assert (result.as_numpy("y") is None) == (outputs == wanted[:1])
    statistics = client.get_inference_statistics("affine")["model_stats"][0]
    assert statistics["inference_count"] >= 12 and statistics["inference_stats"]["success"]["count"] >= 6
    with pytest.raises(InferenceServerException, match="the model has no input 'q'; its inputs are 'x'"):
        client.infer("affine", [triton.InferInput("q", [1], "FP32").set_data_from_numpy(np.zeros(1, np.float32))])
    client.close()


def test_several_threads_of_asynchronous_requests(server: flow.serving.Server) -> None:
    client = triton.InferenceServerClient(server.url.removeprefix("http://"), concurrency=4)
    rows = [np.full((1 + i % 4, 3), i, np.float32) for i in range(24)]
    handles = [client.async_infer("affine", [triton.InferInput("x", row.shape, "FP32").set_data_from_numpy(row)]) for row in rows]
    for row, handle in zip(rows, handles, strict=True):
        np.testing.assert_allclose(handle.get_result().as_numpy("y"), 2 * row + 1)
    client.close()


def test_plain_json_flat_and_nested(http: Http) -> None:
    for data in (X.ravel().tolist(), X.tolist(), X.astype(int).tolist()):
        status, answer = http("POST", "/v2/models/affine/versions/1/infer", {"inputs": [{**INPUT, "data": data}]})
        assert status == 200 and answer["model_name"] == "affine"
        np.testing.assert_allclose(values(answer), 2 * X + 1)


def test_plain_binary_data_of_64_and_8_bits_and_sizes_of_a_list(http: Http) -> None:
    for length in (5, 8):
        numbers, chosen = np.arange(length, dtype=np.int64)[None] + 2**40, np.ones((1, length), np.int8)
        inputs = [{"name": name, "datatype": kind, "shape": [1, length], "parameters": {"binary_data_size": a.nbytes}}
                  for name, kind, a in (("values", "INT64", numbers), ("chosen", "INT8", chosen))]  # fmt: skip
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        status, body = http("POST", "/v2/models/counts/infer", head + numbers.tobytes() + chosen.tobytes(),
                            Inference_Header_Content_Length=str(len(head)))  # fmt: skip
        assert status == 200
        length_of_head = int(http.headers["inference-header-content-length"])
        assert json.loads(body[:length_of_head])["outputs"][0]["shape"] == [1]
        assert np.frombuffer(body[length_of_head:], np.int64) == numbers.sum()


def test_large_json_is_read_beside_the_event_loop(http: Http) -> None:
    body = json.dumps({"inputs": [INPUT]}).encode() + b" " * (512 << 10)
    assert http("POST", "/v2/models/affine/infer", body)[0] == 200


# --- what is refused


def changed(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{k: v for k, v in {**INPUT, **changes}.items() if v is not None}]}


BAD: list[tuple[Any, str]] = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"inputs": [NaN]}', "NaN is not JSON"),
    ([], "must be a JSON object, got []"),
    ({}, "needs a list of inputs"),
    ({"inputs": {}}, "needs a list of inputs"),
    ({"inputs": [3]}, "a JSON object with a name"),
    ({"inputs": []}, "lacks input 'x'"),
    ({"inputs": [INPUT, INPUT]}, "'x' is there twice"),
    (changed(name="y"), "no input 'y'"),
    (changed(datatype="FP64"), "has datatype FP32, got 'FP64'"),
    (changed(datatype=["FP32"]), "has datatype FP32"),
    (changed(shape=[2, 4]), "has shape [batch, 3], got [2, 4]"),
    (changed(shape=[6]), "has 2 axes, [batch, 3]"),
    (changed(shape=[5, 3]), "'batch' must be from 1 to 4, got 5"),
    (changed(shape=[0, 3], data=[]), "'batch' must be from 1 to 4, got 0"),
    (changed(shape=[-1, 3]), "a size must be a whole number"),
    (changed(shape=[2.0, 3]), "a size must be a whole number"),
    (changed(shape=[10**30, 3]), "a size must be a whole number"),
    (changed(shape=[True, 3]), "a size must be a whole number"),
    (changed(shape="23"), "a list of sizes"),
    (changed(shape=[1] * 100), "a list of sizes"),
    (changed(data=None), "needs data"),
    (changed(data="abc"), "needs data"),
    (changed(data=[1, 2]), "its data has shape [2]"),
    (changed(data=[[1, 2], [3, 4], [5, 6]]), "its data has shape [3, 2]"),
    (changed(data=[[1, 2, 3], [4]]), "flat list, or nested"),
    (changed(data=["1"] * 6), "must be numbers"),
    (changed(data=[None] * 6), "must be numbers"),
    (changed(data=[True] * 6), "must be numbers"),
    (changed(data=[1.5, True, 0, 0, 0, 0]), "must be numbers"),
    (changed(data=[[1.5, 0, 0], [0, 0, False]]), "must be numbers"),
    (changed(data=[{}] * 6), "must be numbers"),
    (changed(data=[1e39] * 6), "outside the range of FP32"),
    (changed(data=[10**400] * 6), "must be numbers"),
    (changed(parameters={"binary_data_size": 24}), "both data and binary_data_size"),
    (changed(parameters={"binary_data_size": 23}, data=None), "has 24 bytes; binary_data_size is 23"),
    (changed(parameters={"binary_data_size": 24}, data=None), "needs 24 bytes behind the JSON, where 0 are left"),
    (changed(parameters={"binary_data_size": True}, data=None), "binary_data_size is true"),
    (changed(parameters=[1]), "must be a JSON object"),
    (changed(parameters={"shared_memory_region": "a"}), "shared memory is not supported"),
    ({"inputs": [INPUT], "outputs": 3}, "outputs must be a list"),
    ({"inputs": [INPUT], "outputs": ["y"]}, "a JSON object with a name"),
    ({"inputs": [INPUT], "outputs": [{"name": "w"}]}, "no output 'w'; its outputs are 'y', 'z'"),
    ({"inputs": [INPUT], "outputs": [{"name": "y"}, {"name": "y"}]}, "'y' is there twice"),
    ({"inputs": [INPUT], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "must be true or false"),
    ({"inputs": [INPUT], "outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classification"),
    ({"inputs": [INPUT], "id": 3}, "id must be a string"),
    ({"inputs": [INPUT], "parameters": {"timeout": "soon"}}, "a number of microseconds"),
    ({"inputs": [INPUT], "parameters": {"sequence_id": 5}}, "sequences of requests"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_bad_request_is_told_why(http: Http, number: int) -> None:
    body, reason = BAD[number]
    status, answer = http("POST", "/v2/models/affine/infer", body)
    assert status == 400 and reason in answer["error"] and "Traceback" not in answer["error"]
    assert http.infer(X)[0] == 200  # on the same connection


def test_bad_lengths_and_encodings(http: Http) -> None:
    good = json.dumps({"inputs": [INPUT]}).encode()
    path = "/v2/models/affine/infer"
    for headers, body, status, reason in (
        ({"Inference_Header_Content_Length": "x"}, good, 400, "a number of bytes"),
        ({"Inference_Header_Content_Length": "-1"}, good, 400, "a number of bytes"),
        ({"Inference_Header_Content_Length": "9999"}, good, 400, "and the body has"),
        ({"Inference_Header_Content_Length": str(len(good))}, good + b"abc", 400, "3 bytes behind the JSON belong to no input"),
        ({"Content_Encoding": "gzip"}, good, 400, "not gzip data"),
        ({"Content_Encoding": "gzip"}, gzip.compress(good)[:-9], 400, "in the middle"),
        ({"Content_Encoding": "gzip"}, gzip.compress(good) + gzip.compress(b"xx"), 400, "bytes behind its gzip data"),
        ({"Content_Encoding": "br"}, good, 415, "not supported"),
        ({"Content_Encoding": "gzip"}, gzip.compress(b" " * (2 << 20)), 413, "decompressed body"),
    ):
        found, answer = http("POST", path, body, **headers)
        assert found == status and reason in answer["error"]
    # Far more than what the buffers of two sockets hold: the client still sends while the answer is written.
    assert http("POST", path, b" " * (32 << 20))[0] == 413
    http.close()
    assert http("POST", path, gzip.compress(good), Content_Encoding="gzip")[0] == 200


def test_paths_and_methods(http: Http) -> None:
    for method, path, status in (
        ("GET", "/v2/models/affine/infer", 405), ("POST", "/v2", 405), ("GET", "/nothing", 404), ("GET", "/v2/models/none", 404),
        ("POST", "/v2/models/none/infer", 404), ("POST", "/v2/models/affine/versions/2/infer", 404),
        ("POST", "/v2/models/affine/versions/x/infer", 404), ("GET", "/v2/models/affine/versions/" + "9" * 5000, 404),
        ("POST", "/v2/models/affine/versions/01/infer", 404),
        ("GET", "/v2/models/affine/other", 404), ("GET", "/v2/models/%2e%2e%2fetc/ready", 404), ("GET", "/v2/models", 404),
        ("POST", "/v2/repository/models/..%2f..%2fetc/load", 404), ("POST", "/v2/repository/models/none/load", 404),
        ("POST", "/v2/repository/models/none/unload", 404), ("GET", "/v2/models/affine/ready", 200), ("GET", "/v2/", 200),
        ("HEAD", "/v2/health/live", 200), ("GET", "/v2/models/stats", 200), ("GET", "/v2/models/counts/versions/3/stats", 200),
    ):  # fmt: skip
        found, answer = http(method, path, b"{}" if method == "POST" else None)
        assert found == status and (status == 200 or answer["error"]), path
    status, answer = http("POST", "/v2/repository/models/affine/load", {"parameters": {"config": "{}"}})
    assert status == 400 and "configurations and files in requests are not taken" in answer["error"]
    for path in ("/v2/repository/models/affine/load", "/v2/repository/index"):
        for body in (b"[]", b"3", b"{"):
            assert http("POST", path, body)[0] == 400, (path, body)


def test_values_that_json_cannot_express(http: Http) -> None:
    large = np.full((1, 3), 3e38, np.float32)
    status, answer = http.infer(large)
    assert status == 422 and "ask for it as binary data" in answer["error"]
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": large.ravel().tolist()}
    status, body = http("POST", "/v2/models/affine/infer", {"inputs": [entry], "parameters": {"binary_data_output": True}})
    assert status == 200 and np.isinf(np.frombuffer(body[-24:], np.float32)).all()


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_no_request_reaches_a_traceback(server: flow.serving.Server, data: st.DataObject) -> None:
    entry = dict(INPUT)
    entry[data.draw(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]))] = data.draw(anything)
    body: Any = {"inputs": [entry]}
    if data.draw(st.booleans()):
        body[data.draw(st.sampled_from(["inputs", "outputs", "parameters", "id"]))] = data.draw(anything)
    text = json.dumps(body).encode()
    with Http(server.url) as http:
        for sent in (text, text[: data.draw(st.integers(0, len(text)))]):
            assert http("POST", "/v2/models/affine/infer", sent)[0] in (200, 400, 422)


def test_nothing_was_compiled_while_all_this_was_answered(server: flow.serving.Server, http: Http) -> None:
    """Any number of rows, from several threads: the programs were there before."""
    before = metric(http, "oneflow_compilations_total")
    assert before >= 2 + 2

    def ask(rows: int) -> None:
        with Http(server.url) as own:
            for _ in range(4):
                status, answer = own.infer(np.full((rows, 3), rows))
                assert status == 200 and (values(answer) == 2 * rows + 1).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, (1, 2, 3, 4)))
    assert metric(http, "oneflow_compilations_total") == before
    assert metric(http, "oneflow_http_responses_total", status="500") == 0
