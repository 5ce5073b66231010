"""``flow.experimental``: names that were not final in OneFlow."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ..graph.scopes import namespace as name_scope
from ..ops.array import assign as eager_assign_121
from ..ops.binary_split import dynamic_binary_concat, dynamic_binary_split
from ..ops.reduce import square_sum
from ..ops.scatter import indexed_slices_reduce_sum, unique_with_counts
from ..ops.slicing import logical_slice, logical_slice_assign
from ..ops.ssp import ssp_variable_proxy
from . import scope
from ._interface_values import get_interface_blob_value, set_interface_blob_value
from ._job_set import get_job_set
from ._typing_check import enable_typing_check

_on_demand = {
    "CustomOpModule": "._custom_op_module:CustomOpModule",
    "TensorSpec": "..ops.custom:TensorSpec",
    "custom_op_module": "._custom_op_module:custom_op_module",
    "register_host_op": "..ops.custom:register_host_op",
    "register_op": "..ops.custom:register_op",
}
if _TYPE_CHECKING:
    from ..ops.custom import TensorSpec as TensorSpec
    from ..ops.custom import register_host_op as register_host_op
    from ..ops.custom import register_op as register_op
    from ._custom_op_module import CustomOpModule as CustomOpModule
    from ._custom_op_module import custom_op_module as custom_op_module

__all__ = [
    "CustomOpModule", "TensorSpec", "custom_op_module", "dynamic_binary_concat", "dynamic_binary_split",
    "eager_assign_121", "enable_typing_check", "get_interface_blob_value", "get_job_set", "indexed_slices_reduce_sum",
    "logical_slice", "logical_slice_assign", "name_scope", "register_host_op", "register_op", "scope",
    "set_interface_blob_value", "square_sum", "ssp_variable_proxy", "unique_with_counts",
]  # fmt: skip
