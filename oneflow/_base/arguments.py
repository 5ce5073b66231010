"""How a public function is called, for those who gave it other arguments than it takes."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from .public_names import public_modules, public_names
from .refuse import closest
from .signatures import signature_of

# Python 3.13 and newer name the closest keyword themselves.
_UNKNOWN = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'(?:\. Did you mean '(\w+)'\?)?$")
_MISCALLED = re.compile(r"([\w.]+)\(\) (?:missing \d+ required |takes .* positional arguments? but )")
# What JAX and PyTorch say of a Blob among their arguments; the name of the function is in one of the groups.
_MET_BLOB = re.compile(r"\bBlob\b")
_MET_BY = re.compile(r"<function (\w+) at |^(\w+)\(\): argument|^Error interpreting argument to (\w+) as|^(\w+) requires ")
_OPS_TAKE_IT = "a Blob has no value while the job is described: only ops of flow take it"
# Our keywords, and those of PyTorch, Keras and NumPy for the same with other letters.
_ELSEWHERE = {
    "axis": "dim dims axes", "keepdims": "keepdim", "filters": "out_channels", "units": "out_features", "use_bias": "bias",
    "epsilon": "eps", "rate": "p", "lr_scheduler": "lr learning_rate", "beta1": "beta_1 betas", "beta2": "beta_2",
    "training": "train", "trainable": "requires_grad", "kernel_initializer": "weight_initializer",
}  # fmt: skip


def explain_arguments(error: BaseException) -> None:
    """Adds a note to Python's error for wrong arguments of a public function, and to another library's for a Blob.

    For an unknown keyword: the one that was meant, or all there are. For too few or too many arguments: how it is called. For a
    Blob: the op of that name.
    """
    if type(error) is TypeError and _MET_BLOB.search(str(error)) and not any(_OPS_TAKE_IT in n for n in _notes(error)):
        _explain_blob(error)
        return
    found = _miscalled(error)
    if found is not None:
        path, function = _called(found.removesuffix(".__init__"), error.__traceback__)
        if function is not None:
            _explain(error, path, function)


def explain_call(error: BaseException, function: Callable[..., Any], constructed: object = None) -> None:
    """The same where the function is known. That of ``constructed``, an object, is its constructor, which may be inherited."""
    found = _miscalled(error)
    if found is None:
        return
    if constructed is not None:
        made = type(constructed)
        error.args = (str(error).replace(found, f"{made.__name__}.__init__", 1),)
        function = made
    paths = [path for path, each in _functions() if inspect.unwrap(each) is function]
    paths.sort(key=lambda path: path.rpartition(".")[2] != function.__name__)  # aliases last
    _explain(error, paths[0] if paths else function.__name__, function)


def _miscalled(error: BaseException) -> str | None:
    """The name in Python's error for wrong arguments; None for other errors, and for those that are explained."""
    if type(error) is not TypeError or _notes(error):
        return None
    found = _UNKNOWN.match(str(error)) or _MISCALLED.match(str(error))
    return None if found is None else found[1]


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def _explain_blob(error: BaseException) -> None:
    by = _MET_BY.search(str(error))
    paths = [path for path, _ in _functions() if by is not None and path.rpartition(".")[2] == by[by.lastindex or 0]]
    error.add_note(f"  why        {_OPS_TAKE_IT}")
    meant = f"{min(paths, key=len)}(...), or " if paths else ""
    error.add_note(f"  try        {meant}flow.experimental.register_op for an op that is written in JAX")


def _explain(error: BaseException, path: str, function: Callable[..., Any]) -> None:
    unknown = _UNKNOWN.match(str(error))
    if unknown is not None:
        _explain_keyword(error, unknown[2], unknown[3], path, function)
    elif (form := _form(function)) is not None:
        error.add_note(f"  its form   {path}{form}")


def _explain_keyword(error: BaseException, keyword: str, suggested: str | None, path: str, function: Callable[..., Any]) -> None:
    known = _keywords(function)
    near = [k for k in known if keyword in _ELSEWHERE.get(k, "").split()]
    if suggested is not None and near in ([], [suggested]):
        return
    tried = [f"{k}=..." for k in near or closest(keyword, known, count=1)]
    if not near and len(keyword) > 3:
        tried += [f"{other}(..., {k}=...)" for other, made in _kin(path) for k in _keywords(made) if keyword in k][:1]
    error.add_note(f"  try        {' or '.join(tried)}" if tried else f"  it takes   {', '.join(known)}")


def _called(name: str, traceback: TracebackType | None) -> tuple[str, Callable[..., Any] | None]:
    """The function of that name, with its path; of several the one that the innermost line names.

    None if the program has a function of that name itself.
    """
    found = [(p, f) for p, f in _functions() if p.rpartition(".")[2] == name and f.__qualname__ == name]
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    own = traceback.tb_frame.f_globals.get(name) if traceback is not None else None
    if callable(own) and all(own is not function for _, function in found):
        return "", None
    line = linecache.getline(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno) if traceback is not None else ""
    found.sort(key=lambda each: each[0].removeprefix("flow.") not in line)
    return found[0] if found else ("", None)


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions and classes of the public modules that were used, by paths that begin with "flow"."""
    for module in sorted(public_modules("oneflow"), key=lambda m: m.__name__):
        for each in public_names(module):
            value = vars(module).get(each)
            if inspect.isfunction(value) or inspect.isclass(value):
                yield f"flow{module.__name__.removeprefix('oneflow')}.{each}", value


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return signature_of(function)
    except (TypeError, ValueError):
        return None


def _keywords(function: Callable[..., Any]) -> list[str]:
    signature = _signature(function)
    parameters = () if signature is None else signature.parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _form(function: Callable[..., Any]) -> str | None:
    """The parameters and their defaults, without types."""
    signature = _signature(function)
    if signature is None:
        return None
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def _kin(path: str) -> Iterator[tuple[str, Any]]:
    """What else the module has whose name contains that of the function: AdamW is kin to Adam."""
    module, _, name = path.rpartition(".")
    if not module:  # a class of the program's
        return
    space = sys.modules["oneflow" + module.removeprefix("flow")]
    for other in public_names(space):
        if name != other and name in other:
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                yield f"{module}.{other}", getattr(space, other)
