"""``flow.unittest``: a TestCase with a new session for each test, and skipping by the number of machines and devices."""

import sys as _sys

from .._base.public import install as _install_public_modules
from . import env as env
from ._cases import TestCase as TestCase
from ._cases import num_nodes_required as num_nodes_required
from ._cases import register_test_cases as register_test_cases
from ._cases import skip_unless_1n1d as skip_unless_1n1d
from ._cases import skip_unless_1n2d as skip_unless_1n2d
from ._cases import skip_unless_1n4d as skip_unless_1n4d
from ._cases import skip_unless_2n1d as skip_unless_2n1d
from ._cases import skip_unless_2n2d as skip_unless_2n2d
from ._cases import skip_unless_2n4d as skip_unless_2n4d

_install_public_modules([_sys.modules[__name__], env])
