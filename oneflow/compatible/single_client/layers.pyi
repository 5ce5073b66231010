# Written by scripts/write_stubs.py: the names of oneflow.layers, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.layers import batch_normalization as batch_normalization
from oneflow.layers import batch_normalization_add_relu as batch_normalization_add_relu
from oneflow.layers import batch_normalization_relu as batch_normalization_relu
from oneflow.layers import categorical_ordinal_encoder as categorical_ordinal_encoder
from oneflow.layers import conv1d as conv1d
from oneflow.layers import conv2d as conv2d
from oneflow.layers import conv3d as conv3d
from oneflow.layers import dense as dense
from oneflow.layers import embedding as embedding
from oneflow.layers import layer_norm as layer_norm
from oneflow.layers import layer_norm_grad as layer_norm_grad
from oneflow.layers import layer_norm_param_grad as layer_norm_param_grad
from oneflow.layers import prelu as prelu
from oneflow.compatible.single_client._ops import upsample_2d as upsample_2d
