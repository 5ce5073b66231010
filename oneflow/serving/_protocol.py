"""KServe's v2 protocol over REST, with its binary extension: requests to arrays, and arrays to responses.

A body is JSON, or JSON followed by the tensors' bytes; the header ``Inference-Header-Content-Length`` says where the JSON ends.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from .._base.dtype import bfloat16
from .._base.refuse import shown

JSON, BINARY = "application/json", "application/octet-stream"
HEADER_LENGTH = "inference-header-content-length"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]
_MOST_AXES = 16
_MICROSECONDS = 1e-6

_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": bfloat16.numpy_dtype,
}
_DATATYPES = {dtype: name for name, dtype in _DTYPES.items()}


class RequestError(Exception):
    """A request that is answered with an error: its HTTP status, the reason, and further headers."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None):
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})


def _bad(reason: str) -> NoReturn:
    raise RequestError(400, reason)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or an output of a model. Open sizes have names; ``accepted`` are the values that each may have."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    accepted: Mapping[str, Sequence[int]]

    @property
    def datatype(self) -> str:
        return datatype_of(self.dtype)

    def described(self) -> dict[str, Any]:
        """The tensor in a model's metadata."""
        shape = [size if isinstance(size, int) else -1 for size in self.shape]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a dtype. Raises ValueError where it has none."""
    found = _DATATYPES.get(np.dtype(dtype))
    if found is None:
        raise ValueError(f"the protocol has no datatype for {dtype}")
    return found


def sized(shape: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape with values for its open sizes."""
    return tuple(sizes[size] if isinstance(size, str) else size for size in shape)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output that a request asks for, by its position among the model's outputs."""

    position: int
    binary: bool


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What a request asks for.

    Attributes:
      arrays: in the order of the model's inputs.
      sizes: the values of the model's open sizes.
      wanted: the outputs, in the order of the answer.
      id: the client's name for the request, or None.
      timeout: in seconds, or None.
    """

    arrays: list[np.ndarray]
    sizes: dict[str, int]
    wanted: list[Wanted]
    id: str | None
    timeout: float | None


# --- requests


def decompressed(body: bytes, encoding: str, most: int) -> bytes:
    """The body of a request with the header Content-Encoding. Never makes more than ``most`` bytes of it."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(415, f"Content-Encoding {encoding[:40]!r} is not supported; there are gzip and deflate")
    machine = zlib.decompressobj(wbits=31 if encoding == "gzip" else 15)
    try:
        made = machine.decompress(body, most + 1)
    except zlib.error:
        _bad(f"the body is not {encoding} data")
    if len(made) > most:
        raise RequestError(413, f"the decompressed body has more than {most} bytes")
    if not machine.eof:
        _bad(f"the body ends in the middle of its {encoding} data")
    if machine.unused_data:
        _bad(f"the body has {len(machine.unused_data)} bytes behind its {encoding} data, which must be one member")
    return made


def parsed_json(data: bytes | memoryview, *, empty: Any = None) -> Any:
    """JSON without NaN and infinities, which JSON does not have."""
    if not len(data) and empty is not None:
        return empty
    try:
        return _DECODER.decode(str(data, "utf-8"))
    except RecursionError:
        _bad("the JSON is nested too deeply")
    except (ValueError, UnicodeDecodeError) as error:
        _bad(f"the body is not JSON: {error}")


def _refuse_constant(text: str) -> NoReturn:
    _bad(f"{text} is not JSON; send such values as binary data")


# made once: json.loads and json.dumps make one per call where they are given options
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def split(body: bytes, header_length: str | None) -> tuple[memoryview, memoryview]:
    """The JSON of a body, and the bytes behind it."""
    whole = memoryview(body)
    if header_length is None:
        return whole, whole[len(whole) :]
    if not (header_length.isascii() and header_length.isdecimal() and len(header_length) < 20):
        _bad(f"Inference-Header-Content-Length must be a number of bytes, got {shown(header_length)}")
    length = int(header_length)
    if length > len(whole):
        _bad(f"Inference-Header-Content-Length is {length}, and the body has {len(whole)} bytes")
    return whole[:length], whole[length:]


def _shown(value: Any) -> str:
    """A value of a request, in a message to who sent it."""
    return _ENCODER.encode(value) if value is None or isinstance(value, bool) else shown(value)


def parse(head: Any, binary: memoryview, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> InferRequest:
    """A request for a model with these inputs and outputs.

    Args:
      head: the request's JSON.
      binary: the bytes behind it.
    Raises: RequestError with status 400 and the reason.
    """
    if not isinstance(head, dict):
        _bad(f"the request must be a JSON object, got {_shown(head)}")
    identifier = head.get("id")
    if identifier is not None and not isinstance(identifier, str):
        _bad(f"id must be a string, got {_shown(identifier)}")
    parameters = _parameters(head, "the request")
    if parameters.get("sequence_id") not in (None, 0, ""):
        _bad("sequences of requests are not supported")
    arrays, sizes = _inputs(head.get("inputs"), binary, inputs)
    by_default = parameters.get("binary_data_output") is True
    return InferRequest(arrays, sizes, _wanted(head.get("outputs"), outputs, by_default), identifier, _timeout(parameters))


def _parameters(entry: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    found = entry.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        _bad(f"the parameters of {what} must be a JSON object, got {_shown(found)}")
    if "shared_memory_region" in found:
        _bad("shared memory is not supported")
    return found


def _timeout(parameters: Mapping[str, Any]) -> float | None:
    """The parameter "timeout", which is in microseconds; 0 is none."""
    given = parameters.get("timeout")
    if given is None or given == 0:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        _bad(f"the parameter timeout must be a number of microseconds, got {_shown(given)}")
    return min(given, 10**12) * _MICROSECONDS


def _inputs(given: Any, binary: memoryview, inputs: Sequence[Tensor]) -> tuple[list[np.ndarray], dict[str, int]]:
    if not isinstance(given, list):
        _bad("the request needs a list of inputs")
    known = {tensor.name: tensor for tensor in inputs}
    found: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    at = 0
    for entry in given:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            _bad("each input must be a JSON object with a name")
        tensor = known.get(name)
        if tensor is None:
            _bad(f"the model has no input {_shown(name)}; its inputs are {_listed(known)}")
        if name in found:
            _bad(f"input {name!r} is there twice")
        shape = _shape(entry, tensor, sizes)
        length = _parameters(entry, f"input {name!r}").get("binary_data_size")
        if length is None:
            found[name] = _from_json(entry.get("data"), tensor, shape)
            continue
        needed = math.prod(shape) * tensor.dtype.itemsize
        if isinstance(length, bool) or not isinstance(length, int) or length != needed:
            _bad(f"input {name!r}: {tensor.datatype} of shape {list(shape)} has {needed} bytes; "
                 f"binary_data_size is {_shown(length)}")  # fmt: skip
        if "data" in entry:
            _bad(f"input {name!r} has both data and binary_data_size")
        if at + length > len(binary):
            _bad(f"input {name!r} needs {length} bytes behind the JSON, where {len(binary) - at} are left")
        found[name] = np.frombuffer(binary[at : at + length], tensor.dtype).reshape(shape)
        at += length
    missing = [name for name in known if name not in found]
    if missing:
        _bad(f"the request lacks input {_listed(missing)}")
    if at != len(binary):
        _bad(f"{len(binary) - at} bytes behind the JSON belong to no input")
    return [found[tensor.name] for tensor in inputs], sizes


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"


def _shape(entry: Mapping[str, Any], tensor: Tensor, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape of an input, checked before anything of that size is made. Open sizes go into ``sizes``."""
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if datatype != tensor.datatype:
        _bad(f"input {tensor.name!r} has datatype {tensor.datatype}, got {_shown(datatype)}")
    if not isinstance(shape, list) or len(shape) > _MOST_AXES:
        _bad(f"input {tensor.name!r} needs a shape, a list of sizes")
    if len(shape) != len(tensor.shape):
        _bad(f"input {tensor.name!r} has {len(tensor.shape)} axes, {_sizes(tensor)}; got shape {_shown(shape)}")
    for size, wanted in zip(shape, tensor.shape, strict=True):
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**31:
            _bad(f"input {tensor.name!r}: a size must be a whole number from 0 to 2147483647, got {_shown(size)}")
        if isinstance(wanted, int):
            if size != wanted:
                _bad(f"input {tensor.name!r} has shape {_sizes(tensor)}, got {_shown(shape)}")
        elif sizes.setdefault(wanted, size) != size:
            _bad(f"input {tensor.name!r}: {wanted!r} is {size}, and {sizes[wanted]} in another input")
        elif size not in tensor.accepted[wanted]:
            _bad(f"input {tensor.name!r}: {wanted!r} must be {_choices(tensor.accepted[wanted])}, got {size}")
    return tuple(shape)


def _sizes(tensor: Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _choices(values: Sequence[int]) -> str:
    if isinstance(values, range):
        return f"from {values[0]} to {values[-1]}" if len(values) > 1 else str(values[0])
    return " or ".join(map(str, values))


def _holds_bool(data: list[Any]) -> bool:
    """Whether true or false is among nested lists of numbers, where NumPy takes it for 1 or 0."""
    kinds = set(map(type, data))
    return bool in kinds or (list in kinds and any(map(_holds_bool, data)))


def _from_json(data: Any, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """An array of JSON numbers, flat or nested."""
    name, dtype = tensor.name, tensor.dtype
    if not isinstance(data, list):
        _bad(f"input {name!r} needs data, a list of numbers, or binary_data_size")
    try:
        array = np.asarray(data)
    except (ValueError, RecursionError, OverflowError):
        _bad(f"input {name!r}: the data must be a flat list, or nested as the shape says")
    if array.size != math.prod(shape) or array.shape not in ((array.size,), shape):
        _bad(f"input {name!r} has shape {list(shape)}, and its data has shape {_shown(list(array.shape))}")
    kinds = "b" if dtype.kind == "b" else "iu" if dtype.kind in "iu" else "iuf"
    if array.size and (array.dtype.kind not in kinds or (kinds != "b" and _holds_bool(data))):
        what = {"b": "true or false", "iu": "whole numbers", "iuf": "numbers"}[kinds]
        _bad(f"input {name!r} is {tensor.datatype}, and its data must be {what}")
    with np.errstate(over="ignore", invalid="ignore"):
        made = array.astype(dtype).reshape(shape)
    if kinds == "iu" and array.size and not (made.reshape(array.shape) == array).all():
        _bad(f"input {name!r}: the data has numbers outside the range of {tensor.datatype}")
    if kinds == "iuf" and not np.isfinite(made.astype(np.float64)).all():
        _bad(f"input {name!r}: the data has numbers outside the range of {tensor.datatype}")
    return made


def _wanted(given: Any, outputs: Sequence[Tensor], binary: bool) -> list[Wanted]:
    if given is None or given == []:
        return [Wanted(i, binary) for i in range(len(outputs))]
    if not isinstance(given, list):
        _bad(f"outputs must be a list, got {_shown(given)}")
    positions = {tensor.name: i for i, tensor in enumerate(outputs)}
    made: dict[str, Wanted] = {}
    for entry in given:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            _bad("each output must be a JSON object with a name")
        if name not in positions:
            _bad(f"the model has no output {_shown(name)}; its outputs are {_listed(positions)}")
        if name in made:
            _bad(f"output {name!r} is there twice")
        parameters = _parameters(entry, f"output {name!r}")
        if parameters.get("classification") not in (None, 0):
            _bad("the classification extension is not supported; take the largest values of the output")
        as_binary = parameters.get("binary_data", binary)
        if not isinstance(as_binary, bool):
            _bad(f"binary_data of output {name!r} must be true or false, got {_shown(as_binary)}")
        made[name] = Wanted(positions[name], as_binary)
    return list(made.values())


# --- responses


def encode(
    request: InferRequest, results: Sequence[np.ndarray], outputs: Sequence[Tensor], model: str, version: str
) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an answer."""
    head: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": []}
    if request.id is not None:
        head["id"] = request.id
    parts = []
    for wanted in request.wanted:
        tensor, array = outputs[wanted.position], results[wanted.position]
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(array.shape)}
        if wanted.binary:
            parts.append(array.tobytes())
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = array.ravel().tolist()
        head["outputs"].append(entry)
    try:
        text = _ENCODER.encode(head).encode()
    except ValueError:
        raise RequestError(
            422, "an output has NaN or infinite values, which JSON cannot express; ask for it as binary data"
        ) from None
    if not parts:
        return text, {"content-type": JSON}
    return b"".join([text, *parts]), {"content-type": BINARY, HEADER_LENGTH: str(len(text))}
