"""Small models behind a server, and requests without a client library."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

import oneflow as flow
import oneflow.typing as tp


def write_affine(path: Path, weight: float, bias: float = 0.0) -> Path:
    """A model of x (batch, 3): y = weight * x + bias, and twice that as z."""
    path.parent.mkdir(parents=True, exist_ok=True)

    @flow.global_function()
    def affine(x: tp.Numpy.Placeholder((4, 3))) -> tp.Dict[str, tp.Numpy]:
        y = x * weight + bias
        return {"y": y, "z": y + y}

    flow.export.stablehlo(affine, path, "cpu")
    flow.clear_default_session()
    return path


def write_counts(path: Path) -> Path:
    """A model of whole numbers, flags and an open length: the sum of the chosen ones."""
    path.parent.mkdir(parents=True, exist_ok=True)

    @flow.global_function()
    def counts(
        values: tp.Numpy.Placeholder((2, 5), dtype=flow.int64), chosen: tp.Numpy.Placeholder((2, 5), dtype=flow.int8)
    ) -> tp.Dict[str, tp.Numpy]:
        return {"sum": flow.math.reduce_sum(values * flow.cast(chosen, flow.int64), axis=1)}

    flow.export.stablehlo(
        counts, path, "cpu", dynamic_axes={"values": {0: "batch", 1: "length"}, "chosen": {0: "batch", 1: "length"}}
    )
    flow.clear_default_session()
    return path


class Http:
    """One connection that is kept, as a client without a library uses it."""

    def __init__(self, url: str, **headers: str):
        host = url.partition("://")[2]
        context = ssl._create_unverified_context() if url.startswith("https") else None
        self._connection = (
            http.client.HTTPSConnection(host, timeout=60, context=context)
            if context
            else http.client.HTTPConnection(host, timeout=60)
        )
        self._headers = headers
        self.headers: dict[str, str] = {}

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """The status, and the body: of JSON what it says."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(method, path, data, {k.replace("_", "-"): v for k, v in {**self._headers, **headers}.items()})
        response = self._connection.getresponse()
        content = response.read()
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        is_json = self.headers.get("content-type") == "application/json"
        return response.status, json.loads(content) if is_json else content

    def infer(self, x: Any, model: str = "affine", version: str = "", **more: Any) -> tuple[int, Any]:
        """Asks by JSON."""
        x = np.asarray(x, np.float32)
        entry = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
        path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
        return self("POST", path, {"inputs": [entry], **more})

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Http:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def values(answer: Any, name: str = "y") -> np.ndarray:
    """An output of an answer in JSON."""
    (entry,) = [entry for entry in answer["outputs"] if entry["name"] == name]
    return np.array(entry["data"], np.float32).reshape(entry["shape"])


def metric(http: Http, name: str, **labels: str) -> float:
    """A number out of /metrics; 0 where it is not there."""
    _, text = http("GET", "/metrics")
    found = [
        sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found)
