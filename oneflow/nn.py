"""``flow.nn``: neural network ops."""

from __future__ import annotations

from .ops.conv import bias_add as bias_add
from .ops.conv import compat_conv2d as compat_conv2d
from .ops.conv import conv1d as conv1d
from .ops.conv import conv2d as conv2d
from .ops.conv import conv2d_transpose as conv2d_transpose
from .ops.conv import conv3d as conv3d
from .ops.conv import torch_conv2d_transpose as torch_conv2d_transpose
from .ops.dropout import dropout as dropout
from .ops.dropout import random_mask_like as random_mask_like
from .ops.elementwise import relu as relu
from .ops.loss import distributed_sparse_softmax_cross_entropy_with_logits as distributed_sparse_softmax_cross_entropy_with_logits
from .ops.loss import sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits
from .ops.loss import softmax_cross_entropy_with_logits as softmax_cross_entropy_with_logits
from .ops.loss import sparse_cross_entropy as sparse_cross_entropy
from .ops.loss import sparse_softmax_cross_entropy_with_logits as sparse_softmax_cross_entropy_with_logits
from .ops.matrix import fused_scale_tril as fused_scale_tril
from .ops.matrix import tril as tril
from .ops.nn import PixelShuffle as PixelShuffle
from .ops.nn import PixelShufflev2 as PixelShufflev2
from .ops.nn import elu as elu
from .ops.nn import hardsigmoid as hardsigmoid
from .ops.nn import hardswish as hardswish
from .ops.nn import hardtanh as hardtanh
from .ops.nn import leaky_relu as leaky_relu
from .ops.nn import logsoftmax as logsoftmax
from .ops.nn import mish as mish
from .ops.nn import moments as moments
from .ops.nn import relu6 as relu6
from .ops.nn import softmax as softmax
from .ops.nn import softmax_grad as softmax_grad
from .ops.nn import swish as swish
from .ops.norm import GroupNorm as GroupNorm
from .ops.norm import InstanceNorm1d as InstanceNorm1d
from .ops.norm import InstanceNorm2d as InstanceNorm2d
from .ops.norm import InstanceNorm3d as InstanceNorm3d
from .ops.norm import batch_normalization as batch_normalization
from .ops.norm import layer_norm as layer_norm
from .ops.pool import avg_pool1d as avg_pool1d
from .ops.pool import avg_pool2d as avg_pool2d
from .ops.pool import avg_pool3d as avg_pool3d
from .ops.pool import max_pool1d as max_pool1d
from .ops.pool import max_pool2d as max_pool2d
from .ops.pool import max_pool3d as max_pool3d
