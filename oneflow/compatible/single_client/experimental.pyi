# Written by scripts/write_stubs.py: the names of oneflow.experimental, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.experimental import CustomOpModule as CustomOpModule
from oneflow.experimental import TensorSpec as TensorSpec
from oneflow.experimental import custom_op_module as custom_op_module
from oneflow.experimental import dynamic_binary_concat as dynamic_binary_concat
from oneflow.experimental import dynamic_binary_split as dynamic_binary_split
from oneflow.experimental import eager_assign_121 as eager_assign_121
from oneflow.experimental import enable_typing_check as enable_typing_check
from oneflow.experimental import get_interface_blob_value as get_interface_blob_value
from oneflow.experimental import get_job_set as get_job_set
from oneflow.experimental import indexed_slices_reduce_sum as indexed_slices_reduce_sum
from oneflow.experimental import logical_slice as logical_slice
from oneflow.experimental import logical_slice_assign as logical_slice_assign
from oneflow.experimental import name_scope as name_scope
from oneflow.experimental import register_host_op as register_host_op
from oneflow.experimental import register_op as register_op
from oneflow.experimental import scope as scope
from oneflow.experimental import set_interface_blob_value as set_interface_blob_value
from oneflow.experimental import square_sum as square_sum
from oneflow.experimental import ssp_variable_proxy as ssp_variable_proxy
from oneflow.experimental import unique_with_counts as unique_with_counts
