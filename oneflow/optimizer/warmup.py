"""``flow.optimizer.warmup``: a lower learning rate for the first steps, as an argument of a schedule."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from ._warmup import constant as constant
    from ._warmup import linear as linear

_on_demand = {"constant": "._warmup:constant", "linear": "._warmup:linear"}
