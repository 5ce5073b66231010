"""``flow.optimizer.loss_scale``: a factor on the loss that keeps small gradients of 16-bit floats from becoming 0."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from ._loss_scale import DynamicLossScalePolicy as DynamicLossScalePolicy
    from ._loss_scale import StaticLossScalePolicy as StaticLossScalePolicy
    from ._loss_scale import dynamic_loss_scale as dynamic_loss_scale
    from ._loss_scale import static_loss_scale as static_loss_scale

_on_demand = {
    "DynamicLossScalePolicy": "._loss_scale:DynamicLossScalePolicy",
    "StaticLossScalePolicy": "._loss_scale:StaticLossScalePolicy",
    "dynamic_loss_scale": "._loss_scale:dynamic_loss_scale",
    "static_loss_scale": "._loss_scale:static_loss_scale",
}
