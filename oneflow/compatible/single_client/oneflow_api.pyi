# Written by scripts/write_stubs.py: the names of oneflow.oneflow_api, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.oneflow_api import BlobDesc as BlobDesc
from oneflow.oneflow_api import ConsistentBlob as ConsistentBlob
from oneflow.oneflow_api import EagerConsistentBlob as EagerConsistentBlob
from oneflow.oneflow_api import EagerMirroredBlob as EagerMirroredBlob
from oneflow.oneflow_api import GetCurrentScope as GetCurrentScope
from oneflow.oneflow_api import INVALID_BATCH_AXIS as INVALID_BATCH_AXIS
from oneflow.oneflow_api import INVALID_SPLIT_AXIS as INVALID_SPLIT_AXIS
from oneflow.oneflow_api import LazyConsistentBlob as LazyConsistentBlob
from oneflow.oneflow_api import LazyMirroredBlob as LazyMirroredBlob
from oneflow.oneflow_api import MirroredBlob as MirroredBlob
from oneflow.oneflow_api import Size as Size
from oneflow.oneflow_api import distribute as distribute
from oneflow.oneflow_api import dtype as dtype
from oneflow.oneflow_api import exception as exception
from oneflow.oneflow_api import flags as flags
