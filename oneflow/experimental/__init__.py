"""``flow.experimental``: names that were not final."""

from ..ops.reduce import square_sum
from ..ops.scatter import indexed_slices_reduce_sum, unique_with_counts
from ..ops.slicing import logical_slice, logical_slice_assign
from ..scope import namespace as name_scope
from . import scope
from .interface_op_read_and_write import get_interface_blob_value, set_interface_blob_value
from .typing_check import enable_typing_check

__all__ = [
    "enable_typing_check", "get_interface_blob_value", "indexed_slices_reduce_sum", "logical_slice", "logical_slice_assign",
    "name_scope", "scope", "set_interface_blob_value", "square_sum", "unique_with_counts",
]  # fmt: skip
