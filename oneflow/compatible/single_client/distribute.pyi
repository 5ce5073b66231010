# Written by scripts/write_stubs.py: the names of oneflow.distribute, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.distribute import Distribute as Distribute
from oneflow.distribute import assert_is_valid_distribute as assert_is_valid_distribute
from oneflow.distribute import auto as auto
from oneflow.distribute import broadcast as broadcast
from oneflow.distribute import consistent_strategy as consistent_strategy
from oneflow.distribute import consistent_strategy_enabled as consistent_strategy_enabled
from oneflow.distribute import mirrored_strategy as mirrored_strategy
from oneflow.distribute import mirrored_strategy_enabled as mirrored_strategy_enabled
from oneflow.distribute import split as split
