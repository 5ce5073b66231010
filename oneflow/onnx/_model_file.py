"""Reading ONNX files that others made: regular files only, and no more bytes than their tensors have."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

from .._base.files import leads_outside, open_regular, read_regular, why_outside
from ..export._files import LARGEST_FILE


def read(onnx: Any, path: str) -> Any:
    """The model in a file, with its external data, and its functions inlined. Raises whatever is wrong with it."""
    proto = onnx.load_model_from_string(read_regular(path, LARGEST_FILE))
    if not proto.graph.node and not proto.graph.output:
        raise ValueError("it has no graph")
    folder = os.path.dirname(path) or os.curdir
    for tensor in _tensors(proto.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(onnx, tensor, folder)
    onnx.load_external_data_for_model(proto, folder)
    return onnx.inliner.inline_local_functions(proto) if proto.functions else proto


def _tensors(graph: Any) -> Iterator[Any]:
    """The initializers of a graph, and the tensors in attributes of its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _check_external(onnx: Any, tensor: Any, folder: str) -> None:
    """Raises OSError or ValueError unless the elements of a tensor are in a file of the model's folder, and in nothing else."""
    given = {entry.key: entry.value for entry in tensor.external_data}
    location, what = given.get("location", ""), f"the external data of {tensor.name!r}"
    path = os.path.join(folder, location)
    if not location or leads_outside(location):
        raise ValueError(f"{what} are not in the folder of the model, but at {location!r}")
    if why := why_outside(path, folder, "the folder of the model"):
        raise ValueError(f"{what} cannot be read: {why}")
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ValueError(f"{what} cannot be read from {location!r}: {error.strerror}") from error
    begin = int(given.get("offset", 0))
    length = int(given.get("length", max(size - begin, 0)))
    most = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    if begin < 0 or not 0 <= length <= min(most, size - begin):
        raise ValueError(f"{what} are bytes {begin} to {begin + length - 1} of {size}, and the tensor has {most}")
