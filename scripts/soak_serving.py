"""``python scripts/soak_serving.py --seconds 600``: a server under good and bad requests, clients that leave, and reloads.

Every good request has to be answered with the values of one version, every bad one with a status of 400 to 499. Prints one line
of JSON, and ends with status 1 where that did not hold, or where the server's memory grew by more than a tenth after the first
third of the time (runs of a minute and more).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # this checkout, whether or not it is installed
import oneflow as flow  # noqa: E402
import oneflow.typing as tp  # noqa: E402

PATH = "/v2/models/affine/infer"
LONG = 60.0  # seconds from which memory is held against its bound
BAD = [
    b"", b"{", b"[" * 10_000, b'{"inputs": 3}', b'{"inputs": [{"name": "x"}]}', b"\xff" * 5000,
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1]}]}',
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [99, 3], "data": []}]}',
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": ["a", {}, null]}]}',
]  # fmt: skip


def model(bias: float, path: Path) -> bytes:
    """A model that adds ``bias`` to its input."""

    @flow.global_function()
    def affine(x: tp.Numpy.Placeholder((4, 3))) -> tp.Dict[str, tp.Numpy]:  # type: ignore[valid-type]
        return {"y": x + bias}

    flow.export.stablehlo(affine, path, "cpu")
    flow.clear_default_session()
    return path.read_bytes()


class Soak:
    """The clients of one run, and what they saw."""

    def __init__(self, host: str, biases: set[float]):
        self.host = host
        self.biases = biases
        self.seen: Counter[str] = Counter()
        self.failures: list[str] = []
        self.over = threading.Event()

    def client(self, seed: int) -> None:
        """Asks until the end."""
        choice = random.Random(seed)
        connection = http.client.HTTPConnection(self.host, timeout=120)
        try:
            while not self.over.is_set():
                kind = choice.choices(("good", "bad", "leaving"), (8, 2, 1))[0]
                self.seen[kind] += 1
                if kind == "good":
                    self.good(connection, choice)
                elif kind == "bad":
                    self.bad(connection, choice)
                else:
                    self.leaving(choice)
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def good(self, connection: http.client.HTTPConnection, choice: random.Random) -> None:
        x = np.full((choice.randint(1, 4), 3), choice.randint(0, 1000) * 10, np.float32)
        entry = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "parameters": {"binary_data_size": x.nbytes}}
        head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        connection.request("POST", PATH, head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))})
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            self.failures.append(f"a good request: {response.status} {body[:200]!r}")
            return
        y = np.frombuffer(body[int(response.headers["Inference-Header-Content-Length"]) :], np.float32).reshape(x.shape)
        found = set(np.unique(y - x).tolist())
        if len(found) != 1 or not found <= self.biases:
            self.failures.append(f"a good request: {x.tolist()} gave {y.tolist()}")

    def bad(self, connection: http.client.HTTPConnection, choice: random.Random) -> None:
        connection.request("POST", PATH, choice.choice(BAD))
        response = connection.getresponse()
        body = response.read()
        if not 400 <= response.status < 500 or not json.loads(body)["error"]:
            self.failures.append(f"a bad request: {response.status} {body[:200]!r}")

    def leaving(self, choice: random.Random) -> None:
        host, _, port = self.host.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}'
            data = f"POST {PATH} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            connection.sendall(data[: choice.randint(0, len(data))])

    def reloads(self, folder: Path, versions: list[bytes], pause: float) -> None:
        """Publishes one version after the other, and has it loaded."""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        try:
            while not self.over.wait(pause):
                self.seen["reload"] += 1
                staged = folder.parent / "staged"
                staged.write_bytes(versions[self.seen["reload"] % len(versions)])
                os.replace(staged, folder / "affine.stablehlo")
                connection.request("POST", "/v2/repository/models/affine/load")
                response = connection.getresponse()
                body = response.read()
                if response.status != 200:
                    self.failures.append(f"a reload: {response.status} {body[:200]!r}")
        except Exception as error:
            self.failures.append(f"a reload: {type(error).__name__}: {error}")
        finally:
            connection.close()


def resident(pid: int) -> int:
    """Resident memory in kB; 0 where the system does not say."""
    try:
        rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("VmRSS")), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--reload-every", type=float, default=1.0, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "models"
        folder.mkdir()
        versions = [model(float(bias), Path(name) / f"{bias}.stablehlo") for bias in range(3)]
        (folder / "affine.stablehlo").write_bytes(versions[0])
        command = [sys.executable, "-m", "oneflow.serving", str(folder), "--port", "0", "--batch-sizes", "4,16"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        with open(Path(name) / "errors", "w+") as errors:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
            assert server.stdout is not None
            soak = Soak(server.stdout.readline().removeprefix("serving at http://").strip(), {0.0, 1.0, 2.0})
            memory = run(soak, options, server.pid, folder, versions)
            server.send_signal(signal.SIGTERM)
            status = server.wait(120)
            errors.seek(0)
            logged = errors.read()
    grown = memory[-1] / memory[0] if memory[0] else 1.0
    bounded = options.seconds < LONG or grown < 1.1
    print(json.dumps({**soak.seen, "failures": len(soak.failures), "status": status, "memory_kB": memory,
                      "memory_grown": round(grown, 3), "traceback": "Traceback" in logged}))  # fmt: skip
    for failure in soak.failures[:10]:
        print(failure, file=sys.stderr)
    print(logged[-2000:], end="", file=sys.stderr)
    return 1 if soak.failures or status or "Traceback" in logged or not bounded else 0


def run(soak: Soak, options: argparse.Namespace, pid: int, folder: Path, versions: list[bytes]) -> list[int]:
    """Lets everybody ask. Returns the server's memory after one, two and three thirds of the time."""
    threads = [threading.Thread(target=soak.client, args=(seed,)) for seed in range(options.clients)]
    threads.append(threading.Thread(target=soak.reloads, args=(folder, versions, options.reload_every)))
    for thread in threads:
        thread.start()
    memory = []
    for _ in range(3):
        time.sleep(options.seconds / 3)
        memory.append(resident(pid))
    soak.over.set()
    for thread in threads:
        thread.join()
    return memory


if __name__ == "__main__":
    sys.exit(main())
