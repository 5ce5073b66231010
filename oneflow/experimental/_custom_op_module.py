"""``flow.experimental.custom_op_module``: folders with ops that were written for OneFlow, with kernels in Python."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn, Self

from .._base import check
from .._base.files import read_regular
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, ModeError
from ..ops.custom import register_host_op

_REGISTRATION = re.compile(r"REGISTER_(?:CPU_ONLY_|NO_GRAD_)?(?:CPU_ONLY_)?USER_OP\s*\(\s*\"(\w+)\"\s*\)")
_NEXT = re.compile(r"\bREGISTER_\w+\s*\(")
_PART = re.compile(r"\.\s*(Input|OptionalInput|Output|Attr)\s*(?:<\s*([\w:]+)\s*>)?\s*\(\s*\"(\w+)\"\s*(?:,\s*([^()]*?))?\s*\)")
_GRADIENT = re.compile(r"REGISTER_USER_OP_GRAD\s*\(\s*\"(\w+)\"\s*\)")
# .InputBind("dy", ctx->FwOp().output_grad("out", 0)); in older files .Input("dy", op.GetGradTensorWithOpOutput("out", 0))
_READS = re.compile(
    r"\.\s*Input(?:Bind)?\s*\(\s*\"(\w+)\"\s*,[\s\w.>()-]*?\b(input|output|output_grad|GetGradTensorWithOpOutput)\s*\(\s*\"(\w+)\""
)
_GROUPS = {"input": "input", "output": "output", "output_grad": "gradient", "GetGradTensorWithOpOutput": "gradient"}
# .InputGradBind(user_op::OpArg("in", 0), [...] { return ctx->GetOp(name).output("dx", 0); }), or BindGradTensorWithOpInput(...)
_GIVES = re.compile(r"InputGradBind\s*\(\s*[\w:]*\s*\(\s*\"(\w+)\".*?\boutput\s*\(\s*\"(\w+)\"", re.DOTALL)
_GAVE = re.compile(r"BindGradTensorWithOpInput\s*\([^;]*?\boutput\s*\(\s*\"(\w+)\"[^;]*?\)\s*,\s*\"(\w+)\"")
_LARGEST_SOURCE = 1 << 24  # bytes
_TYPES: dict[str, type] = {
    "bool": bool, "int32_t": int, "int64_t": int, "int": int, "float": float, "double": float, "std::string": str, "Shape": tuple,
}  # fmt: skip


@dataclass
class _Declared:
    """The inputs, outputs and attributes that a registration declares."""

    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    sources: dict[str, tuple[str, str]] = field(
        default_factory=dict
    )  # the gradient op's inputs: group and name of the forward op's
    targets: dict[str, str] = field(default_factory=dict)  # the gradient op's outputs: the forward op's inputs


def _declarations(text: str) -> dict[str, _Declared]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    found = {}
    for match in _REGISTRATION.finditer(text):
        following = _NEXT.search(text, match.end())
        body = text[match.end() : following.start() if following else len(text)]
        declared = _Declared([], [], {})
        for kind, cpp_type, name, default in _PART.findall(body):
            if kind == "Attr":
                python = _TYPES.get(cpp_type, float)
                declared.attrs[name] = _default(python, default) if default else python
            else:
                (declared.outputs if kind == "Output" else declared.inputs).append(name)
        found[match.group(1)] = declared
    for match in _GRADIENT.finditer(text):
        following = _NEXT.search(text, match.end())
        body = text[match.end() : following.start() if following else len(text)]
        if match.group(1) in found:
            declared = found[match.group(1)]
            declared.sources = {name: (_GROUPS[group], of) for name, group, of in _READS.findall(body)}
            declared.targets = {made: of for of, made in _GIVES.findall(body)} | dict(_GAVE.findall(body))
    return found


def _default(kind: type, text: str) -> Any:
    if kind is bool:
        return text.strip() == "true"
    if kind is str:
        return text.strip().strip('"')
    try:
        return kind(text.strip().rstrip("fFlL"))
    except (TypeError, ValueError):
        return kind


class CustomOpModule:
    """A folder with an op: ``<name>_cpp_def.cpp``, ``<name>_py_kernel.py``, ``<name>_py_api.py``.

    The declarations in the C++ file are read (inputs, outputs, attributes); nothing is compiled. An output has the shape and
    dtype of the first input, unless the kernel file has a function ``infer(*specs, **attrs)``, a shape rule like that of
    ``register_host_op``. The gradient is the op ``<name>_backward``: its inputs and outputs are what ``REGISTER_USER_OP_GRAD``
    binds them to, or else are matched by name with the forward op's inputs and outputs (``x``, ``y``) and their gradients
    (``dy``, ``y_diff``, ``y_grad``).

    Args:
      op_module_name: the folder's name, which begins the names of its files and op types.
      module_path: the directory that holds the folder; the current one by default.
    Raises: ArgumentError (there is no such folder).
    Example:
      >>> module = flow.experimental.custom_op_module("user_sigmoid", "ops")
      >>> module.py_api().cpp_def().py_kernel().build_load()
      >>> y = module.api.user_sigmoid_forward(x)   # inside a job
    """

    def __init__(self, op_module_name: str, module_path: str = ""):
        if not isinstance(op_module_name, str) or not op_module_name:
            refuse(ArgumentError, f"custom_op_module: op_module_name must be a non-empty str, got {shown(op_module_name)}")
        path, problem = check.path("." if isinstance(module_path, str) and not module_path else module_path)
        if problem:
            refuse(ArgumentError, f"custom_op_module: module_path {problem}")
        self._name = op_module_name
        self._folder = os.path.join(os.path.abspath(path), op_module_name)
        if not os.path.isdir(self._folder):
            refuse(ArgumentError, f"custom_op_module: there is no folder {self._folder}")
        self._declared: dict[str, _Declared] = {}
        self._has_read = False
        self.api: ModuleType | None = None

    def _file(self, suffix: str) -> str:
        path = os.path.join(self._folder, self._name + suffix)
        if not os.path.lexists(path):
            refuse(ArgumentError, f"custom op module {self._name!r} has no file {path}")
        if not os.path.isfile(path):
            refuse(ArgumentError, f"custom op module {self._name!r}: {path} is not a regular file")
        return path

    def _load(self, suffix: str) -> ModuleType:
        path = self._file(suffix)
        spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def py_api(self) -> Self:
        """Loads the Python functions that make the op's Blobs; ``api`` is their module."""
        self.api = self._load("_py_api.py")
        return self

    def cpp_def(self) -> Self:
        """Reads inputs, outputs and attributes of the ops that the C++ file declares."""
        path = self._file("_cpp_def.cpp")
        try:
            text = read_regular(path, _LARGEST_SOURCE).decode()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            refuse(ArgumentError, f"custom op module {self._name!r}: {path} cannot be read: {why}")
        self._declared, self._has_read = _declarations(text), True
        return self

    def py_kernel(self) -> Self:
        """Registers ``<name>_forward`` and ``<name>_backward``, computed by the file's ``forward`` and ``backward``."""
        kernel = self._load("_py_kernel.py")
        forward, backward = (self._declared.get(f"{self._name}_{way}") for way in ("forward", "backward"))
        if forward is None:
            missing = f"custom op module {self._name!r}: the inputs of {self._name}_forward are not known"
            if not self._has_read:
                refuse(ArgumentError, missing, hint="call cpp_def() first: its file registers that op")
            refuse(ArgumentError, f"{missing}: {self._name}_cpp_def.cpp does not register that op",
                   found=[("registers", ", ".join(self._declared) or "nothing"), ("expected", f"{self._name}_forward")],
                   hint=f'REGISTER_USER_OP("{self._name}_forward"), and "{self._name}_backward" for its gradient')  # fmt: skip
        rule = getattr(kernel, "infer", None)
        grad = None if backward is None else self._gradient(forward, backward, kernel.backward)
        self._register("forward", forward, kernel.forward, rule, grad)
        if backward is not None:
            self._register("backward", backward, kernel.backward, None, None)
        return self

    def _register(self, way: str, declared: _Declared, kernel: Callable[..., Any], rule: Any, grad: Any) -> None:
        def run(*arrays: Any, **attrs: Any) -> Any:
            return _arrays(kernel(list(arrays)))

        decorate = register_host_op(
            f"{self._name}_{way}", inputs=declared.inputs, outputs=declared.outputs, attrs=declared.attrs, grad=grad, shape=rule
        )
        decorate(run)

    def _gradient(self, forward: _Declared, backward: _Declared, kernel: Callable[..., Any]) -> Callable[..., Any]:
        sources = [self._source(name, forward) for name in backward.inputs]
        targets = [self._target(name, forward) for name in backward.outputs]

        def grad(inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any], **attrs: Any) -> Any:
            groups = {"input": inputs, "output": outputs, "gradient": cotangents}
            made = _arrays(kernel([groups[group][i] for group, i in sources]))
            given = dict(zip(targets, made if isinstance(made, tuple) else (made,), strict=True))
            return tuple(given.get(i) for i in range(len(inputs)))

        return grad

    def _source(self, name: str, forward: _Declared) -> tuple[str, int]:
        bound, of = forward.sources.get(name, ("", ""))
        known = forward.inputs if bound == "input" else forward.outputs
        if of in known:
            return bound, known.index(of)
        for group, names in (("input", forward.inputs), ("output", forward.outputs)):
            if name in names:
                return group, names.index(name)
        return "gradient", self._meant(name, forward.outputs)

    def _target(self, name: str, forward: _Declared) -> int:
        of = forward.targets.get(name)
        return forward.inputs.index(of) if of in forward.inputs else self._meant(name, forward.inputs)

    def _meant(self, name: str, names: Sequence[str]) -> int:
        """The number of the name whose gradient this is: ``dy``, ``y_diff``, ``y_grad``, ``grad_y`` or ``d_y`` for ``y``."""
        for i, known in enumerate(names):
            if name in (f"d{known}", f"d_{known}", f"{known}_diff", f"{known}_grad", f"grad_{known}"):
                return i
        refuse(ArgumentError, f"custom op module {self._name!r}: {name!r} of {self._name}_backward is the gradient of none of "
               f"{', '.join(names)}", hint=f"call it d{names[0]}" if names else "")  # fmt: skip

    def cpp_kernel(self) -> NoReturn:
        """Raises ModeError: kernels in C++ need OneFlow's own runtime."""
        self._no_native_kernel("cpp_kernel")

    def gpu_kernel(self) -> NoReturn:
        """Raises ModeError, as in OneFlow."""
        self._no_native_kernel("gpu_kernel")

    def _no_native_kernel(self, method: str) -> NoReturn:
        refuse(ModeError, f"custom op module {self._name!r}: {method} needs OneFlow's own runtime",
               hint="write the kernel with jax.numpy: flow.experimental.register_op, see docs/custom-ops.md")  # fmt: skip

    def build_load(self) -> None:
        """The end of the chain of calls; no effect, as nothing is compiled."""


def _arrays(made: Any) -> Any:
    return tuple(made) if isinstance(made, (list, tuple)) else made


custom_op_module = CustomOpModule
