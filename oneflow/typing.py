"""``flow.typing``: annotations of a job's parameters and of the results of its calls.

Parameters: ``tp.Numpy.Placeholder(shape, dtype)`` and its List kinds, or ``Tuple[...]`` of them.
Results: ``None``, ``Numpy``, ``ListNumpy``, ``ListListNumpy``, any nesting of ``Tuple``, ``List``, ``Dict`` of these,
``Bundle[T]`` for a nesting that the body decides, ``Callback[T]`` for an asynchronous call.
"""

from typing import Dict, List, Tuple  # noqa: UP035 - programs take them from here

from ._signature.inputs import FixedTensorDef, ListListNumpy, ListNumpy, MirroredTensorDef, MirroredTensorListDef, Numpy
from ._signature.returns import Bundle, Callback

__all__ = [
    "Bundle", "Callback", "Dict", "FixedTensorDef", "List", "ListListNumpy", "ListNumpy", "MirroredTensorDef",
    "MirroredTensorListDef", "Numpy", "Tuple",
]  # fmt: skip
