# Written by scripts/write_stubs.py: the names of oneflow.scope, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.scope import DistributeConsistentStrategy as DistributeConsistentStrategy
from oneflow.scope import DistributeMirroredStrategy as DistributeMirroredStrategy
from oneflow.scope import PlacementScope as PlacementScope
from oneflow.scope import View as View
from oneflow.scope import config as config
from oneflow.scope import consistent_view as consistent_view
from oneflow.scope import consistent_view_enabled as consistent_view_enabled
from oneflow.scope import current_scope as current_scope
from oneflow.scope import device as device
from oneflow.scope import mirrored_view as mirrored_view
from oneflow.scope import mirrored_view_enabled as mirrored_view_enabled
from oneflow.scope import namespace as namespace
from oneflow.scope import placement as placement
