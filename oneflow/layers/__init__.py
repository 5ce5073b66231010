"""``flow.layers``: ops with variables of their own."""

from .conv import conv1d as conv1d
from .conv import conv2d as conv2d
from .conv import conv3d as conv3d
from .dense import dense as dense
from .norm import batch_normalization as batch_normalization
from .norm import batch_normalization_add_relu as batch_normalization_add_relu
from .norm import batch_normalization_relu as batch_normalization_relu
from .norm import layer_norm as layer_norm
from .norm import layer_norm_grad as layer_norm_grad
from .norm import layer_norm_param_grad as layer_norm_param_grad
from .other import categorical_ordinal_encoder as categorical_ordinal_encoder
from .other import embedding as embedding
from .other import prelu as prelu
from .other import upsample_2d as upsample_2d
