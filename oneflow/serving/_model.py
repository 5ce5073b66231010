"""One version of a model: read, compiled for every size that its requests may have, and run on batches."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ExportError
from ..export import ExportedFunction, load
from ._protocol import InferRequest, Tensor, datatype_of, sized
from ._settings import ModelSettings

_MOST_PROGRAMS = 256
_CONVERSION_SECONDS = 600.0
_SAVED_MODELS = ("saved_model.pb", "saved_model.prototxt", "saved_model.json")

Key = tuple[int, ...]  # the open sizes of a request, the batch excepted


class Model:
    """A compiled version of a model. It is immutable, and several threads may run it.

    Attributes:
      inputs, outputs: what requests give and get.
      batch: the name of the batch axis, along which requests are joined; None where they are run one by one.
      batch_sizes: the sizes that batches are padded to.
      platform: the format that it was read from.
    """

    def __init__(self, name: str, version: str, exported: ExportedFunction, settings: ModelSettings, platform: str):
        self.name = name
        self.version = version
        self.settings = settings
        self.platform = platform
        self.batch = _batch_axis(exported)
        self.batch_sizes = settings.compiled_batches if self.batch else (1,)
        accepted = _accepted(exported, settings, self.batch)
        self._rest = tuple(size for size in accepted if size != self.batch)
        self.inputs = [Tensor(s.name, s.dtype, s.shape, accepted) for s in exported.inputs]
        self.outputs = [Tensor(s.name, s.dtype, s.shape, accepted) for s in exported.results]
        for tensor in (*self.inputs, *self.outputs):
            _want_datatype(tensor)
        self._programs = self._compile(exported, accepted)

    def _compile(
        self, exported: ExportedFunction, accepted: Mapping[str, Sequence[int]]
    ) -> dict[tuple[Key, int], Callable[..., list[Any]]]:
        keys = list(itertools.product(*(accepted[size] for size in self._rest)))
        if len(keys) * len(self.batch_sizes) > _MOST_PROGRAMS:
            raise ExportError(f"model {self.name!r} would be compiled for {len(keys) * len(self.batch_sizes)} combinations of "
                              f"sizes, more than {_MOST_PROGRAMS}; list fewer in its config.json")  # fmt: skip
        made = {}
        for key in keys:
            for rows in self.batch_sizes:
                sizes = dict(zip(self._rest, key, strict=True)) | ({self.batch: rows} if self.batch else {})
                program = exported.compile(sizes)
                # the first run allocates, and shows that the model works
                for result in program(*(np.zeros(sized(t.shape, sizes), t.dtype) for t in self.inputs)):
                    result.block_until_ready()
                made[key, rows] = program
        return made

    @property
    def programs(self) -> int:
        """How many programs were compiled."""
        return len(self._programs)

    @property
    def max_batch_size(self) -> int:
        """The most rows of a request; 0 where the model has no batch axis."""
        return self.batch_sizes[-1] if self.batch else 0

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
        if self.batch:
            made["dynamic_batching"] = {"preferred_batch_size": list(self.batch_sizes),
                                        "max_queue_delay_microseconds": round(self.settings.max_delay * 1e6)}  # fmt: skip
        return made


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


def _batch_axis(exported: ExportedFunction) -> str | None:
    """The open size that is the first of all inputs and results, and occurs nowhere else."""
    tensors = [*exported.inputs, *exported.results]
    first = {spec.shape[0] if spec.shape else None for spec in tensors}
    name = next(iter(first))
    if len(first) != 1 or not isinstance(name, str) or not name.isidentifier() or not exported.inputs:
        return None
    others = {n for spec in tensors for size in spec.shape[1:] for n in _names(size)}
    return None if name in others else name


def _names(size: int | str) -> set[str]:
    """The open sizes in an expression such as ``2*length``."""
    if isinstance(size, int):
        return set()
    return {node.id for node in ast.walk(ast.parse(size.replace("^", "**"), mode="eval")) if isinstance(node, ast.Name)}


def _accepted(exported: ExportedFunction, settings: ModelSettings, batch: str | None) -> dict[str, Sequence[int]]:
    """The values that each open size of a model's inputs may have."""
    given = dict(settings.sizes)
    made: dict[str, Sequence[int]] = {}
    for spec in exported.inputs:
        for size in spec.shape:
            if not isinstance(size, str) or size in made:
                continue
            if size == batch:
                made[size] = range(1, settings.compiled_batches[-1] + 1)
            elif size in given:
                made[size] = given[size]
            else:
                raise ExportError(f"the size {size!r} of input {spec.name!r} is open, and the model is compiled before it is "
                                  f'served\n  try        "sizes": {{"{size}": [...]}} in config.json, with the values to '
                                  "compile")  # fmt: skip
    unknown = sorted(given.keys() - made.keys())
    if unknown:
        raise ExportError(f"config.json lists sizes of {', '.join(unknown)}; the open sizes are {', '.join(made) or 'none'}")
    return made


# --- files


def read_model(name: str, version: str, path: Path, settings: ModelSettings) -> Model:
    """Reads and compiles a version.

    Args:
      path: a StableHLO file, a directory with one, or a checkpoint's directory.
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
        return _of_checkpoint(name, version, path, settings)
    if any((path / file).exists() for file in _SAVED_MODELS):
        raise ExportError(f"{path} is a saved model, which the server cannot read yet\n"
                          "  try        flow.export.stablehlo")  # fmt: skip
    if (path / "snapshot_done").exists() or any(p.suffix == ".safetensors" for p in path.iterdir()):
        raise ExportError(f"{path} is a checkpoint, which does not say how the model computes\n"
                          '  try        "job": "script.py:name" in config.json')  # fmt: skip
    raise ExportError(f"{path} has no model\n  try        flow.export.stablehlo(job, {str(path / 'model.stablehlo')!r})")


def _of_checkpoint(name: str, version: str, path: Path, settings: ModelSettings) -> Model:
    """The job of a script with the weights of a checkpoint. The script runs in a process of its own."""
    weights = sorted(path.glob("*.safetensors"))
    if len(weights) > 1:
        raise ExportError(f"{path} has several files of weights: {', '.join(p.name for p in weights)}")
    with tempfile.TemporaryDirectory(prefix="oneflow-serving-") as folder:
        file = Path(folder) / "model.stablehlo"
        command = [sys.executable, "-m", "oneflow.serving._convert", str(settings.job), str(weights[0] if weights else path),
                   str(file), *settings.arguments]  # fmt: skip
        # on the CPU: the device's memory belongs to the models that are being served
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        try:
            done = subprocess.run(command, cwd=path.parent, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, errors="replace", timeout=_CONVERSION_SECONDS)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ExportError(f"the job {settings.job!r} was not exported within {_CONVERSION_SECONDS:.0f} s") from None
        if done.returncode or not file.exists():
            said = done.stderr.strip()[-2000:]
            raise ExportError(f"the job {settings.job!r} could not be exported:\n{said}")
        return Model(name, version, load(file), settings, "oneflow_job")
