"""Runs host nodes: a batch in parts side by side where ops treat samples one by one, the rest whole."""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy as shallow_copy
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.jax import jax, jnp, prepare_lowering
from ..compiler.host_plan import distinct
from ..config import Resource
from ..data._fault import Where, fault
from ..data.records import Records
from ..errors import DataError, ExecutionError, FeatureError, ImageError, OneFlowError
from ..graph.graph import OP_TO_MIRRORED
from ..graph.node import Blob, Node
from .aligned import aligned_empty
from .pool import Pool

_log = logging.getLogger("oneflow")


class Values(dict[Node, list[Any]]):
    """The outputs of the nodes for one batch, its number of ``skipped`` images, and its ``device`` in the mirrored view."""

    skipped = 0
    device = 0


_SAMPLES_A_PART = 8  # of images: more of them, decoded, would not stay in the caches


def node_seed(node: Node, session_seed: int, copy: int = 0) -> int:
    """The seed the user gave the op, else one of the session's seed and the node's name; in the mirrored view one per device.

    Where the node runs several times per call, each run has its own.
    """
    seed = node.attrs.get("seed")
    own = [copy, *node.run] if any(node.run) else [copy] if copy else []
    if seed is not None and not own:
        return int(seed) % 2**63
    entropy = [session_seed, zlib.crc32(node.name.encode())] if seed is None else [int(seed) % 2**63]
    words = np.random.SeedSequence([*entropy, *own]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1


def located(node: Node, error: Exception, first: int = 0, batch: Mapping[Node, Sequence[Any]] | None = None) -> Exception:
    """The error of a host op, with the op and the user's line; of the same class where it is one of the library's.

    ``first`` is the batch's sample that the op's first one was: an error with an attribute ``sample`` counts from there.
    ``batch`` holds the readers' outputs, by which an error names the file that the sample came from.
    """
    kind = type(error) if isinstance(error, OneFlowError) else ExecutionError
    sample = getattr(error, "sample", None)
    which = "" if sample is None else f"element {first + sample}: "
    rows = [row for row in str(error).splitlines() if not row.startswith("  your line")]  # a thread's own is nobody's
    origin: dict[str, Any] = {}
    if sample is not None and batch and getattr(error, "file", None) is None:
        where, feature = _origin(node, batch, first + sample)
        if where is not None:
            origin = {"file": where.file, "feature": feature}
            origin |= {"record": where.record, "offset": where.offset} if where.record >= 0 else {}
            rows[1:1] = [f"  {label:<9}  {text}" for label, text in where.rows(feature)]
    if not isinstance(error, OneFlowError):
        which += f"{type(error).__name__}: "
    hints = [row for row in rows[1:] if row.startswith("  try  ")]
    rows = [row for row in rows if row not in hints]
    rows[:1] = [f"{node.op.name} {node.name!r} in job {node.graph.name!r}: {which}{rows[0] if rows else ''}"]
    text = "\n".join([*rows, f"  your line  {node.source}   {node.source.text}", *hints])
    made: Exception = kind(text)
    made.__dict__.update({**error.__dict__, **origin})
    made.__cause__ = error
    return made


def _origin(node: Node, batch: Mapping[Node, Sequence[Any]], sample: int) -> tuple[Where | None, str | None]:
    """Where a sample of a node came from, and the feature that was read; None where no reader gave it."""
    size = (node.inputs or node.outputs)[0].shape[:1]
    todo = [node]
    for reached in todo:
        for blob in reached.inputs:
            if blob.shape[:1] != size or blob.node in todo:
                continue
            given = batch.get(blob.node)
            place = getattr(given[blob.index], "where", None) if given else None
            if place is not None:
                return place(sample), reached.attrs.get("feature")
            todo.append(blob.node)
    return None, None


def _is_dense(blob: Blob) -> bool:
    return blob.dtype not in dtypes.HOST_ONLY and not blob.is_tensor_list


class Section:
    """Nodes of one host stage in the order they run: first whole, then the ones of a batch in parts, then the rest whole."""

    def __init__(
        self, nodes: Sequence[Node], wanted: Sequence[Blob], session_seed: Callable[[], int], vmapped: Collection[Node]
    ):  # fmt: skip
        """
        Args:
          wanted: the Blobs whose values somebody else needs.
          session_seed: returns the seed of the session.
          vmapped: the nodes of which each device has values of its own.
        """
        self._session_seed = session_seed
        self._vmapped = vmapped
        self._functions: dict[Node, Callable[..., Any]] = {}
        self.readers = [node for node in nodes if node.op.host is not None and node.op.host.reader]
        rest = [node for node in nodes if node not in self.readers]
        self._samples, parts = _parts(rest)
        after: set[Node] = set()
        for node in rest:
            if any(b.node in after or (b.node in parts and node not in parts) for b in node.inputs):
                after.add(node)
        parts -= after
        self._before = [node for node in rest if node not in parts and node not in after]
        self._parts = [node for node in rest if node in parts]
        self._after = [node for node in rest if node in after]
        used = [b for node in self._after for b in node.inputs] + list(wanted)
        self._exports = distinct([b for b in used if b.node in parts])
        self._random = [node for node in self._parts if node.op.host is not None and node.op.host.random is not None]
        heavy = any(b.dtype == dtypes.tensor_buffer for node in self._parts for b in node.outputs)
        self._most = _SAMPLES_A_PART if heavy else self._samples

    def run(self, values: Values, call: int, pool: Pool) -> None:
        """Adds the values of all nodes to ``values``. Raises the first error."""
        if not self._parts or (pool.count == 1 and not Resource.skip_corrupt_images):
            self._whole([*self._before, *self._parts, *self._after], values, call)
            return
        finished: SimpleQueue[BaseException | None] = SimpleQueue()
        self.start(values, call, pool, finished.put)
        error = finished.get()
        if error is not None:
            raise error

    def start(self, values: Values, call: int, pool: Pool, then: Callable[[BaseException | None], Any]) -> None:
        """As ``run``, on the pool's threads; ``then(error)`` is called at the end."""

        def finish(error: BaseException | None) -> None:
            if error is None:
                try:
                    self._whole(self._after, values, call)
                except BaseException as late:
                    error = late
            then(error)

        def begin() -> None:
            try:
                self._whole(self._before, values, call)
                if not self._parts:
                    return finish(None)
                whole = _InParts(self, values, call, finish)
            except BaseException as error:
                return then(error)
            size = max(1, min(self._most, -(-self._samples // (2 * pool.count))))
            whole.submit(range(0, self._samples, size), size, pool)

        pool.submit(begin)

    def seed(self, node: Node, copy: int) -> int:
        """The random generator of a node."""
        return node_seed(node, self._session_seed(), copy if node in self._vmapped else 0)

    def draws(self, node: Node, call: int, count: int, copy: int) -> Any:
        """The random numbers of a node at a call."""
        rule = node.op.host
        assert rule is not None and rule.random is not None
        return rule.random(self.seed(node, copy), call, count, **_attrs(node))

    def is_vmapped(self, node: Node) -> bool:
        """Whether each device has values of its own."""
        return node in self._vmapped

    def result(self, blob: Blob, copies: Sequence[Values]) -> Any:
        """A value that leaves the host stage, of all devices. Raises where it is not what the Blob promised."""
        values = [check(blob, copy[blob.node][blob.index]) for copy in copies]
        return joined(blob, values) if len(values) > 1 and blob.node in self._vmapped else values[0]

    def _whole(self, nodes: Sequence[Node], values: Values, call: int) -> None:
        for node in nodes:
            inputs = [values[b.node][b.index] for b in node.inputs]
            rule = node.op.host
            if node.op is OP_TO_MIRRORED:
                values[node] = [_piece(node, inputs[0], values.device)]
                continue
            if rule is None:
                function = self._functions.get(node) or self._functions.setdefault(node, _compiled(node))
                values[node] = list(_on_cpu(node, function, inputs, self.seed(node, values.device), call))
                continue
            more = {}
            if rule.random is not None:
                shape = (node.inputs or node.outputs)[0].shape
                more["draws"] = self.draws(node, call, shape[0], values.device)
            made = apply(node, inputs, more, batch=values)
            values[node] = [tuple(v) if b.is_tensor_list else v for b, v in zip(node.outputs, made, strict=True)]


def apply(node: Node, inputs: Sequence[Any], more: Mapping[str, Any], first: int = 0, batch: Values | None = None) -> list[Any]:
    """The outputs of one node; ``first`` and ``batch`` as for ``located``."""
    rule = node.op.host
    assert rule is not None
    try:
        made = rule.run(*inputs, **_attrs(node), **more)
    except Exception as error:
        raise located(node, error, first, batch) from error
    return list(made) if node.op.multiple_results else [made]


def _attrs(node: Node) -> dict[str, Any]:
    return {name: value for name, value in node.attrs.items() if name != "seed"}


def _parts(nodes: Sequence[Node]) -> tuple[int, set[Node]]:
    """The nodes that can run on parts of the batch, and its size."""
    found: set[Node] = set()
    count = 0
    for node in nodes:
        rule = node.op.host
        if rule is None or not rule.per_sample or not node.inputs:
            continue
        sizes = {b.shape[0] for b in (*node.inputs, *node.outputs)}
        ragged = any(b.is_dynamic and not b.is_tensor_list for b in node.inputs)  # its size is not known
        flat = all(len(b.shape) == 1 for b in (*node.inputs, *node.outputs) if b.dtype == dtypes.tensor_buffer)
        if len(sizes) == 1 and flat and not ragged and sizes <= ({count} if count else sizes):
            count = sizes.pop()
            found.add(node)
    return count, found


class _InParts:
    """One batch, on its way through the nodes that run in parts."""

    def __init__(self, section: Section, values: Values, call: int, then: Callable[[BaseException | None], None]):
        self._section = section
        self._values = values
        self._then = then
        self._count = section._samples
        self._draws = {node: section.draws(node, call, self._count, values.device) for node in section._random}
        self._lock = threading.Lock()
        self._left = 0
        self._errors: dict[int, BaseException] = {}
        self._bad: dict[int, ImageError] = {}
        self._made: dict[tuple[Node, int], Any] = {}
        for blob in section._exports:
            dense = _is_dense(blob)
            made = aligned_empty(blob.shape, blob.dtype.numpy_dtype) if dense else [None] * self._count
            self._made[blob.node, blob.index] = made

    def submit(self, starts: Sequence[int], size: int, pool: Pool) -> None:
        self._left = len(starts)
        for start in starts:
            pool.submit(partial(self._run, start, min(start + size, self._count)))

    def _run(self, start: int, end: int) -> None:
        try:
            self._try(start, end)
        except BaseException as error:
            with self._lock:
                self._errors[start] = error
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._finish()

    def _try(self, start: int, end: int) -> None:
        try:
            self._compute(start, end)
        except ImageError:
            if not Resource.skip_corrupt_images:
                raise
            for i in range(start, end):
                try:
                    self._compute(i, i + 1)
                except ImageError as error:
                    with self._lock:
                        self._bad[i] = error
                        self._values.skipped += 1
                    place = [row.strip() for row in str(error).splitlines() if row.startswith(("  file  ", "  record  "))]
                    _log.warning("oneflow: skipped an image: %s", "; ".join([str(error).splitlines()[0], *place]))

    def _compute(self, start: int, end: int) -> None:
        made = Values()
        for node in self._section._parts:
            inputs = [made[b.node][b.index] if b.node in made else self._values[b.node][b.index][start:end] for b in node.inputs]
            draws = self._draws.get(node)
            outputs = apply(node, inputs, {} if draws is None else {"draws": draws[start:end]}, start, self._values)
            made[node] = outputs
        for (node, index), target in self._made.items():
            value = made[node][index]
            if isinstance(target, np.ndarray) and (value.shape != target[start:end].shape or value.dtype != target.dtype):
                _misfit(node.outputs[index], value)
            target[start:end] = value

    def _finish(self) -> None:
        if self._errors:
            return self._then(self._errors[min(self._errors)])
        try:
            self._replace_bad()
        except BaseException as error:
            return self._then(error)
        for (node, index), made in self._made.items():
            blob = node.outputs[index]
            outputs = self._values.setdefault(node, [None] * len(node.outputs))
            outputs[index] = tuple(made) if blob.is_tensor_list else made
        self._then(None)

    def _replace_bad(self) -> None:
        if not self._bad:
            return
        good = [i for i in range(self._count) if i not in self._bad]
        if not good:
            first = self._bad[min(self._bad)]
            told, *rest = str(first).splitlines()
            raise ImageError("\n".join([f"{told}; none of the {self._count} images of the batch can be used", *rest])) from first
        stand_ins = {i: next((g for g in good if g > i), good[0]) for i in self._bad}
        for made in [*self._made.values(), *self._made_before()]:
            for i, stand_in in stand_ins.items():
                made[i] = made[stand_in]

    def _made_before(self) -> Iterator[Any]:
        """Copies of what readers give, in place of it: labels and boxes belong to their images."""
        for node in (*self._section.readers, *self._section._before):
            outputs = self._values[node]
            for blob in node.outputs:
                value = outputs[blob.index]
                if blob.shape[:1] == (self._count,) and isinstance(value, (np.ndarray, list)):
                    outputs[blob.index] = shallow_copy(value)
                    yield outputs[blob.index]


def _misfit(blob: Blob, value: np.ndarray) -> None:
    node = blob.node
    raise located(
        node, DataError(f"it gave {value.dtype}{list(value.shape)} for {len(value)} samples of a Blob {blob.describe()}")
    )


def _piece(node: Node, value: Any, copy: int) -> Any:
    """The part of a whole value that one device has."""
    size = len(value) // node.scope.placement.parallel_num
    return value[copy * size : (copy + 1) * size] if node.attrs["pieces"] else value


def joined(blob: Blob, copies: Sequence[Any]) -> Any:
    """The values of all devices as one: stacked, or, of different shapes, a tuple."""
    if not _is_dense(blob) or len({value.shape for value in copies}) > 1:
        return tuple(copies)
    made = aligned_empty((len(copies), *copies[0].shape), copies[0].dtype)
    np.stack(copies, out=made)
    return made


def check_labels(blob: Blob, loss: Node, value: np.ndarray, batch: Values) -> None:
    """Raises FeatureError for a label that is not a class of the loss, naming the record that it came from."""
    assert loss.op.labels is not None
    classes = loss.inputs[loss.op.labels[1]].shape[-1]
    if not value.size or (value.min() >= 0 and value.max() < classes):
        return
    i = int(np.flatnonzero((value < 0) | (value >= classes))[0])
    sample = i // max(value.size // len(value), 1)
    sources = [outputs[0] for outputs in batch.values() if isinstance(outputs[0], Records) and len(outputs[0]) == len(value)]
    where = sources[0].where(sample) if sources else None
    rule = f"sample {sample} of a batch has label {value.reshape(-1)[i]}, and there are {classes} classes, counted from 0"
    raise located(loss, fault(FeatureError, rule, where, feature=blob.node.attrs.get("feature")))


def check(blob: Blob, value: Any) -> Any:
    """A value that leaves the host stage. Raises where it is not what the Blob promised: fixed shape and dtype."""
    if _is_dense(blob):
        fits = value.dtype == blob.dtype.numpy_dtype and (blob.is_dynamic or value.shape == blob.shape)
        if not fits:
            _misfit(blob, value)
    return value


class HostArray:
    """A value that no device made, where a device's array is expected. It is ready when the step of its call is."""

    __slots__ = ("array", "_after")

    def __init__(self, array: np.ndarray, after: Sequence[Any] = ()):
        self.array = array
        self._after = after

    def is_ready(self) -> bool:
        """True: the value is on the host already."""
        return all(a.is_ready() for a in self._after)

    def block_until_ready(self) -> HostArray:
        """Returns at once: the value is on the host already."""
        for array in self._after:
            array.block_until_ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype) if copy else np.asarray(self.array, dtype)


def deliverable(value: Any, after: Sequence[Any]) -> Any:
    """An array or a tensor list, in the form that results are made of."""
    return tuple(deliverable(v, after) for v in value) if isinstance(value, tuple) else HostArray(value, after)


# --- ops of the device, upstream of a host op


def _compiled(node: Node) -> Callable[..., Any]:
    op, attrs = node.op, dict(node.attrs)
    prepare_lowering()
    if op.random:
        return jax.jit(lambda key, *arrays: op.define(*arrays, key=key, **attrs))
    return jax.jit(lambda *arrays: op.define(*arrays, **attrs))


def _on_cpu(node: Node, function: Callable[..., Any], inputs: Sequence[Any], seed: int, call: int) -> tuple[Any, ...]:
    try:
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            keys = []
            if node.op.random:
                key = jax.random.key(np.uint32(seed & 0xFFFFFFFF), impl="threefry2x32")
                keys = [jax.random.fold_in(key, jnp.uint32(call & 0xFFFFFFFF))]
            made = function(*keys, *inputs)
            return tuple(np.array(a) for a in (made if node.op.multiple_results else (made,)))
    except Exception as error:
        raise located(node, error) from error
