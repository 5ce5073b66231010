"""``flow.typing``: annotations that say what a job takes and what a call of it gives.

Parameters: ``tp.Numpy.Placeholder(shape, dtype)`` and its List kinds, or ``Tuple[...]`` of them.
Results: ``None``, ``Numpy``, ``ListNumpy``, ``ListListNumpy``, any nesting of ``Tuple``, ``List``, ``Dict`` of these,
``Bundle[T]`` for a nesting that the body decides, ``Callback[T]`` for an asynchronous call.
"""

from typing import Dict, List, Tuple  # noqa: UP035 - programs take them from here

from ._signature.inputs import (
    FixedTensorDef,
    InputDef,
    ListListNumpy,
    ListNumpy,
    MirroredTensorDef,
    MirroredTensorListDef,
    Numpy,
    Parameter,
    map_structure,
)
from ._signature.parameters import annotations_required, parse_parameters, require_annotations
from ._signature.returns import Bundle, Callback, Matched, ReturnSpec, match_return, parse_return

__all__ = [
    "Bundle", "Callback", "Dict", "FixedTensorDef", "InputDef", "List", "ListListNumpy", "ListNumpy", "Matched",
    "MirroredTensorDef", "MirroredTensorListDef", "Numpy", "Parameter", "ReturnSpec", "Tuple", "annotations_required",
    "map_structure", "match_return", "parse_parameters", "parse_return", "require_annotations",
]  # fmt: skip
