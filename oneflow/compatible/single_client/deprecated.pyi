# Written by scripts/write_stubs.py: the names of oneflow.deprecated, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.deprecated import delete_worker as delete_worker
from oneflow.deprecated import delete_worker_by_bootstrap as delete_worker_by_bootstrap
from oneflow.deprecated import delete_worker_of_multi_process as delete_worker_of_multi_process
from oneflow.deprecated import init_worker as init_worker
from oneflow.deprecated import nn as nn
from oneflow.deprecated import variable_scope as variable_scope
