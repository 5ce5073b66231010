"""One version of a model: read, compiled for every size that its requests may have, and run on batches."""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .._base import native
from .._base.jax import jax
from ..compiler.native import NO_CPU
from ..errors import ExportError
from ..export import ExportedFunction, load
from ..runtime import devices
from ..saved_model._disk import META, SavedVersion
from . import _protocol as protocol
from ._native import ask, read_native
from ._protocol import InferRequest, Tensor, datatype_of, sized
from ._settings import ModelSettings
from ._sizes import accepted_sizes, batch_axis, combinations

logger = logging.getLogger("oneflow.serving")
_TIMED_RUNS = 3
_HANDLED = 50  # requests that are timed together
# Rows that take so many times as long as parsing their request and encoding its answer: measured, with 32 clients on two cores,
# one thread was better for 20 to 25 of them, as good for 30 to 45, and worse for 80.
_LIGHT = 40
_CLEARLY = 0.85
_CONVERSION_SECONDS = 600.0

Key = tuple[int, ...]  # the open sizes of a request, the batch excepted


class Model:
    """A compiled version of a model. It is immutable, and several threads may run it.

    Attributes:
      inputs, outputs: what requests give and get.
      batch: the name of the batch axis, along which requests are joined; None where they are run one by one.
      batch_sizes: the sizes that batches are padded to.
      mixes_rows: a row's results depend on the other rows of its batch. Then requests are run one by one and without padding.
      platform: the format that it was read from.
      without_native: why XLA computes its convolutions and products; "" where the native part does.
      sharing: as how many programs at the same time the native part shares the cores with, of those offered.
    """

    def __init__(
        self,
        name: str,
        version: str,
        exported: ExportedFunction,
        settings: ModelSettings,
        platform: str,
        without_native: str = "StableHLO is computed by XLA",
        sharing: Sequence[int] = (1,),
    ):
        self.name = name
        self.version = version
        self.settings = settings
        self.platform = platform
        self.without_native = without_native
        self.batch = batch_axis(exported)
        self.batch_sizes = settings.compiled_batches if self.batch else (1,)
        accepted = accepted_sizes(exported, settings, self.batch)
        self._rest = tuple(size for size in accepted if size != self.batch)
        self.inputs = [Tensor(s.name, s.dtype, s.shape, accepted) for s in exported.inputs]
        self.outputs = [Tensor(s.name, s.dtype, s.shape, accepted) for s in exported.results]
        for tensor in (*self.inputs, *self.outputs):
            _want_datatype(tensor)
        self.sharing = self._best_sharing(exported, sharing)
        with native.sharing_cores(self.sharing):
            self._programs, seconds = self._compile(exported)
        self.mixes_rows = self.max_batch_size > 1 and self._mixes_rows(combinations(exported, settings)[-1])
        if self.mixes_rows:
            accepted = {**accepted, str(self.batch): self.batch_sizes}
            self.inputs = [replace(tensor, accepted=accepted) for tensor in self.inputs]
            logger.warning(
                "model %r, version %s: the results of a row depend on the other rows of its batch: requests are run one by one, "
                "with as many rows as one of its batch sizes\n  try        an export with a fixed batch (dynamic_axes={}), or "
                '"batch_sizes" in config.json: %s are compiled',
                name, version, ", ".join(map(str, self.batch_sizes)),
            )  # fmt: skip
        self._taken = rows_to_take(seconds) if self.batch else {1: 1}

    def _compile(self, exported: ExportedFunction) -> tuple[dict[tuple[Key, int], Callable[..., list[Any]]], dict[int, float]]:
        """The programs, and how long each batch size takes in seconds, at the first of the other sizes."""
        made = {}
        seconds: dict[int, float] = {}
        for sizes in combinations(exported, self.settings):
            key, rows = tuple(sizes[name] for name in self._rest), sizes[self.batch] if self.batch else 1
            program = exported.compile(sizes)
            arrays = [np.zeros(sized(t.shape, sizes), t.dtype) for t in self.inputs]
            _run(program, arrays)  # the first run allocates, and shows that the model works
            if rows not in seconds:
                seconds[rows] = min(_run(program, arrays) for _ in range(_TIMED_RUNS))
            made[key, rows] = program
        return made, seconds

    def _mixes_rows(self, sizes: Mapping[str, int]) -> bool:
        """Whether the first row's results change with the others, found by trying: with zeros, and with ones in the others."""
        program = self._programs[tuple(sizes[name] for name in self._rest), sizes[str(self.batch)]]
        zeros = [np.zeros(sized(t.shape, sizes), t.dtype) for t in self.inputs]
        others = [array.copy() for array in zeros]
        for array in others:
            array[1:] = 1
        results = zip(program(*zeros), program(*others), strict=True)
        firsts = [[np.asarray(a)[:1].astype(np.float64) for a in pair] for pair in results]
        return not all(np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True) for one, other in firsts)

    @property
    def joins_requests(self) -> bool:
        """Whether requests may share a batch."""
        return self.settings.batching and not self.mixes_rows

    def _best_sharing(self, exported: ExportedFunction, choices: Sequence[int]) -> int:
        """How many programs are to share the cores: the most, so that each has one thread, if rows are light.

        Batches of light rows are ready before the requests of the next one have been read; more threads would take cores from
        the event loop.
        """
        fewest, most = min(choices), max(choices)
        if fewest == most:
            return fewest
        sizes = combinations(exported, self.settings)[-1]
        with native.sharing_cores(most):
            program = exported.compile(sizes)
        arrays = [np.zeros(sized(t.shape, sizes), t.dtype) for t in self.inputs]
        results = [np.asarray(result) for result in program(*arrays)]
        computing = min(_alone(lambda: _run(program, arrays)) for _ in range(_TIMED_RUNS)) / self.batch_sizes[-1]
        rows = 1 if self.batch else None
        given, answer = [a[:rows] for a in arrays], [a[:rows] for a in results]
        handling = min(self._handle(given, answer) for _ in range(_TIMED_RUNS))
        return most if computing <= _LIGHT * handling else fewest

    def _handle(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        """The seconds of CPU time for reading a request with these arrays, and for writing its answer."""
        inputs = [{"name": t.name, "datatype": t.datatype, "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}}
                  for t, a in zip(self.inputs, arrays, strict=True)]  # fmt: skip
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        binary = memoryview(b"".join(a.tobytes() for a in arrays))
        began = time.thread_time()  # the event loop may be busy meanwhile
        for _ in range(_HANDLED):
            request = protocol.parse(protocol.parsed_json(head), binary, self.inputs, self.outputs)
            protocol.encode(request, results, self.outputs, self.name, self.version)
        return (time.thread_time() - began) / _HANDLED

    @property
    def threads(self) -> int:
        """The most threads of the native part that a batch is computed by; 0 where XLA computes it."""
        library = native.part().library
        return 0 if self.without_native or library is None else max(1, library.threads // self.sharing)

    @property
    def programs(self) -> int:
        """How many programs were compiled."""
        return len(self._programs)

    @property
    def max_batch_size(self) -> int:
        """The most rows of a request; 0 where the model has no batch axis."""
        return self.batch_sizes[-1] if self.batch else 0

    def to_take(self, rows: int) -> int:
        """How many of so many waiting rows the next batch should have."""
        return self._taken[min(rows, self.batch_sizes[-1])]

    def key(self, request: InferRequest) -> Key:
        """Requests with the same key may be joined."""
        return tuple(request.sizes[size] for size in self._rest)

    def rows(self, request: InferRequest) -> int:
        """How much of a batch a request takes."""
        return request.sizes[self.batch] if self.batch else 1

    def run(self, requests: Sequence[InferRequest]) -> tuple[list[list[np.ndarray]], int]:
        """Runs one batch.

        Returns: for each request its results, in the order of ``outputs``; and the size that the batch was padded to.
        """
        if self.batch is None:
            (request,) = requests
            return [[np.asarray(a) for a in self._programs[self.key(request), 1](*request.arrays)]], 1
        counts = [self.rows(request) for request in requests]
        total = sum(counts)
        padded = next(size for size in self.batch_sizes if size >= total)
        joined = [_joined([r.arrays[i] for r in requests], total, padded) for i in range(len(self.inputs))]
        results = [np.asarray(a) for a in self._programs[self.key(requests[0]), padded](*joined)]
        ends = list(itertools.accumulate(counts))
        return [[a[end - n : end] for a in results] for n, end in zip(counts, ends, strict=True)], padded

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """The protocol's description of the model."""
        return {"name": self.name, "versions": list(versions), "platform": self.platform,
                "inputs": [t.described() for t in self.inputs],
                "outputs": [t.described() for t in self.outputs]}  # fmt: skip

    def config(self) -> dict[str, Any]:
        """The configuration, in the form that Triton's clients know."""

        def described(tensor: Tensor) -> dict[str, Any]:
            sizes = tensor.described()["shape"][1 if self.batch else 0 :]
            kind = {"BOOL": "TYPE_BOOL"}.get(tensor.datatype, f"TYPE_{tensor.datatype}")
            return {"name": tensor.name, "data_type": kind, "dims": sizes}

        made = {"name": self.name, "platform": self.platform, "backend": "oneflow", "max_batch_size": self.max_batch_size,
                "input": [described(t) for t in self.inputs], "output": [described(t) for t in self.outputs]}  # fmt: skip
        if self.batch and self.joins_requests:
            made["dynamic_batching"] = {"preferred_batch_size": list(self.batch_sizes),
                                        "max_queue_delay_microseconds": round(self.settings.longest_delay * 1e6)}  # fmt: skip
        kernels = f"XLA: {self.without_native}" if self.without_native else "native part"
        mixing = {"mixes_rows": "true"} if self.mixes_rows else {}
        parameters = {"kernels": kernels, **mixing, **({"native_threads": str(self.threads)} if self.threads else {})}
        return {**made, "parameters": {name: {"string_value": value} for name, value in parameters.items()}}


def _run(program: Callable[..., list[Any]], arrays: Sequence[np.ndarray]) -> float:
    """Runs a program, and returns the seconds that it took."""
    began = time.perf_counter()
    for result in program(*arrays):
        result.block_until_ready()
    return time.perf_counter() - began


def _alone(run: Callable[[], float]) -> float:
    """The seconds that work of one thread takes, also where other processes are busy."""
    began, cpu = time.perf_counter(), time.process_time()
    seconds = run()
    elapsed, busy = time.perf_counter() - began, time.process_time() - cpu
    return seconds * min(1.0, busy / elapsed)


def rows_to_take(seconds: Mapping[int, float]) -> dict[int, int]:
    """For each number of waiting rows, how many the next batch should have.

    All of them, padded to the next size, unless the largest size that they fill and then the others take clearly less time:
    20 rows as 16 and 4 rather than as 32.

    Args:
      seconds: how long a batch takes, by its size.

    >>> rows_to_take({16: 2.0, 4: 1.0, 32: 4.0})[20]   # 16
    """
    sizes = sorted(seconds)
    cost: dict[int, float] = {0: 0.0}
    taken: dict[int, int] = {}
    for rows in range(1, sizes[-1] + 1):
        padded = next(size for size in sizes if size >= rows)
        filled = max((size for size in sizes if size <= rows), default=0)
        cost[rows], taken[rows] = seconds[padded], rows
        if 0 < filled < rows and seconds[filled] + cost[rows - filled] < _CLEARLY * seconds[padded]:
            cost[rows], taken[rows] = seconds[filled] + cost[rows - filled], filled
    return taken


def _joined(arrays: Sequence[np.ndarray], total: int, padded: int) -> np.ndarray:
    """The rows of all arrays, and the last one again as often as the padding needs it."""
    if len(arrays) == 1 and total == padded:
        return arrays[0]
    made = np.empty((padded, *arrays[0].shape[1:]), arrays[0].dtype)
    np.concatenate(arrays, out=made[:total])
    made[total:] = made[total - 1]
    return made


def _want_datatype(tensor: Tensor) -> None:
    try:
        datatype_of(tensor.dtype)
    except ValueError as error:
        raise ExportError(f"{tensor.name!r} cannot be served: {error}") from error


# --- files


def read_model(name: str, version: str, path: Path, settings: ModelSettings, in_flight: int = 1) -> Model:
    """Reads and compiles a version.

    Args:
      in_flight: how many batches of it may run at the same time.
      path: a StableHLO file, a directory with one, a version of a saved model, or a checkpoint's directory.
    Raises: an error of the library that says why the version cannot be served.
    """
    if path.is_file():
        return Model(name, version, load(path), settings, "oneflow_stablehlo")
    exported = sorted(p for p in path.iterdir() if p.suffix == ".stablehlo")
    if len(exported) > 1:
        raise ExportError(f"{path} has several models: {', '.join(p.name for p in exported)}")
    if exported:
        return Model(name, version, load(exported[0]), settings, "oneflow_stablehlo")
    if settings.job is not None:
        return _of_checkpoint(name, version, path, settings, in_flight)
    if any((path / f"{META}{suffix}").exists() for suffix in (".pb", ".prototxt")):
        function, without_native = _of_saved_model(path)
        sharing = (1,) if without_native else _sharing(in_flight)
        return Model(name, version, function, settings, "oneflow_saved_model", without_native, sharing)
    if (path / "snapshot_done").exists() or any(p.suffix == ".safetensors" for p in path.iterdir()):
        raise ExportError(f"{path} is a checkpoint, which does not say how the model computes\n"
                          '  try        "job": "script.py:name" in config.json')  # fmt: skip
    raise ExportError(f"{path} has no model\n  try        flow.export.stablehlo(job, {str(path / 'model.stablehlo')!r})")


def _sharing(in_flight: int) -> tuple[int, ...]:
    """As how many programs may share the cores: those in flight, or one per core."""
    library = native.part().library
    threads = 1 if library is None else int(library.threads)
    return tuple(sorted({min(in_flight, threads), threads}))


def _of_saved_model(path: Path) -> tuple[ExportedFunction, str]:
    """The default signature of the default graph, on the device that JAX chooses; and why without the native part, or ""."""
    saved = SavedVersion(path)
    graph = saved.graph(None, None, tag="cpu")
    weights = graph.weights(saved.weights(), saved.checkpoint) if graph.has_variables else {}
    function = graph.function(weights, devices.local_devices("gpu" if devices.gpus_are_real() else "cpu", 1))
    return function, graph.specialise(function)


def _of_checkpoint(name: str, version: str, path: Path, settings: ModelSettings, in_flight: int) -> Model:
    """The job of a script with the weights of a checkpoint. The script runs in a process of its own."""
    weights = sorted(path.glob("*.safetensors"))
    if len(weights) > 1:
        raise ExportError(f"{path} has several files of weights: {', '.join(p.name for p in weights)}")
    with tempfile.TemporaryDirectory(prefix="oneflow-serving-") as folder:
        file = Path(folder) / "model.stablehlo"
        on_cpu = jax.default_backend() == "cpu"
        sharing = _sharing(in_flight)
        if on_cpu:
            ask(file, settings, sharing)
        command = [sys.executable, "-m", "oneflow.serving._convert", str(settings.job), str(weights[0] if weights else path),
                   str(file), *settings.arguments]  # fmt: skip
        # on the CPU: the device's memory belongs to the models that are being served
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        try:
            done = subprocess.run(command, cwd=settings.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, errors="replace", timeout=_CONVERSION_SECONDS)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ExportError(f"the job {settings.job!r} was not exported within {_CONVERSION_SECONDS:.0f} s") from None
        if done.returncode or not file.exists():
            said = done.stderr.strip()[-2000:]
            raise ExportError(f"the job {settings.job!r} could not be exported:\n{said}")
        exported = load(file)
        without_native = read_native(exported, file) if on_cpu else NO_CPU
        return Model(name, version, exported, settings, "oneflow_job", without_native, (1,) if without_native else sharing)
