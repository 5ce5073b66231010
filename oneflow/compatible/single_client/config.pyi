# Written by scripts/write_stubs.py: the names of oneflow.config, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.config import FunctionConfig as FunctionConfig
from oneflow.config import FunctionDesc as FunctionDesc
from oneflow.config import InitEagerGlobalSession as InitEagerGlobalSession
from oneflow.config import Resource as Resource
from oneflow.config import collective_boxing as collective_boxing
from oneflow.config import eager_execution_enabled as eager_execution_enabled
from oneflow.config import enable_eager_execution as enable_eager_execution
from oneflow.config import function_config as function_config
from oneflow.config import inter_job_reuse_mem_strategy as inter_job_reuse_mem_strategy
