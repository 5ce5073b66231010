"""``flow.deprecated``: older spellings."""

from ..graph.scopes import namespace as variable_scope
from ..runtime.environment import delete_worker as delete_worker
from ..runtime.environment import delete_worker_by_bootstrap as delete_worker_by_bootstrap
from ..runtime.environment import delete_worker_of_multi_process as delete_worker_of_multi_process
from ..runtime.environment import init_worker as init_worker
from . import nn as nn

__all__ = [
    "delete_worker", "delete_worker_by_bootstrap", "delete_worker_of_multi_process", "init_worker", "nn", "variable_scope",
]  # fmt: skip
