"""``flow.scope``: placements, views and names of the ops inside a scope."""

from .graph.scopes import DistributeConsistentStrategy as DistributeConsistentStrategy
from .graph.scopes import DistributeMirroredStrategy as DistributeMirroredStrategy
from .graph.scopes import PlacementScope as PlacementScope
from .graph.scopes import View as View
from .graph.scopes import config as config
from .graph.scopes import consistent_view as consistent_view
from .graph.scopes import consistent_view_enabled as consistent_view_enabled
from .graph.scopes import current_scope as current_scope
from .graph.scopes import device as device
from .graph.scopes import mirrored_view as mirrored_view
from .graph.scopes import mirrored_view_enabled as mirrored_view_enabled
from .graph.scopes import namespace as namespace
from .graph.scopes import placement as placement
