"""Weights of PyTorch modules to and from variables of jobs: names, shapes, and the order of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._base.dtype import bfloat16
from .._base.extras import need
from .._base.frames import shows_user_frames
from .._base.refuse import closest, listed, refuse, shown
from ..checkpoint.api import get_all_variables
from ..data.arrays import as_array
from ..errors import ArgumentError, DtypeError, ShapeError
from ..graph.graph import Graph, Variable
from ..graph.node import Node
from ..job import JobFunction, common_session
from ..runtime.session import as_default

Rename = Mapping[str, str] | Callable[[str], str]
Axes = tuple[int, ...]
Target = tuple[Variable, Axes | None]

# names in PyTorch, and the names that layers here may use
_KINDS = {
    "weight": ("weight", "gamma", "alpha"),
    "bias": ("bias", "beta"),
    "running_mean": ("moving_mean",),
    "running_var": ("moving_variance",),
}
_TORCH = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_VECTOR: Axes = ()  # of PReLU, whose weights are a vector in PyTorch, and have an axis for each of the input here
_IGNORED = "num_batches_tracked"
_MOST_LAYERS = 8  # in a hint


@shows_user_frames
def from_torch(
    state_dict: Mapping[str, Any],
    job: JobFunction[..., Any] | Sequence[JobFunction[..., Any]],
    rename: Rename | None = None,
    strict: bool = True,
) -> dict[str, np.ndarray]:
    """Converts the ``state_dict()`` of a PyTorch module to values for the variables of a job.

    A variable is matched by name, with ``-`` for ``.``: ``layer1.0.conv.weight`` is ``layer1-0-conv-weight``. ``weight``
    and ``bias`` of normalization layers are ``gamma`` and ``beta`` here, ``running_mean`` and ``running_var`` are
    ``moving_mean`` and ``moving_variance``; ``weight`` of PReLU is ``alpha``. Axes are permuted to the order in which the job
    uses them: a dense layer's weight is transposed if the job multiplies by (in, out) matrices; a convolution's channels are
    moved if they come last. A vector of PReLU's gets the axes of ``flow.layers.prelu``.

    Args:
      state_dict: tensors by name; ``num_batches_tracked`` is ignored.
      job: the job whose variables are meant, or a list of jobs.
      rename: a dictionary from PyTorch's names, or dotted prefixes of them, to names here; or a function from name to name.
      strict: whether a variable without a value, or a tensor without a variable, is an error; if False they are skipped.
    Returns: arrays by variable name, for ``flow.load_variables``.
    Raises:
      ArgumentError: names do not match, with ``strict``; two tensors for one variable.
      ShapeError: a tensor and its variable have different shapes.
      DtypeError: one of a tensor and its variable holds integers, the other floating-point numbers.
    Example:
      >>> @flow.global_function()
      ... def predict(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
      ...     return flow.layers.dense(x, 2, name="fc")
      >>> state_dict = {"fc.weight": np.ones((2, 4), np.float32), "fc.bias": np.zeros(2, np.float32)}
      >>> flow.load_variables(flow.interop.from_torch(state_dict, predict))
    """
    if not isinstance(state_dict, Mapping):
        refuse(ArgumentError, f"from_torch needs a state_dict, got {shown(state_dict)}", hint="module.state_dict()")
    variables = _variables(job)
    values: dict[str, np.ndarray] = {}
    taken_from: dict[str, str] = {}
    unused, misfits = [], []
    for name, tensor in state_dict.items():
        if name.rpartition(".")[2] == _IGNORED:
            continue
        target = next((n for n in _candidates(_renamed(name, rename)) if n in variables), None)
        if target is None:
            unused.append(name)
            continue
        if target in taken_from:
            refuse(ArgumentError, f"{taken_from[target]!r} and {name!r} are both for variable {target!r}")
        taken_from[target] = name
        variable, axes = variables[target]
        array = as_array(tensor, f"state_dict[{name!r}]")
        turned = _turned(array, variables[target])
        if turned.shape != variable.shape:
            how = "" if turned is array else f", permuted to {turned.shape}"
            if axes == _VECTOR and len(array) == 1:
                how = f", one for all channels: shared_axes={list(range(1, len(variable.shape) + 1))}"
            misfits.append((name, f"{array.shape}{how}; variable {target!r} is {variable.shape}"))
            continue
        values[target] = _converted(name, turned, variable)
    if misfits:
        refuse(ShapeError, f"the shapes of {len(misfits)} tensor(s) differ from those of their variables", found=misfits[:20])
    missing = [name for name in variables if name not in values]
    if strict and (missing or unused):
        _refuse_names(missing, unused, _matching_layers(state_dict, unused, {name: variables[name] for name in missing}))
    return values


@shows_user_frames
def to_torch(job: JobFunction[..., Any] | Sequence[JobFunction[..., Any]], rename: Rename | None = None) -> dict[str, Any]:
    """Converts the variables of a job to tensors for ``module.load_state_dict``: the inverse of ``from_torch``.

    Args:
      job: the job whose variables are meant, or a list of jobs.
      rename: the dictionary that ``from_torch`` takes, from PyTorch's names to ours; or a function from a dotted name to
        PyTorch's name.
    Returns: tensors with memory of their own, by PyTorch's names; without ``num_batches_tracked``, which PyTorch does not need.
    Raises:
      MissingExtraError: PyTorch is not installed.
    Example:
      >>> @flow.global_function()
      ... def predict(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
      ...     return flow.layers.dense(x, 2, name="fc")
      >>> sorted(flow.interop.to_torch(predict))   # ['fc.bias', 'fc.weight']
    """
    torch = need("torch", "flow.interop.to_torch")
    found = {}
    with as_default(common_session("flow.interop.to_torch", _jobs(job))):
        handles = get_all_variables()
    for name, (variable, axes) in _variables(job).items():
        value = handles[variable.name].numpy()
        base, _, kind = name.rpartition("-")
        kind = _TORCH.get(kind, kind)
        if axes == _VECTOR:
            value, kind = _as_vector(name, value), "weight" if kind == "alpha" else kind
        elif axes is not None:
            value = np.ascontiguousarray(value.transpose(np.argsort(axes)))
        plain = f"{base}-{kind}".lstrip("-").replace("-", ".")
        is_bfloat16 = value.dtype == bfloat16.numpy_dtype  # which torch.from_numpy does not know
        tensor = torch.from_numpy(value.view(np.int16)).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(value)
        found[_renamed_back(plain, rename)] = tensor
    return found


# --- names


def _candidates(name: str) -> list[str]:
    """The names that a variable may have here."""
    base, _, kind = name.replace(".", "-").rpartition("-")
    kinds = _KINDS.get(kind, (kind,))
    return [name, name.replace(".", "-"), *(f"{base}-{k}" if base else k for k in kinds)]


def _renamed(name: str, rename: Rename | None) -> str:
    if rename is None:
        return name
    if not isinstance(rename, Mapping):
        made = rename(name)
        if not isinstance(made, str):
            refuse(ArgumentError, f"rename({name!r}) returned {shown(made)}, which is not a name")
        return made
    return _replaced(name, rename)


def _renamed_back(name: str, rename: Rename | None) -> str:
    if rename is None or not isinstance(rename, Mapping):
        return name if rename is None else str(rename(name))
    return _replaced(name, {ours.replace("-", "."): theirs for theirs, ours in rename.items()})


def _replaced(name: str, table: Mapping[str, str]) -> str:
    """The name with its longest prefix that is in the table replaced."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        prefix = ".".join(parts[:count])
        if prefix in table:
            return ".".join([p for p in (table[prefix], *parts[count:]) if p])
    return name


def _matching_layers(state_dict: Mapping[str, Any], unused: list[str], missing: Mapping[str, Target]) -> dict[str, str]:
    """Layers of a state_dict whose tensors fit the variables of a layer here; where they fit those of several, a similar name."""
    layers: dict[str, list[str]] = {}
    for name in unused:
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    free = dict.fromkeys([name.rpartition("-")[0] or name for name in missing] + list(missing))
    found = {}
    for layer, names in layers.items():
        fitting = [ours for ours in free if all(_fits(state_dict[n], ours + n[len(layer) :], missing) for n in names)]
        chosen = fitting if len(fitting) == 1 else closest(layer.replace(".", "-"), fitting, count=1)
        if chosen:
            found[layer] = chosen[0]
            del free[chosen[0]]
    return found


def _fits(tensor: Any, name: str, variables: Mapping[str, Target]) -> bool:
    target = next((n for n in _candidates(name) if n in variables), None)
    if target is None:
        return False
    variable, _ = variables[target]
    return _turned(np.broadcast_to(0, np.shape(tensor)), variables[target]).shape == variable.shape


def _refuse_names(missing: list[str], unused: list[str], layers: Mapping[str, str]) -> None:
    found = []
    if missing:
        found.append(("no value for", listed(missing)))
    if unused:
        found.append(("no variable for", listed(unused)))
    shown_layers = ", ".join(f'"{theirs}": "{ours}"' for theirs, ours in list(layers.items())[:_MOST_LAYERS])
    more = ", ..." if len(layers) > _MOST_LAYERS else ""
    general = 'map layers with rename={"layer.there": "layer-here"}, or skip these names with strict=False'
    hint = f"rename={{{shown_layers}{more}}}" if layers else general
    refuse(ArgumentError, "the names of the state_dict and of the job's variables do not match", found=found, hint=hint)


# --- values


def _turned(array: np.ndarray, target: Target) -> np.ndarray:
    variable, axes = target
    if axes == _VECTOR:
        is_vector = array.ndim == 1 and max(variable.shape, default=1) == array.size == math.prod(variable.shape)
        return array.reshape(variable.shape) if is_vector else array
    return array.transpose(axes) if axes is not None and array.ndim == len(axes) else array


def _as_vector(name: str, value: np.ndarray) -> np.ndarray:
    if max(value.shape, default=1) != value.size:
        refuse(ShapeError, f"PyTorch's PReLU has a weight for each channel or one for all; variable {name!r} is {value.shape}",
               hint="flow.layers.prelu(x, shared_axes=[2, 3]) of images with channels first")  # fmt: skip
    return value.reshape(-1)


def _converted(name: str, array: np.ndarray, variable: Variable) -> np.ndarray:
    wanted = variable.dtype.numpy_dtype
    is_floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    if is_floating != variable.dtype.is_floating_point:
        refuse(DtypeError, f"{name!r} is {array.dtype}, but variable {variable.name!r} is {wanted}")
    return np.ascontiguousarray(array, wanted)


# --- the order of axes, from how a job uses a variable


def _jobs(given: Any) -> list[JobFunction[..., Any]]:
    jobs = list(given) if isinstance(given, (list, tuple)) else [given]
    for job in jobs:
        if not isinstance(job, JobFunction):
            refuse(ArgumentError, f"job must be a job function, or a list of them, got {shown(job)}")
    return jobs


def _variables(job: Any) -> dict[str, Target]:
    """The parameters and statistics of jobs, each with the axes by which PyTorch's tensor is transposed, or ``_VECTOR``."""
    found: dict[str, Target] = {}
    for each in _jobs(job):
        graph = each.graph
        axes = _axes_of(graph)
        for name, variable in graph.variables.items():
            if variable.role == "parameter":
                found[name] = variable, axes.get(name)
    return found


def _axes_of(graph: Graph) -> dict[str, Axes]:
    users: dict[Node, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for place, blob in enumerate(node.inputs):
            users.setdefault(blob.node, []).append((node, place))
    found: dict[str, Axes] = {}
    for name, variable in graph.variables.items():
        if variable.blob is not None and (axes := _axes_by_use(variable.blob.node, users)) is not None:
            found[name] = axes
    return found


def _axes_by_use(node: Node, users: Mapping[Node, list[tuple[Node, int]]]) -> Axes | None:
    """The permutation of the axes of PyTorch's tensor; None if the order is the same."""
    for user, place in users.get(node, ()):
        if "w_spec" in user.attrs and place == 1:
            return _of_convolution(user.attrs["w_spec"])
        if user.op.name == "matmul" and place == 1 and len(node.outputs[0].shape) == 2:
            return None if user.attrs["transpose_b"] else (1, 0)
        if user.op.name == "prelu" and place == 1:
            return _VECTOR
        is_same = len(user.inputs) == 1 and user.outputs and user.outputs[0].shape == node.outputs[0].shape
        if is_same and (axes := _axes_by_use(user, users)) is not None:  # a cast, another layout on devices
            return axes
    return None


def _of_convolution(spec: str) -> Axes | None:
    """The permutation from PyTorch's OIHW (IOHW if transposed) to the layout of a convolution's weight here, such as OHWI."""
    channels = "IO" if spec[0] == "I" else "OI"
    theirs = channels + "".join(letter for letter in spec if letter not in "OI")
    axes = tuple(theirs.index(letter) for letter in spec)
    return None if axes == tuple(range(len(axes))) else axes
