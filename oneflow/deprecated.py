"""``flow.deprecated``: older spellings."""

from .config._environment import delete_worker as delete_worker
from .config._environment import init_worker as init_worker
from .scope import namespace as variable_scope

__all__ = ["delete_worker", "init_worker", "variable_scope"]
