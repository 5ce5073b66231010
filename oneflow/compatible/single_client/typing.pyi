# Written by scripts/write_stubs.py: the names of oneflow.typing, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.typing import Bundle as Bundle
from oneflow.typing import Callback as Callback
from oneflow.typing import Dict as Dict
from oneflow.typing import FixedTensorDef as FixedTensorDef
from oneflow.typing import List as List
from oneflow.typing import ListListNumpy as ListListNumpy
from oneflow.typing import ListNumpy as ListNumpy
from oneflow.typing import MirroredTensorDef as MirroredTensorDef
from oneflow.typing import MirroredTensorListDef as MirroredTensorListDef
from oneflow.typing import Numpy as Numpy
from oneflow.typing import Tuple as Tuple
