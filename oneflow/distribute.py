"""``flow.distribute``: the layout of a logical tensor on its devices."""

from ._base.dist import Distribute as Distribute
from ._base.dist import assert_is_valid_distribute as assert_is_valid_distribute
from ._base.dist import auto as auto
from ._base.dist import broadcast as broadcast
from ._base.dist import split as split
from .graph.scopes import consistent_view as consistent_strategy  # the older spellings of the views
from .graph.scopes import consistent_view_enabled as consistent_strategy_enabled
from .graph.scopes import mirrored_view as mirrored_strategy
from .graph.scopes import mirrored_view_enabled as mirrored_strategy_enabled

__all__ = [
    "Distribute", "assert_is_valid_distribute", "auto", "broadcast", "consistent_strategy", "consistent_strategy_enabled",
    "mirrored_strategy", "mirrored_strategy_enabled", "split",
]  # fmt: skip
