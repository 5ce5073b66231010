"""``flow.env``: the machines of a run and the ports between them."""

from .config._environment import all_output as all_output
from .config._environment import bind_address as bind_address
from .config._environment import ctrl_port as ctrl_port
from .config._environment import current_resource as current_resource
from .config._environment import data_port as data_port
from .config._environment import enable_eager_environment as enable_eager_environment
from .config._environment import end_on_step_timeout as end_on_step_timeout
from .config._environment import grpc_use_no_signal as grpc_use_no_signal
from .config._environment import init_bootstrap_confs as init_bootstrap_confs
from .config._environment import insecure as insecure
from .config._environment import log_dir as log_dir
from .config._environment import logbuflevel as logbuflevel
from .config._environment import logtostderr as logtostderr
from .config._environment import machine as machine
from .config._environment import secret as secret
from .config._environment import secret_file as secret_file
from .config._environment import stall_timeout as stall_timeout
from .config._environment import start_timeout as start_timeout
from .config._environment import step_timeout as step_timeout
from .runtime.environment import init as init
