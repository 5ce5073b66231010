"""The results of a job: its return annotation is read, and what its body returned is matched with it. Needs no session."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from .._base import dtype as dtypes
from .._base.refuse import refuse, shown
from .._base.source import Source, of_function
from ..errors import AnnotationError, ReturnError
from ..graph.node import Blob
from .inputs import DEEPEST, ArrayKind, ListListNumpy, ListNumpy, is_named_tuple
from .parameters import annotations_required, job_name, resolve, spell

T = TypeVar("T")


class Callback(Generic[T]):
    """``-> tp.Callback[T]``: a call returns a function that expects one callback, which later gets the value T."""

    __module__ = "oneflow.typing"


class Bundle(Generic[T]):
    """``-> tp.Bundle[tp.Numpy]``: any nesting of lists, tuples and dicts, each leaf as T."""

    __module__ = "oneflow.typing"


# --- the annotation


@dataclass(frozen=True, slots=True)
class LeafOf:
    kind: str


@dataclass(frozen=True, slots=True)
class TupleOf:
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Tree


@dataclass(frozen=True, slots=True)
class DictOf:
    key: Any
    item: Tree


@dataclass(frozen=True, slots=True)
class BundleOf:
    kind: str


Tree = LeafOf | TupleOf | ListOf | DictOf | BundleOf


@dataclass(frozen=True, slots=True)
class ReturnSpec:
    """A return annotation, read. ``tree`` is None for ``-> None``, ``-> Callback[None]`` and for jobs without annotation."""

    callback: bool
    tree: Tree | None
    annotated: bool
    annotation: Any = None
    source: Source | None = None


_ALLOWED_RETURN = (
    "None, tp.Numpy, tp.ListNumpy, tp.ListListNumpy, typing.Tuple[...], List[T], Dict[K, T] of these, "
    "tp.Bundle[<one of the three>], tp.Callback[<any of these>]"
)


def parse_return(annotation: Any, function: Callable[..., Any] | None = None) -> ReturnSpec:
    """Reads a return annotation (``inspect.Signature.empty`` for none).

    Args:
      annotation: the function's; a string is evaluated where the function was written.
      function: the job's function, for errors.
    Raises:
      AnnotationError: it is none that jobs have; the text names the job, the annotation, and what is allowed.
    """
    name = job_name(function) if function is not None else "job"
    source = of_function(inspect.unwrap(function)) if function is not None else None

    def wrong(part: Any, why: str = "") -> NoReturn:
        inside = "" if part is annotation else f" in {spell(annotation)}"
        refuse(AnnotationError, f"job {shown(name)}: invalid return annotation {spell(part)} found{inside}{why}",
               found=[("allowed", _ALLOWED_RETURN)], hint=_return_hint(part), source=source)  # fmt: skip

    def known(part: Any) -> Any:
        return part if function is None or source is None else resolve(part, function, f"the result of job {shown(name)}", source)

    def tree(part: Any, outermost: bool = False) -> Tree:
        part = known(part)
        if isinstance(part, type) and issubclass(part, ArrayKind) and part is not ArrayKind:
            return LeafOf(part.kind)
        origin, args = typing.get_origin(part), typing.get_args(part)
        if origin is tuple and args and Ellipsis not in args:
            return TupleOf(tuple(tree(a) for a in args))
        if origin is list and len(args) == 1 and not isinstance(args[0], TypeVar):
            return ListOf(tree(args[0]))
        if origin is dict and len(args) == 2 and not isinstance(args[0], TypeVar):
            return DictOf(known(args[0]), tree(args[1]))
        if origin is Bundle:
            if not outermost:
                wrong(part, ": a Bundle cannot be inside a container")
            leaf = known(args[0])
            if not (isinstance(leaf, type) and issubclass(leaf, ArrayKind)):
                wrong(part, ": a Bundle holds one of the three array types")
            return BundleOf(leaf.kind)
        wrong(part)

    if annotation is inspect.Signature.empty:
        if annotations_required():
            refuse(AnnotationError, f"job {shown(name)} has no return annotation", hint=f"-> {_ALLOWED_RETURN}", source=source)
        return ReturnSpec(False, None, False, source=source)
    annotation = known(annotation)
    callback = typing.get_origin(annotation) is Callback
    inner = known(typing.get_args(annotation)[0]) if callback else annotation
    empty = inner is None or inner is type(None)
    return ReturnSpec(callback, None if empty else tree(inner, True), True, annotation, source)


def _return_hint(part: Any) -> str:
    if part is Callback or part is Bundle:
        return f"tp.{part.__name__}[tp.Numpy]"
    if isinstance(part, type) and part.__name__ == "ndarray":
        return "tp.Numpy, which stands for one ndarray"
    if part is tuple or part is typing.Tuple or typing.get_origin(part) is tuple:  # noqa: UP006
        return "typing.Tuple[tp.Numpy, tp.Numpy]: one entry per element"
    return ""


# --- what a body returned


class Matched(NamedTuple):
    """``rebuild(values)`` puts one value per leaf back into the returned nesting; ``kinds`` are "Numpy", ..., or "local"."""

    leaves: list[Blob]
    rebuild: Callable[[Sequence[Any]], Any]
    kinds: list[str]


def match_return(spec: ReturnSpec, returned: Any, job_name: str) -> Matched:
    """Checks what a body returned against its annotation.

    Raises:
      ReturnError: they do not match; it names what was found, where in the nesting, and what was expected.
    """
    match = _Match(spec, returned, job_name)
    structure = match.whole()
    return Matched(match.leaves, _rebuilder(structure, len(match.leaves)), match.kinds)


class _Match:
    """The walk over what a body returned, beside its annotation. It replaces each Blob by a slot in ``leaves``."""

    def __init__(self, spec: ReturnSpec, returned: Any, job_name: str):
        self._spec, self._returned, self._job_name = spec, returned, job_name
        self.leaves: list[Blob] = []
        self.kinds: list[str] = []

    def whole(self) -> Any:
        """The nesting, with a slot for each Blob; None where nothing is returned."""
        spec, returned = self._spec, self._returned
        if not spec.annotated:
            return self._free(returned, "local", "")
        if spec.tree is not None:
            return self._follow(spec.tree, returned, "")
        if returned is not None:
            self._wrong("", _typed(returned), "None", "annotate what the job returns, e.g. -> tp.Numpy")
        return None

    def _wrong(self, where: str, found: str, expected: str, hint: str = "") -> NoReturn:
        place = f"at result{where}: " if where else ""
        if self._spec.annotated:
            rule = f"does not match return annotation {spell(self._spec.annotation)} of global_function {self._job_name}"
        else:
            rule = f"cannot be returned by global_function {self._job_name}"
        refuse(ReturnError, f"{_show(self._returned)} {rule}", found=[("found", place + found), ("expected", expected)],
               hint=hint, source=self._spec.source)  # fmt: skip

    def _form_hint(self, value: Any, otherwise: str = "") -> str:
        """The annotation that the whole result has, where ``value``, a part of it, is None or Blobs; else ``otherwise``."""
        if value is not None and not _annotation_for(value, "Numpy"):
            return otherwise
        kind = next(_kinds(self._spec.tree), "Numpy") if self._spec.tree is not None else "Numpy"
        form = "None" if self._returned is None else _annotation_for(self._returned, kind)
        if not form:
            return ""
        form = f"tp.Callback[{form}]" if self._spec.callback else form
        if self._returned is None:
            return f"end the body with a return statement, or annotate it with -> {form}"
        return f"annotate the job with -> {form}"

    def _leaf(self, value: Any, kind: str, where: str) -> _Slot:
        if not isinstance(value, Blob):
            self._wrong(where, _typed(value), "a Blob", self._form_hint(value, _NO_BLOB))
        if kind == "Numpy" and (value.is_dynamic or value.is_tensor_list):
            other = ListListNumpy if value.is_tensor_list else ListNumpy
            found = f"{value.op_name!r}, whose shape varies from call to call"
            self._wrong(where, found, "a Blob of fixed shape", f"-> tp.{other.__name__}")
        if kind == "ListNumpy" and value.is_tensor_list:
            self._wrong(where, f"{value.op_name!r}, a list of tensors", "a tensor", "-> tp.ListListNumpy")
        if kind == "ListListNumpy" and not value.is_tensor_list:
            self._wrong(where, f"{value.op_name!r}, a tensor", "a list of tensors", "-> tp.ListNumpy or tp.Numpy")
        if value.dtype in dtypes.HOST_ONLY:
            hint = "decode it first, e.g. with flow.data.ofrecord_raw_decoder"
            if value.dtype == dtypes.tensor_buffer:
                hint = "flow.image.Resize for images, flow.tensor_buffer_to_tensor, or flow.tensor_buffer_to_tensor_list"
            self._wrong(where, f"{value.op_name!r} of {value.dtype}, which has no array form", "a Blob of numbers", hint)
        self.leaves.append(value)
        self.kinds.append(kind)
        return _Slot(len(self.leaves) - 1)

    def _free(self, value: Any, kind: str, where: str) -> Any:
        """Any nesting; without an annotation, None may be a leaf."""
        if where.count("[") > DEEPEST:
            found = f"a {type(self._returned).__name__} of containers in more than {DEEPEST} containers"
            self._wrong("", found, "a nesting of Blobs")
        if isinstance(value, dict):
            return {key: self._free(item, kind, f"{where}[{shown(key)}]") for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            return _like(value, [self._free(item, kind, f"{where}[{i}]") for i, item in enumerate(value)])
        return None if value is None and kind == "local" else self._leaf(value, kind, where)

    def _follow(self, tree: Tree, value: Any, where: str) -> Any:
        """The nesting that the annotation prescribes."""
        if isinstance(tree, LeafOf):
            return self._leaf(value, tree.kind, where)
        if isinstance(tree, BundleOf):
            return self._free(value, tree.kind, where)
        if isinstance(tree, TupleOf):
            count = len(tree.items)
            if type(value) is not tuple and not is_named_tuple(value):
                self._wrong(where, _typed(value), f"a tuple of {count}", self._form_hint(value, _NO_BLOB))
            if len(value) != count:
                expected = f"a tuple of {count} ({len(value)} v.s. {count})"
                self._wrong(where, f"a tuple of {len(value)}", expected, self._form_hint(value))
            each = enumerate(zip(tree.items, value, strict=True))
            return _like(value, [self._follow(t, v, f"{where}[{i}]") for i, (t, v) in each])
        if isinstance(tree, ListOf):
            if type(value) is not list:
                self._wrong(where, _typed(value), "a list", self._form_hint(value, _NO_BLOB))
            return [self._follow(tree.item, v, f"{where}[{i}]") for i, v in enumerate(value)]
        if type(value) is not dict:
            self._wrong(where, _typed(value), "a dict", self._form_hint(value, _NO_BLOB))
        for key in value:
            if type(key) is not tree.key and tree.key is not Any:
                found = f"key {shown(key)} of type {type(key).__name__}"
                self._wrong(where, found, f"keys of type {spell(tree.key)}", self._form_hint(value))
        return {key: self._follow(tree.item, v, f"{where}[{shown(key)}]") for key, v in value.items()}


_NO_BLOB = "make a constant Blob of it, or return it from the program instead"


def _kinds(tree: Tree) -> Iterator[str]:
    """The kinds of arrays that an annotation names."""
    if isinstance(tree, (LeafOf, BundleOf)):
        yield tree.kind
    elif isinstance(tree, TupleOf):
        for item in tree.items:
            yield from _kinds(item)
    else:
        yield from _kinds(tree.item)


def _annotation_for(value: Any, kind: str) -> str:
    """The annotation that fits a Blob or a nesting of Blobs, of arrays of ``kind`` where they can be; "" for other values."""
    leaves = _leaves(value)
    if leaves is None:
        return ""
    exact = _exact_annotation(value, kind)
    if exact:
        return exact
    kinds = {_kind_of(leaf, kind) for leaf in leaves} or {kind}
    if len(kinds) > 1:  # a Bundle holds arrays of one kind
        kinds = set() if "ListListNumpy" in kinds else {"ListNumpy"}
    return f"tp.Bundle[tp.{kinds.pop()}]" if kinds else ""


def _leaves(value: Any, level: int = DEEPEST) -> list[Blob] | None:
    """The Blobs of a nesting; None where it holds something else."""
    if isinstance(value, Blob):
        return [value]
    if not level or not isinstance(value, (dict, tuple, list)):
        return None
    found: list[Blob] = []
    for item in value.values() if isinstance(value, dict) else value:
        inner = _leaves(item, level - 1)
        if inner is None:
            return None
        found += inner
    return found


def _kind_of(blob: Blob, kind: str) -> str:
    """The kind of array in which a Blob can be returned: ``kind``, where it can."""
    if blob.is_tensor_list:
        return "ListListNumpy"
    if blob.is_dynamic:
        return "ListNumpy"
    return "Numpy" if kind == "ListListNumpy" else kind


def _exact_annotation(value: Any, kind: str) -> str:
    """The annotation of a nesting by tuples, lists and dicts; "" where only a Bundle fits."""
    if isinstance(value, Blob):
        return f"tp.{_kind_of(value, kind)}"
    items = [_exact_annotation(item, kind) for item in (value.values() if isinstance(value, dict) else value)]
    if not items or not all(items):
        return ""
    if type(value) is tuple or is_named_tuple(value):
        return f"tp.Tuple[{', '.join(items)}]"
    if len(set(items)) > 1:
        return ""
    if type(value) is list:
        return f"tp.List[{items[0]}]"
    keys = {type(key) for key in value}
    if type(value) is not dict or len(keys) > 1 or not keys <= {str, int, float, bool}:
        return ""
    return f"tp.Dict[{keys.pop().__name__}, {items[0]}]"


def _typed(value: Any) -> str:
    return _show(value) if isinstance(value, Blob) else f"{type(value).__name__} {_show(value)}"


def _show(value: Any, level: int = 4) -> str:
    """``shown``, with Blobs by their names alone."""
    if isinstance(value, Blob):
        return f"Blob {value.op_name!r}"
    if level and isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {_show(item, level - 1)}" for key, item in value.items()) + "}"
    if level and isinstance(value, (tuple, list)):
        left, right = "()" if isinstance(value, tuple) else "[]"
        return left + ", ".join(_show(item, level - 1) for item in value) + right
    return shown(value)


@dataclass(frozen=True, slots=True)
class _Slot:
    index: int


def _like(container: Any, items: list[Any]) -> Any:
    if is_named_tuple(container):
        return type(container)(*items)
    return tuple(items) if isinstance(container, tuple) else items


def _rebuilder(structure: Any, total: int) -> Callable[[Sequence[Any]], Any]:
    """A function from the leaves' values to the nesting. It runs at every call, hence the special cases for flat results."""
    if structure is None:
        return lambda values: None
    if isinstance(structure, _Slot):
        return itemgetter(structure.index)
    items = list(structure.values()) if isinstance(structure, dict) else list(structure)
    if len(items) == total and all(isinstance(item, _Slot) for item in items):  # the outermost container, nothing nested
        return _flat(structure)
    return _nested(structure, tuple(_rebuilder(item, -1) for item in items))


def _flat(structure: Any) -> Callable[[Sequence[Any]], Any]:
    if isinstance(structure, dict):
        keys = tuple(structure)
        return lambda values: dict(zip(keys, values, strict=True))
    if is_named_tuple(structure):
        make = type(structure)
        return lambda values: make(*values)
    return tuple if isinstance(structure, tuple) else list


def _nested(structure: Any, builders: tuple[Callable[[Sequence[Any]], Any], ...]) -> Callable[[Sequence[Any]], Any]:
    if isinstance(structure, dict):
        keys = tuple(structure)
        return lambda values: {key: build(values) for key, build in zip(keys, builders, strict=True)}
    if is_named_tuple(structure):
        make = type(structure)
        return lambda values: make(*[build(values) for build in builders])
    if isinstance(structure, tuple):
        return lambda values: tuple([build(values) for build in builders])
    return lambda values: [build(values) for build in builders]
