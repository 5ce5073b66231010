"""The ``meta`` file of a variable: a protobuf message in text form, read by a grammar and never evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .._base.dtype import HOST_ONLY, NEWER, PROTO_NAMES, bfloat16, dtype, dtypes

_BY_NAME = {PROTO_NAMES[d.name]: d for d in (*dtypes(), *NEWER)}
_BY_NUMBER = {str(d.oneflow_proto_dtype): d for d in dtypes() if d is not bfloat16}  # 0.3.4 has no bfloat16
_TOKEN = re.compile(r"(?P<skip>\s+|#[^\n]*)|(?P<word>[A-Za-z_][\w.]*|[-+]?\d+|\"[^\"\n]*\"|'[^'\n]*')|(?P<mark>[{}<>\[\]:,;])")
_DEEPEST = 16
_LARGEST_RANK = 64


def text_of(shape: tuple[int, ...], element: dtype) -> str:
    """The text that OneFlow's own printer writes for this shape and dtype."""
    dims = "".join(f"  dim: {size}\n" for size in shape)
    return f"shape {{\n{dims}}}\ndata_type: {PROTO_NAMES[element.name]}\n"


def parse(text: str) -> tuple[tuple[int, ...], dtype]:
    """Shape and dtype from a ``meta`` file's text; whitespace, order, comments and unknown fields do not matter.

    Raises:
      ValueError: with a sentence that says what is wrong with the text.
    """
    fields = _message(_tokens(text), None, 0)
    shapes, types = fields.get("shape", []), fields.get("data_type", [])
    if len(shapes) != 1 or not isinstance(shapes[0], dict):
        raise ValueError('it must have one message "shape { dim: ... }"')
    if len(types) != 1 or not isinstance(types[0], str):
        raise ValueError('it must have one field "data_type"')
    element = _BY_NAME.get(types[0]) or _BY_NUMBER.get(types[0])
    if element is None:
        raise ValueError(f"data_type {types[0]!r} is none of {', '.join(_BY_NAME)}")
    if element in HOST_ONLY:
        raise ValueError(f"data_type {types[0]!r} has no array of numbers")
    dims = shapes[0].get("dim", [])
    if not all(isinstance(d, str) and d.isascii() and d.isdigit() and len(d) < 19 for d in dims) or len(dims) > _LARGEST_RANK:
        raise ValueError(f"every dim must be a size >= 0, got {dims!r}"[:200])
    return tuple(int(d) for d in dims), element


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1} has {text[at : at + 20]!r}, which is not text protobuf")
        at = match.end()
        if match.lastgroup != "skip":
            yield match[0]


def _message(tokens: Iterator[str], closing: str | None, depth: int) -> dict[str, list[Any]]:
    """Field names and their values in order: text for scalars, a dict for messages."""
    if depth > _DEEPEST:
        raise ValueError("its messages are nested too deeply")
    fields: dict[str, list[Any]] = {}
    for name in tokens:
        if name == closing:
            return fields
        if name in ",;":
            continue
        if not (name[0].isalpha() or name[0] == "_"):
            raise ValueError(f"a field's name is due where {name!r} is")
        value = next(tokens, "")
        if value == ":":
            value = next(tokens, "")
        values = fields.setdefault(name, [])
        if value == "[":
            values += _list(tokens, depth)
        else:
            values.append(_value(value, tokens, depth))
    if closing is not None:
        raise ValueError(f"it ends before {closing!r}")
    return fields


def _value(first: str, tokens: Iterator[str], depth: int) -> Any:
    if first in ("{", "<"):
        return _message(tokens, "}" if first == "{" else ">", depth + 1)
    if not first or first in "}>[]:,;":
        raise ValueError(f"a value is due where {first!r} is" if first else "it ends where a value is due")
    return first


def _list(tokens: Iterator[str], depth: int) -> Iterator[Any]:
    for token in tokens:
        if token == "]":
            return
        if token != ",":
            yield _value(token, tokens, depth)
    raise ValueError("it ends before ']'")
