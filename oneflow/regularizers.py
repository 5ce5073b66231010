"""``flow.regularizers``: penalties, which are added to the gradients of variables."""

from ._variables.regularizers import L1L2 as L1L2
from ._variables.regularizers import l1 as l1
from ._variables.regularizers import l1_l2 as l1_l2
from ._variables.regularizers import l2 as l2
