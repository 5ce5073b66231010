# Written by scripts/write_stubs.py: the names of oneflow.unittest, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.unittest import TestCase as TestCase
from oneflow.unittest import env as env
from oneflow.unittest import num_nodes_required as num_nodes_required
from oneflow.unittest import register_test_cases as register_test_cases
from oneflow.unittest import skip_unless_1n1d as skip_unless_1n1d
from oneflow.unittest import skip_unless_1n2d as skip_unless_1n2d
from oneflow.unittest import skip_unless_1n4d as skip_unless_1n4d
from oneflow.unittest import skip_unless_2n1d as skip_unless_2n1d
from oneflow.unittest import skip_unless_2n2d as skip_unless_2n2d
from oneflow.unittest import skip_unless_2n4d as skip_unless_2n4d
