"""``flow.regularizers``: penalties that are added to a variable's gradient."""

from ._variables.regularizers import L1L2 as L1L2
from ._variables.regularizers import l1 as l1
from ._variables.regularizers import l1_l2 as l1_l2
from ._variables.regularizers import l2 as l2
