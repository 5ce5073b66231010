"""``optimizer`` of 0.6: other formulas of Adam, LARS and LAMB, and clipping before regularizers."""

from __future__ import annotations

from ....optimizer.rules_v06 import LAMB as LAMB
from ....optimizer.rules_v06 import LARS as LARS
from ....optimizer.rules_v06 import SGD as SGD
from ....optimizer.rules_v06 import SGDW as SGDW
from ....optimizer.rules_v06 import Adam as Adam
from ....optimizer.rules_v06 import AdamW as AdamW
from ....optimizer.rules_v06 import LazyAdam as LazyAdam
from ....optimizer.rules_v06 import RMSProp as RMSProp
from ..._imports import sharing as _sharing

__getattr__, __dir__, _public_names = _sharing(__name__)
