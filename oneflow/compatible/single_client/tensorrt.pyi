# Written by scripts/write_stubs.py: the names of oneflow.tensorrt, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.tensorrt import cache_int8_calibration as cache_int8_calibration
from oneflow.tensorrt import write_int8_calibration as write_int8_calibration
