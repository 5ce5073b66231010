"""``flow.optimizer.loss_scale``: a factor on the loss that keeps small gradients of 16-bit floats from becoming 0."""

from ._loss_scale import DynamicLossScalePolicy as DynamicLossScalePolicy
from ._loss_scale import StaticLossScalePolicy as StaticLossScalePolicy
from ._loss_scale import dynamic_loss_scale as dynamic_loss_scale
from ._loss_scale import static_loss_scale as static_loss_scale
