"""StableHLO by ``jax.export``: a predict job as a file that JAX runs without this library, and such files back."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .._base import check
from .._base.arrays import fitted
from .._base.dtype import from_numpy
from .._base.extras import need
from .._base.files import read_regular
from .._base.frames import shows_user_frames
from .._base.jax import jax, jax_export
from .._base.refuse import refuse, shown
from .._base.whole_files import exporting
from ..checkpoint import safetensors
from ..compiler.precision import narrowed
from ..errors import ArgumentError, ExportError, FeedDtypeError, FeedError, FeedShapeError
from ..graph.graph import OP_VARIABLE
from ..graph.node import Blob, Node
from ._axes import is_open
from ._files import LARGEST_FILE, as_path
from ._job import DynamicAxes, ExportedJob, exported_job, is_wide, mapped

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@shows_user_frames
def stablehlo(
    job: Any,
    path: str | os.PathLike[str],
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    *,
    dynamic_axes: DynamicAxes = None,
    external_data: bool = False,
    weights: Any = None,
) -> None:
    """Writes a predict job as StableHLO, which JAX runs without this library.

    ``jax.export.deserialize(bytearray(open(path, "rb").read())).call(x)`` runs it. It takes the job's parameters by position,
    and returns the job's results in the same nesting. Random ops, assignments and ops on the host cannot be exported.

    Args:
      job: a predict job.
      path: the file; an existing one is replaced.
      platforms: where it can run: some of "cpu", "cuda", "rocm" and "tpu".
      dynamic_axes: the open sizes, which the caller chooses: input -> {axis: name}, or input -> list of axes; axes of the same
        name have the same size. By default the batch axis, named "batch", of all inputs that share the first one's batch size.
        ``{}`` fixes every size. A bound may be added for sizes other than the batch, such as height >= 4.
      external_data: write the weights to a safetensors file of the same name beside ``path``; the exported function then
        takes a dict of them as its first argument. By default they are inside.
      weights: the values to write: a checkpoint's path, or a dict of name -> array; None for the current ones.
    Returns: None.
    Raises:
      ExportError: a train job; ops that cannot be exported, all of them with their lines; an op that ties an open size to a
        number; the file cannot be written.
      CheckpointError: weights are missing, or have another shape or dtype.
      ArgumentError: not a job, or a wrong value of another argument.
      MissingExtraError: the extra [export] is not installed.
    Example: >>> flow.export.stablehlo(job, "model.stablehlo")
    """
    what = "flow.export.stablehlo"
    need("flatbuffers", what)
    chosen, file = _platforms(what, platforms), as_path(what, path)
    model = exported_job(what, job, reason=unexportable, dynamic_axes=dynamic_axes, weights=weights, format="StableHLO")
    exported = dataclasses.replace(traced(what, model, chosen, inside=not external_data), fun_name=_signature(model))
    data = exported.serialize()
    if external_data:
        extra = {"job": model.name, "model": file.name}
        safetensors.write(_weights_beside(file), {name: model.weights[name] for name in model.variables}, extra)
    with exporting(what, file) as staged:
        staged.write_bytes(data)


def traced(what: str, model: ExportedJob, platforms: Sequence[str], *, inside: bool) -> Any:
    """The job as ``jax.export`` has it: a function of the inputs, or of a dict of weights and the inputs unless ``inside``."""
    function, specs = _function(model, inside=inside)
    try:
        with jax.enable_x64(is_wide(model)):
            return jax_export.export(jax.jit(function), platforms=platforms)(*specs)
    except Exception as error:
        _refuse_sizes(what, model, error)


def unexportable(node: Node) -> str | None:
    """Why StableHLO cannot express a node; None where it can."""
    return "it waits, in Python code" if node.op.name == "sleep_identity" else None


def _refuse_sizes(what: str, model: ExportedJob, error: Exception) -> NoReturn:
    """Refuses a job that JAX cannot lower, most likely because a size has to be a number."""
    found = [("because", (str(error) or type(error).__name__).splitlines()[0])]
    found += [("open", f"{name} (declared {size})") for name, size in model.sizes.declared.items()]
    refuse(ExportError, f"{what}: JAX cannot export job {model.name!r}", found=found, cause=error,
           hint="fixed sizes: dynamic_axes={}" if model.sizes.declared else "")  # fmt: skip


def _platforms(what: str, given: Any) -> list[str]:
    chosen = [given] if isinstance(given, str) else list(given) if isinstance(given, (list, tuple)) else []
    if not chosen or any(not isinstance(p, str) or p not in PLATFORMS for p in chosen):
        refuse(ArgumentError, f"{what}: platforms must be out of {', '.join(map(repr, PLATFORMS))}, got {shown(given)}")
    return chosen


def _weights_beside(file: Path) -> Path:
    return file.with_suffix(".safetensors")


def _signature(model: ExportedJob) -> str:
    """``lenet(images) -> (logits)``: kept in the file as the name of the function. Results are in JAX's order of leaves."""
    names = {(blob.node, blob.index): name for name, blob in model.results}
    results = jax.tree.leaves(mapped(model.returns, lambda blob: names[blob.node, blob.index]))
    return f"{model.name}({', '.join(s.label for s in model.inputs)}) -> ({', '.join(results)})"


def _function(model: ExportedJob, *, inside: bool) -> tuple[Callable[..., Any], list[Any]]:
    """The function to export, and what it takes."""
    structs = [jax.ShapeDtypeStruct(model.sizes.of(s.blob), s.dtype.numpy_dtype) for s in model.inputs]
    if inside:
        weights = {name: model.weights[name] for name in model.variables}
        return partial(_run, model, weights), structs
    declared = {name: jax.ShapeDtypeStruct(v.shape, v.dtype.numpy_dtype) for name, v in model.variables.items()}
    return partial(_run, model), [declared, *structs]


def _run(model: ExportedJob, weights: Mapping[str, Any], *inputs: Any) -> Any:
    """The job's results, computed op by op with XLA's lowerings."""
    values: dict[Node, tuple[Any, ...]] = {s.blob.node: (x,) for s, x in zip(model.inputs, inputs, strict=True)}

    def value(blob: Blob) -> Any:
        if blob.node.op is OP_VARIABLE:
            return weights[blob.node.attrs["variable"]]
        return values[blob.node][blob.index]

    for node in model.order:
        define = partial(node.op.define, **model.sizes.attrs_of(node))
        made = narrowed(node, model.precision.get(node), define)(*map(value, node.inputs))
        values[node] = tuple(made) if node.op.multiple_results else (made,)
    return mapped(model.returns, lambda blob: jax.numpy.asarray(value(blob)))


# --- back


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or a result: its name, its sizes (open ones by their names), its dtype."""

    name: str
    shape: tuple[int | str, ...]
    dtype: Any


class ExportedFunction:
    """A model that was exported as StableHLO. Calling it with arrays runs it on JAX's default device.

    Attributes:
      name: the name of the job.
      inputs, results: name, shape and dtype of each, in order; open sizes have names.
      platforms: the platforms that it was exported for.
    Example: >>> logits = flow.export.load("model.stablehlo")(images)
    """

    def __init__(self, exported: Any, weights: Mapping[str, np.ndarray] | None):
        self._exported = exported
        self._weights: Any = None if weights is None else dict(weights)
        self._wide = any(a.dtype.itemsize == 8 for a in (*exported.in_avals, *exported.out_avals))
        self._call = jax.jit(exported.call)
        name, inputs, results = _names(exported, weights is not None)
        avals = exported.in_avals[0 if weights is None else len(weights) :]
        self.name = name
        self.inputs = [_spec(n, aval) for n, aval in zip(inputs, avals, strict=True)]
        self.results = [_spec(n, aval) for n, aval in zip(results, exported.out_avals, strict=True)]
        self.platforms = tuple(exported.platforms)
        self._specialised: Callable[[Mapping[str, int]], Any] | None = None
        self._programs: dict[tuple[tuple[str, int], ...], Callable[..., list[Any]]] = {}
        self._compiling = threading.Lock()
        self._prepared: dict[bytes, Any] = {}  # prepared values by their digests: those of different sizes are often the same

    def _specialise(self, made: Callable[[Mapping[str, int]], Any]) -> None:
        """Makes ``compile`` compile ``made(sizes)``, a ``Specialised`` of the module ``_native``."""
        self._specialised = made

    @shows_user_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the results as ndarrays, in the job's nesting.

        Raises: FeedError (wrong number or names), FeedShapeError, FeedDtypeError.
        """
        arrays = [self._checked(spec, value) for spec, value in zip(self.inputs, self._positional(args, kwargs), strict=True)]
        opened = self._open_sizes(arrays)
        problem: Exception
        try:
            if self._specialised is not None:
                return jax.tree.unflatten(self._exported.out_tree, map(np.asarray, self._program(opened)(*arrays)))
            placed = self._placed(arrays)
            given = placed if self._weights is None else [self._placed_weights(), *placed]
            with jax.enable_x64(self._wide):
                return jax.tree.map(np.asarray, self._call(*given))
        except (ValueError, ExportError) as error:  # JAX could not compile it for these sizes
            problem = error
        shapes = ", ".join(f"{spec.name} of shape {array.shape}" for spec, array in zip(self.inputs, arrays, strict=True))
        refuse(FeedShapeError, f"the model {self.name!r} does not work for {shapes}", cause=problem,
               found=[("because", str(problem).splitlines()[0])])  # fmt: skip

    def compile(self, sizes: Mapping[str, int]) -> Callable[..., list[Any]]:
        """Compiles the model ahead of time.

        Args:
          sizes: the value of each open size.
        Returns: a function of the inputs, arrays of exactly these sizes and dtypes, by position. It returns the results as JAX's
          arrays in the order of ``results``, does not wait for them, and never compiles.
        Raises: ArgumentError (other sizes than the open ones), ExportError (the model does not work for these sizes, or not on
          this platform). The function raises FeedError, FeedShapeError and FeedDtypeError.
        """
        opened = {size for spec in self.inputs for size in spec.shape if isinstance(size, str)}
        if not isinstance(sizes, Mapping) or set(sizes) != opened:
            refuse(ArgumentError, f"model {self.name!r}: sizes must be a dict with a value for each of "
                   f"{', '.join(sorted(opened)) or 'no open sizes'}; got {shown(sizes)}")  # fmt: skip
        for name, value in sizes.items():
            _, problem = check.integer(value, low=1)
            if problem:
                refuse(ArgumentError, f"model {self.name!r}: the size {name!r} {problem}")
        shapes = [tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape) for spec in self.inputs]
        given = [jax.ShapeDtypeStruct(shape, spec.dtype) for shape, spec in zip(shapes, self.inputs, strict=True)]
        wide = self._wide
        failure: Exception | None = None
        try:
            call, first = self._function(sizes)
            with jax.enable_x64(wide):
                program = jax.jit(lambda *args: jax.tree.leaves(call(*args))).lower(*first, *given).compile()
        except Exception as error:
            failure = error
        if failure is not None:
            _refuse_compilation(self.name, sizes, failure)

        def run(*arrays: Any) -> list[Any]:
            self._check_for_program(arrays, given)
            with jax.enable_x64(wide):
                return list(program(*first, *arrays))

        return run

    def _program(self, sizes: Mapping[str, int]) -> Callable[..., list[Any]]:
        """``compile``, once for the same sizes."""
        key = tuple(sorted(sizes.items()))
        found = self._programs.get(key)
        if found is None:
            with self._compiling:
                found = self._programs.get(key) or self._programs.setdefault(key, self.compile(sizes))
        return found

    def _function(self, sizes: Mapping[str, int]) -> tuple[Callable[..., Any], list[Any]]:
        """What ``compile`` compiles, and its arguments before the inputs."""
        if self._weights is None:
            return self._exported.call, []
        weights = self._placed_weights()
        if self._specialised is None:
            return self._exported.call, [weights]
        made = self._specialised(sizes)
        with jax.enable_x64(self._wide):
            prepared = tuple(map(self._shared, jax.jit(made.prepare)(weights)))
        return made.run, [{name: weights[name] for name in made.variables}, prepared]

    def _shared(self, prepared: Any) -> Any:
        """One array for all prepared values that are equal."""
        digest = hashlib.blake2b(np.ascontiguousarray(prepared).tobytes(), digest_size=32)
        digest.update(f"{prepared.dtype}{prepared.shape}".encode())
        return self._prepared.setdefault(digest.digest(), prepared)

    def _placed_weights(self) -> Any:
        """The weights on the device, where they are moved once."""
        if not isinstance(next(iter(self._weights.values()), None), jax.Array):
            with jax.enable_x64(self._wide):
                self._weights = jax.device_put(self._weights)
        return self._weights

    def _placed(self, arrays: Sequence[np.ndarray]) -> Sequence[Any]:
        """The inputs where they are computed with; JAX moves them there."""
        return arrays

    def _positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        names = [spec.name for spec in self.inputs]
        rest = names[len(args) :]
        if len(args) > len(names) or set(rest) != kwargs.keys():
            refuse(FeedError, f"model {self.name!r} takes {', '.join(names) or 'nothing'}; it was given "
                   f"{len(args)} arrays{' and ' + ', '.join(kwargs) if kwargs else ''}")  # fmt: skip
        return [*args, *(kwargs[name] for name in rest)]

    def _checked(self, spec: TensorSpec, value: Any) -> np.ndarray:
        array = np.asarray(value)
        fits = len(spec.shape) == array.ndim and all(
            isinstance(size, str) or size == found for size, found in zip(spec.shape, array.shape, strict=True)
        )
        if not fits:
            refuse(
                FeedShapeError, f"model {self.name!r}: {spec.name} has shape {_listed(spec.shape)}, and was given {array.shape}"
            )
        if array.dtype != spec.dtype:
            if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
                refuse(FeedDtypeError, f"model {self.name!r}: {spec.name} is {spec.dtype}, and was given {array.dtype}")
            fits_range = fitted(array, spec.dtype)
            if fits_range is None:
                rule = f"some of the {array.dtype} values that it was given are outside its range"
                refuse(FeedDtypeError, f"model {self.name!r}: {spec.name} is {spec.dtype}, and {rule}")
            array = fits_range
        return array

    def _check_for_program(self, arrays: Sequence[Any], given: Sequence[jax.ShapeDtypeStruct]) -> None:
        """Raises where an array for a compiled program is not what it takes."""
        if len(arrays) != len(given):
            refuse(FeedError, f"model {self.name!r} takes {len(given)} inputs, and was given {len(arrays)}")
        for spec, array, one in zip(self.inputs, arrays, given, strict=True):
            if getattr(array, "shape", None) != one.shape:
                found = getattr(array, "shape", type(array).__name__)
                rule = f"model {self.name!r} was compiled for {spec.name} of shape {one.shape}, and was given {found}"
                refuse(FeedShapeError, rule)
            if array.dtype != one.dtype:
                refuse(FeedDtypeError, f"model {self.name!r}: {spec.name} is {one.dtype}, and was given {array.dtype}")

    def _open_sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """The values of the open sizes. Raises FeedShapeError where inputs disagree."""
        sizes: dict[str, int] = {}
        for spec, array in zip(self.inputs, arrays, strict=True):
            for name, size in zip(spec.shape, array.shape, strict=True):
                if isinstance(name, str) and sizes.setdefault(name, size) != size:
                    refuse(
                        FeedShapeError, f"model {self.name!r}: {spec.name} has {size} for {name!r}, another input {sizes[name]}"
                    )
        return sizes

    def __repr__(self) -> str:
        shown = ", ".join(f"{s.name}: {s.dtype}{_listed(s.shape)}" for s in self.inputs)
        return f"<exported {self.name}({shown}) for {', '.join(self.platforms)}>"


def _refuse_compilation(name: str, sizes: Mapping[str, int], error: Exception) -> NoReturn:
    at = f" for {', '.join(f'{n} = {v}' for n, v in sizes.items())}" if sizes else ""
    refuse(ExportError, f"the model {name!r} cannot be compiled{at}", cause=error,
           found=[("because", (str(error) or type(error).__name__).splitlines()[0])])  # fmt: skip


def _listed(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _spec(name: str, aval: Any) -> TensorSpec:
    return TensorSpec(name, tuple(str(size) if is_open(size) else size for size in aval.shape), np.dtype(aval.dtype))


def _names(exported: Any, with_weights: bool) -> tuple[str, list[str], list[str]]:
    """Names of the function, its inputs and results: from the signature, or by number where there is none."""
    count = len(exported.in_avals)
    text = exported.fun_name
    head, found, tail = text.partition(") -> (")
    name, bracket, labels = head.partition("(")
    inputs = labels.split(", ") if labels else []
    results = tail.removesuffix(")").split(", ")
    if not (found and bracket):
        first = math.prod([0]) if not with_weights else len(first_argument(exported))
        return text, [f"input_{i}" for i in range(count - first)], [f"output_{i}" for i in range(len(exported.out_avals))]
    return name, inputs, results


def first_argument(exported: Any) -> Any:
    """The first argument of an exported function: for a dict of weights, the position of each by name."""
    args, _ = jax.tree.unflatten(exported.in_tree, range(len(exported.in_avals)))
    return args[0] if args else None


@shows_user_frames
def load(path: str | os.PathLike[str]) -> ExportedFunction:
    """Reads a file that ``flow.export.stablehlo`` wrote.

    Args:
      path: the file. Weights that are not inside are read from the safetensors file beside it.
    Returns: an ``ExportedFunction``, to be called with arrays.
    Raises: ExportError (no such file, not StableHLO, or weights are missing), MissingExtraError.
    Example: >>> logits = flow.export.load("model.stablehlo")(images)
    """
    what = "flow.export.load"
    need("flatbuffers", what)
    file = as_path(what, path)
    try:
        data = bytearray(read_regular(file, LARGEST_FILE))
    except OSError as error:
        refuse(ExportError, f"{what}: {str(file)!r} cannot be read: {error.strerror}")
    except MemoryError:
        refuse(ExportError, f"{what}: {str(file)!r} cannot be read: there is no memory for its content")
    try:
        exported = jax_export.deserialize(data)
        has_weights_beside = isinstance(first_argument(exported), dict)
    except Exception as error:
        _refuse_file(what, file, error)
    weights = _read_weights(what, file, exported) if has_weights_beside else None
    try:
        return ExportedFunction(exported, weights)
    except Exception as error:  # names, shapes and dtypes that do not go together
        _refuse_file(what, file, error)


def _refuse_file(what: str, file: Path, error: Exception) -> NoReturn:
    refuse(ExportError, f"{what}: {str(file)!r} is not a file that flow.export.stablehlo wrote, or one of a newer JAX",
           found=[("because", (str(error) or type(error).__name__).splitlines()[0])], cause=error)  # fmt: skip


def _read_weights(what: str, file: Path, exported: Any) -> dict[str, np.ndarray]:
    beside = _weights_beside(file)
    if not os.path.lexists(beside):
        refuse(ExportError, f"{what}: the weights of {str(file)!r} are missing", found=[("expected", str(beside))])
    stored = safetensors.File(beside)
    wanted = first_argument(exported)
    missing = [name for name in wanted if name not in stored]
    if missing:
        refuse(ExportError, f"{what}: {str(beside)!r} lacks {', '.join(missing[:10])}")
    arrays = {name: stored[name].numpy() for name in wanted}
    for name, position in wanted.items():
        aval, array = exported.in_avals[position], arrays[name]
        if aval.shape != array.shape or aval.dtype != array.dtype:
            refuse(ExportError, f"{what}: {name!r} in {str(beside)!r} is {from_numpy(array.dtype).name}{list(array.shape)}, "
                   f"and the model needs {aval.dtype}{list(aval.shape)}")  # fmt: skip
    return arrays
