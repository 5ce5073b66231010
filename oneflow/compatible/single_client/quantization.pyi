# Written by scripts/write_stubs.py: the names of oneflow.quantization, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.quantization import calibrate as calibrate
from oneflow.quantization import convert as convert
from oneflow.compatible.single_client._ops import fake_quantization as fake_quantization
from oneflow.compatible.single_client._ops import min_max_observer as min_max_observer
from oneflow.quantization import moving_average_min_maxObserver as moving_average_min_maxObserver
from oneflow.quantization import moving_average_min_max_observer as moving_average_min_max_observer
