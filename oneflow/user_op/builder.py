"""The builders behind ``flow.user_op_builder`` and ``flow.user_op_module_builder``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, Self

from .._base.refuse import closest, refuse, shown
from ..errors import ArgumentError, DuplicateNameError, ModeError
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.scopes import consistent_view
from ..ops import custom
from ..ops._emit import fail, want
from ..ops._host import want_str
from ..ops.custom import ATTRIBUTE_TYPES, CustomOp
from ..ops.elementwise import identity_n
from ..ops.module import Module
from . import table as _table  # noqa: F401 - fills the registry
from . import table_newer as _newer  # noqa: F401 - fills the registry
from .registry import NEWER, REGISTRY, Argument, Registered


def user_op_names() -> list[str]:
    """Every op type that ``flow.user_op_builder(...).Op(...)`` takes: those of OneFlow's registry, and registered custom ops.

    Example: >>> "conv2d" in flow.user_op_names()
    """
    return sorted({*(n for n, r in REGISTRY.items() if r.build is not None), *NEWER, *custom.REGISTERED})


class UserOp:
    """An op that ``Build()`` returned; ``InferAndTryRun()`` adds it to the job."""

    def __init__(self, builder: UserOpConfBuilder):
        self._builder = builder
        self._blobs: dict[str, tuple[Blob, ...]] | None = None

    def InferAndTryRun(self) -> Self:
        """Adds the op to the job whose body is running. Raises the op's own errors about its inputs."""
        if self._blobs is None:
            self._blobs = self._builder._emit()
        return self

    InferAndRun = InferAndTryRun

    @property
    def op_name(self) -> str:
        """Its name in the job, namespaces included."""
        return self._builder._full_name

    def _outputs(self) -> dict[str, tuple[Blob, ...]]:
        if self._blobs is None:
            refuse(ModeError, f"user op {self.op_name!r} is not in the job yet", hint="call .InferAndTryRun() first")
        return self._blobs

    def RemoteBlobList(self) -> tuple[Blob, ...]:
        """The outputs in the order in which they were declared. Raises ArgumentError where the op has others."""
        blobs = self._outputs()
        undeclared = [o.name for o in self._builder._type().outputs if not o.optional and o.name not in blobs]
        if undeclared:
            refuse(ArgumentError, f"user op {self.op_name!r} has outputs that were not declared: {', '.join(undeclared)}",
                   hint=f'.Output("{undeclared[0]}")')  # fmt: skip
        return tuple(blob for name in self._builder._outputs for blob in blobs[name])

    def RemoteBlobDict(self) -> dict[str, tuple[Blob, ...]]:
        """The outputs by name, each a tuple."""
        return dict(self._outputs())

    def SoleOutputBlob(self) -> Blob:
        """The only output. Raises ArgumentError where there are several."""
        blobs = self.RemoteBlobList()
        if len(blobs) != 1:
            refuse(ArgumentError, f"user op {self.op_name!r} has {len(blobs)} outputs", hint="use .RemoteBlobList()")
        return blobs[0]


class UserOpConfBuilder:
    """Describes one op: ``.Op(type).Input(name, blobs).Output(name).Attr(name, value).Build()``. Each step returns the builder.

    Args:
      op_name: the op's name in the job; the surrounding namespaces come in front.
      consistent: add it in the consistent view, whatever the current view is.
      newer: where a type has several forms, that of 0.6 comes first, not that of 0.3.4.
    """

    def __init__(self, op_name: str, consistent: bool = False, *, newer: bool = False):
        if not isinstance(op_name, str) or not op_name:
            refuse(ArgumentError, f"a user op needs a name, a non-empty str, got {shown(op_name)}")
        self._name = op_name
        self._consistent = consistent
        self._newer = newer
        self._type_name: str | None = None
        self._inputs: dict[str, list[Blob]] = {}
        self._outputs: dict[str, int] = {}
        self._attributes: dict[str, Any] = {}
        graph = current(f"user op {shown(op_name)}")
        self._full_name = graph.scope.namespace + op_name

    @property
    def _what(self) -> str:
        return f"user op {self._name!r}" + (f" of type {self._type_name}" if self._type_name else "")

    def _type(self) -> Registered:
        if self._type_name is None:
            fail(ArgumentError, self._what, "it has no type yet", (), '.Op("relu") comes first')
        return form_for(self._what, self._type_name, self._inputs, self._outputs, self._attributes, newer=self._newer)

    def _fits(self, form: Registered) -> bool:
        return _fits(form, self._inputs, self._outputs, self._attributes)

    def Op(self, op_type_name: str) -> Self:
        """Chooses the op: a type of OneFlow's registry, or a registered custom op."""
        _forms(self._what, op_type_name, self._newer)
        self._type_name = op_type_name
        return self

    def Input(self, input_name: str, input_blob_list: Sequence[Blob]) -> Self:
        """Binds an input; the list has one Blob unless the input is repeated."""
        want_str(self._what, "input_name", input_name)
        if not isinstance(input_blob_list, (list, tuple)) or not all(isinstance(b, Blob) for b in input_blob_list):
            rule = f"input {input_name!r} takes a list or tuple of Blobs, got {shown(input_blob_list)}"
            fail(ArgumentError, self._what, rule)
        self._inputs[input_name] = list(input_blob_list)
        return self

    InputWithBlobs = Input

    def Output(self, output_name: str, num: int = 1) -> Self:
        """Declares an output, of ``num`` Blobs."""
        want_str(self._what, "output_name", output_name)
        self._outputs[output_name] = want.integer(self._what, f"output {output_name!r}: num", num, 1)
        return self

    def Attr(self, attr_name: str, attr_value: Any, attr_type_name: str | None = None) -> Self:
        """Sets an attribute. The type is the registry's: 1 is not a float. The third argument is not used."""
        want_str(self._what, "attr_name", attr_name)
        kinds = self._type().attributes
        forms = _forms(self._what, self._type_name, self._newer)
        kinds = next((f.attributes for f in forms if attr_name in f.attributes and self._fits(f)), kinds)
        if attr_name not in kinds:
            known = f"it has {', '.join(kinds)}" if kinds else "it has none"
            fail(ArgumentError, self._what, f"there is no attribute {shown(attr_name)}; {known}")
        self._attributes[attr_name] = kinds[attr_name].check(self._what, attr_value)
        return self

    def Build(self) -> UserOp:
        """Checks that nothing is missing. The op is added to the job by ``InferAndTryRun()``."""
        kind = self._type()
        self._check_bound("input", self._inputs, kind.inputs)
        for output in self._outputs:
            if output not in {o.name for o in kind.outputs}:
                known = f"it has {', '.join(o.name for o in kind.outputs)}" if kind.outputs else "it has none"
                fail(ArgumentError, self._what, f"there is no output {shown(output)}; {known}")
        for attribute in kind.attributes.values():
            if attribute.name not in self._attributes and not attribute.has_default:
                kind_of = f"{attribute.name!r}, {attribute.type_name},"
                fail(ArgumentError, self._what, f"attribute {kind_of} is missing and has no default", (),
                     f'.Attr("{attribute.name}", ...)')  # fmt: skip
        return UserOp(self)

    def _check_bound(self, kind: str, bound: dict[str, list[Blob]], known: Sequence[Argument]) -> None:
        names = {a.name for a in known}
        for name in bound:
            if name not in names:
                has = f"it has {', '.join(a.name for a in known)}" if known else "it has none"
                fail(ArgumentError, self._what, f"there is no {kind} {shown(name)}; {has}", bound[name])
        for a in known:
            if a.name not in bound:
                if not a.optional:
                    fail(ArgumentError, self._what, f"{kind} {a.name!r} is missing", (), f'.Input("{a.name}", [blob])')
            elif len(bound[a.name]) < (1 if a.least is None else a.least) or (a.least is None and len(bound[a.name]) > 1):
                count = "one Blob" if a.least is None else f"{a.least} Blobs or more"
                fail(ArgumentError, self._what, f"{kind} {a.name!r} takes {count}, got {len(bound[a.name])}", bound[a.name])

    def _emit(self) -> dict[str, tuple[Blob, ...]]:
        kind = self._type()
        graph = current(self._what)
        if graph.node(self._full_name) is not None:
            fail(DuplicateNameError, self._what, f"job {graph.name!r} already has an op named {self._full_name!r}", (),
                 "give this one another name")  # fmt: skip
        inputs: dict[str, Any] = {
            a.name: None
            if a.name not in self._inputs
            else self._inputs[a.name]
            if a.least is not None
            else self._inputs[a.name][0]
            for a in kind.inputs
        }
        attributes = {a.name: self._attributes.get(a.name, a.default) for a in kind.attributes.values()}
        assert kind.build is not None
        with consistent_view() if self._consistent else nullcontext():
            made = kind.build(inputs, attributes, self._name)
            if not kind.outputs:
                return {}
            return self._named(kind, _by_name(kind, made))

    def _named(self, kind: Registered, made: dict[str, tuple[Blob, ...]]) -> dict[str, tuple[Blob, ...]]:
        """The declared outputs, called ``<op>/<output>_<i>``."""
        for output, count in self._outputs.items():
            if len(made[output]) != count:
                fail(ArgumentError, self._what, f"output {shown(output)} has {len(made[output])} Blobs, not {count}", (),
                     f'.Output("{output}", {len(made[output])})')  # fmt: skip
        flat = [(f"{o.name}_{i}", b) for o in kind.outputs for i, b in enumerate(made.get(o.name, ()))]
        graph = current(self._what)
        node = graph.node(self._full_name)
        if any(b.node is not node for _, b in flat) and node is None:  # several ops: one more names the results
            blobs = identity_n([b for _, b in flat], name=self._name)
            flat = [(suffix, blob) for (suffix, _), blob in zip(flat, blobs, strict=True)]
        for suffix, blob in flat:
            if blob.node.name == self._full_name:
                blob._suffix = suffix
        by_suffix = dict(flat)
        return {o: tuple(by_suffix[f"{o}_{i}"] for i in range(n)) for o, n in self._outputs.items()}


def _by_name(kind: Registered, made: Any) -> dict[str, tuple[Blob, ...]]:
    if isinstance(made, dict):
        return {n: tuple(b) if isinstance(b, (list, tuple)) else (b,) for n, b in made.items() if b is not None}
    blobs = tuple(made) if isinstance(made, (list, tuple)) else (made,)
    if len(kind.outputs) == 1:
        return {kind.outputs[0].name: blobs}
    return {o.name: (b,) for o, b in zip(kind.outputs, blobs, strict=False)}


def form_for(
    what: str, type_name: Any, inputs: Collection[str], outputs: Collection[str], attributes: Collection[str], *, newer: bool
) -> Registered:
    """The form of a type that has all these names, or its first one."""
    forms = _forms(what, type_name, newer)
    return next((form for form in forms if _fits(form, inputs, outputs, attributes)), forms[0])


def _fits(form: Registered, inputs: Collection[str], outputs: Collection[str], attributes: Collection[str]) -> bool:
    """Whether a form of the type has all names that were used so far."""
    return (
        set(inputs) <= {a.name for a in form.inputs}
        and set(outputs) <= {a.name for a in form.outputs}
        and set(attributes) <= form.attributes.keys()
    )


def _forms(what: str, type_name: Any, newer: bool) -> tuple[Registered, ...]:
    """The forms of a type, the builder's own release first."""
    if isinstance(type_name, str) and type_name in NEWER and type_name not in custom.REGISTERED:
        older = (REGISTRY[type_name],) if type_name in REGISTRY else ()
        return (*NEWER[type_name], *older) if newer else (*older, *NEWER[type_name])
    return (_registered(what, type_name),)


def _registered(what: str, type_name: Any) -> Registered:
    if not isinstance(type_name, str):
        fail(ArgumentError, what, f"an op type is named by a str, got {shown(type_name)}")
    own = custom.REGISTERED.get(type_name)
    found = REGISTRY.get(type_name) if own is None else _of_custom(own)
    if found is None:
        near = closest(str(type_name), [*REGISTRY, *NEWER, *custom.REGISTERED])
        fail(ArgumentError, what, f"there is no op type {type_name!r}" + (f"; close are {', '.join(near)}" if near else ""), (),
             "flow.user_op_names() lists them; flow.experimental.register_op adds one")  # fmt: skip
    if found.build is None:
        fail(ModeError, what, f"op type {type_name!r} is not built: {found.why_not}")
    return found


class _CustomAttribute:
    """An attribute of a custom op, which checks it itself."""

    def __init__(self, name: str, default: Any):
        self.name, self.default = name, default
        self.has_default = default not in ATTRIBUTE_TYPES
        self.type_name = getattr(default if isinstance(default, type) else type(default), "__name__", "")

    def check(self, what: str, value: Any) -> Any:
        return value


def _of_custom(own: CustomOp) -> Registered:
    def build(inputs: Any, attributes: Any, name: str) -> Any:
        return own.emit([inputs[n] for n in own.inputs], attributes, name)

    attributes: Any = {n: _CustomAttribute(n, default) for n, default in own.attrs.items()}
    arguments = tuple(Argument(n, False, None) for n in own.inputs)
    made = Registered(own.name, "", build)
    made.inputs, made.attributes = arguments, attributes
    made.outputs = tuple(Argument(n, False, None) for n in own.outputs)
    return made


# --- modules


class UserOpModule(Module):
    """The op that a module builder describes."""

    def __init__(self, builder: UserOpModuleBuilder):
        super().__init__(builder._type_name)
        self._is_ready = False

    def InitOpKernel(self) -> None:
        """Marks it as ready; here kernels are made when a job is compiled."""
        self._is_ready = True


class UserOpModuleBuilder(UserOpConfBuilder):
    """A builder of ops of one type; each use of it begins with ``OpName(name)``."""

    def __init__(self, op_type_name: str, consistent: bool = False, *, newer: bool = False):
        if not isinstance(op_type_name, str):
            refuse(ArgumentError, f"an op type is named by a str, got {shown(op_type_name)}")
        super().__init__(f"{op_type_name} module", consistent, newer=newer)
        super().Op(op_type_name)
        self.user_op_module = UserOpModule(self)

    def Op(self, op_type_name: str) -> NoReturn:
        """Raises ModeError: the type was given to the builder."""
        refuse(ModeError, f"the type of this module builder is {self._type_name!r} already", hint="leave .Op() out")

    def InputSize(self, input_name: str, input_blob_size: int) -> Self:
        """Declares the number of Blobs of an input."""
        want.integer(self._what, "input_blob_size", input_blob_size, 0)
        if want_str(self._what, "input_name", input_name) not in {a.name for a in self._type().inputs}:
            fail(ArgumentError, self._what, f"there is no input {shown(input_name)}")
        return self

    def CheckAndComplete(self) -> Self:
        """Checks that no attribute is missing."""
        missing = [a.name for a in self._type().attributes.values() if not a.has_default and a.name not in self._attributes]
        if missing:
            fail(ArgumentError, self._what, f"attribute {missing[0]!r} is missing and has no default", (),
                 f'.Attr("{missing[0]}", ...)')  # fmt: skip
        return self

    def OpName(self, op_name: str) -> UserOpConfBuilder:
        """A builder for one op of this description, under that name."""
        made = UserOpConfBuilder(op_name, self._consistent, newer=self._newer)
        made._type_name = self._type_name
        made._outputs, made._attributes = dict(self._outputs), dict(self._attributes)
        return made


def user_op_builder(op_name: str) -> UserOpConfBuilder:
    """Builds an op of a registered type: ``flow.user_op_builder(name).Op("relu").Input("in", [x]).Output("out")...``.

    Args:
      op_name: its name in the job.
    Returns: a builder: ``.Op(type)``, ``.Input(name, blobs)``, ``.Output(name, num=1)``, ``.Attr(name, value)``, then
      ``.Build().InferAndTryRun()`` and one of ``.SoleOutputBlob()``, ``.RemoteBlobList()``, ``.RemoteBlobDict()``.
    Raises:
      ArgumentError: an unknown type, input, output or attribute, or a missing one, or a value of another type.
      DuplicateNameError: the name is taken.
    Example:
      >>> op = flow.user_op_builder("act").Op("leaky_relu").Input("x", [x]).Output("y").Attr("alpha", 0.1)
      >>> y = op.Build().InferAndTryRun().SoleOutputBlob()
    """
    return UserOpConfBuilder(op_name)


def consistent_user_op_builder(op_name: str) -> UserOpConfBuilder:
    """``user_op_builder``, always in the consistent view.

    Example: >>> builder = flow.consistent_user_op_builder("act").Op("relu")
    """
    return UserOpConfBuilder(op_name, consistent=True)


def user_op_module_builder(op_type_name: str) -> UserOpModuleBuilder:
    """A builder of several ops of one type: ``.Output(...).Attr(...).CheckAndComplete()``, then for each op
    ``.OpName(name).Input(...).Build().InferAndTryRun()``.

    Example: >>> builder = flow.user_op_module_builder("bernoulli").InputSize("in", 1).Output("out")
    """
    return UserOpModuleBuilder(op_type_name)


def consistent_user_op_module_builder(op_type_name: str) -> UserOpModuleBuilder:
    """``user_op_module_builder``, always in the consistent view.

    Example: >>> builder = flow.consistent_user_op_module_builder("coin_flip").Output("out")
    """
    return UserOpModuleBuilder(op_type_name, consistent=True)
