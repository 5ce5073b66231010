"""``flow.optimizer.warmup``: a lower learning rate for the first steps, as an argument of a schedule."""

from ._warmup import constant as constant
from ._warmup import linear as linear
