"""``python -m benchmarks.serving.load URL MODEL CLIENTS SECONDS``: clients that each wait for their answer and ask again.

One process, because clients should take little of the machine: a connection is a protocol over uvloop whose request is a fixed
row of bytes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvloop

from .served import SERVED

WARM_UP = 0.3  # part of the time


def request(host: str, model: str, rows: np.ndarray) -> bytes:
    datatype = {"int32": "INT32", "float32": "FP32"}[str(rows.dtype)]
    entry = {"name": "x", "shape": list(rows.shape), "datatype": datatype, "parameters": {"binary_data_size": rows.nbytes}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", f"Host: {host}", "Content-Type: application/octet-stream",
             f"Content-Length: {len(head) + rows.nbytes}", f"Inference-Header-Content-Length: {len(head)}"]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode() + head + rows.tobytes()


class Client(asyncio.Protocol):
    def __init__(self, data: bytes, latencies: list[tuple[float, float]], last: dict[str, bytes]):
        self._data, self._latencies, self._last = data, latencies, last
        self._buffer, self._needed, self._begin = bytearray(), 0, 0.0
        self.stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._ask()

    def _ask(self) -> None:
        self._begin = time.perf_counter()
        self._transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._needed:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            if not head.startswith(b"http/1.1 200"):
                raise SystemExit(f"not a good answer: {bytes(self._buffer)!r}")
            self._needed = end + 4 + int(head.split(b"content-length: ")[-1].split(b"\r\n")[0])
        if len(self._buffer) >= self._needed:
            now = time.perf_counter()
            self._latencies.append((now, now - self._begin))
            self._last["answer"] = bytes(self._buffer)
            self._buffer.clear()
            self._needed = 0
            if not self.stopped:
                self._ask()


async def measure(url: str, model: str, clients: int, seconds: float) -> dict[str, float]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    rows = SERVED[model].rows(clients)
    latencies: list[tuple[float, float]] = []
    last: dict[str, bytes] = {}  # of the first client, whose row is always the same
    loop = asyncio.get_running_loop()
    running = []
    for i in range(clients):
        data, seen = request(parts.netloc, model, rows[i : i + 1]), last if i == 0 else {}
        make = partial(Client, data, latencies, seen)
        running.append((await loop.create_connection(make, parts.hostname, parts.port))[1])
    begin = time.perf_counter() + WARM_UP * seconds
    await asyncio.sleep((1 + WARM_UP) * seconds)
    end = time.perf_counter()
    for client in running:
        client.stopped = True
    await asyncio.sleep(0.2)
    kept = np.array([latency for at, latency in latencies if begin <= at <= end])
    result = np.frombuffer(last["answer"][-4 * int(np.prod(SERVED[model].result)) :], np.float32)
    return {
        "requests": len(latencies),
        "rate": len(kept) / (end - begin),
        "p50": float(np.percentile(kept, 50)),
        "p99": float(np.percentile(kept, 99)),
        "mean": float(np.abs(result).mean()),
    }


if __name__ == "__main__":
    url, model, clients, seconds = sys.argv[1:]
    print(json.dumps(uvloop.run(measure(url, model, int(clients), float(seconds)))))
