# Written by scripts/write_stubs.py: the names of oneflow.env, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.env import all_output as all_output
from oneflow.env import bind_address as bind_address
from oneflow.env import ctrl_port as ctrl_port
from oneflow.env import current_resource as current_resource
from oneflow.env import data_port as data_port
from oneflow.env import enable_eager_environment as enable_eager_environment
from oneflow.env import end_on_step_timeout as end_on_step_timeout
from oneflow.env import grpc_use_no_signal as grpc_use_no_signal
from oneflow.env import init as init
from oneflow.env import init_bootstrap_confs as init_bootstrap_confs
from oneflow.env import insecure as insecure
from oneflow.env import log_dir as log_dir
from oneflow.env import logbuflevel as logbuflevel
from oneflow.env import logtostderr as logtostderr
from oneflow.env import machine as machine
from oneflow.env import secret as secret
from oneflow.env import secret_file as secret_file
from oneflow.env import stall_timeout as stall_timeout
from oneflow.env import start_timeout as start_timeout
from oneflow.env import step_timeout as step_timeout
