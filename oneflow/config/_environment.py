"""``flow.env``: the machines of a run. Settings hold for the process and are made before the first session starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from .._base.jax import jax
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, ModeError
from ._settings import Resource, Settings

Environment = Settings("flow.env", "environment has been initialized")
_LOGS = "no effect: the library writes no log files; it logs to logging.getLogger('oneflow')"

_LAST_PORT = 65535


def _port_rule(value: int) -> str:
    return "" if value == -1 or 0 < value <= _LAST_PORT else f"a port is a number from 1 to {_LAST_PORT}"


ctrl_port = Environment.define(
    "ctrl_port", int, None, "Where the first of several machines listens for the others.", verify=_port_rule
)
data_port = Environment.define(
    "data_port", int, -1, "Where JAX's coordinator in the first process listens; -1 for a free port.", verify=_port_rule
)
bind_address = Environment.define(
    "bind_address", str, None, "An address of the first machine to listen at, where others know it by another (NAT, containers)."
)
secret_file = Environment.define("secret_file", str, None, "A file that holds the secret of the run, the same for all processes.")
insecure = Environment.define(
    "insecure", bool, False, "Lets everybody who reaches the port of the run take part in it, where there is no secret.",
    implied=True,
)  # fmt: skip
Environment.define("machines", list, (), "The machines of the run, in the order of their ids.")
Environment.define("secret", str, None, "The secret of the run, the same for all processes.")
start_timeout = Environment.define(
    "start_timeout", int, 50, "Seconds that processes of a run wait for each other at the start.", minimum=1
)
stall_timeout = Environment.define(
    "stall_timeout", int, 40, "Seconds that a process may stand still while another waits for it; then all end.", minimum=1
)
step_timeout = Environment.define(
    "step_timeout", int, 300,
    "Seconds, and at least 20 times the median of its earlier steps, that all processes may be inside the same step before "
    "the first one tells what each does.", minimum=1,
)  # fmt: skip
end_on_step_timeout = Environment.define(
    "end_on_step_timeout", bool, False, "Ends the run where a step takes longer than step_timeout allows.", implied=True
)
all_output = Environment.define("all_output", bool, False, "Shows what other processes than the first print, too.", implied=True)
log_dir = Environment.define("log_dir", str, "./log", _LOGS)
logtostderr = Environment.define("logtostderr", int, 0, _LOGS)
logbuflevel = Environment.define("logbuflevel", int, -1, _LOGS)
grpc_use_no_signal = Environment.define("grpc_use_no_signal", bool, True, "no effect: there is no gRPC here", implied=True)
enable_eager_environment = Environment.define(
    "enable_eager_environment", bool, False, "Starts the environment of eager mode.", implied=True, refused=bool,
    pending="there is no eager mode",
)  # fmt: skip

SECRET_LENGTHS = range(16, 4097)
LAUNCHED = "ONEFLOW_LAUNCHED"  # set by oneflow/launch.py for each process: index count host:port index_on_node count_on_node
_ADDRESS_KEYS = {"addr": str, "ctrl_port_agent": int, "data_port_agent": int}


def machine(*val: Any) -> bool | None:
    """Names the machines of the run, in the order of their ids; without a call it is this one alone.

    Args:
      val: addresses, as arguments or as one list. Each is a string such as "192.168.1.10", or a dict
        {"addr": str, "ctrl_port_agent": int, "data_port_agent": int} whose ports are optional.
    Returns: None, or False where the environment is in use already and nothing happened.
    Raises:
      ArgumentError: an address is of another form or named twice.
    """
    if not Environment.accepts("flow.env.machine", ", ".join(map(shown, val))):
        return False
    given = val[0] if len(val) == 1 and isinstance(val[0], (list, tuple)) else val
    machines = [_address(item) for item in given]
    if not machines:
        refuse(ArgumentError, "flow.env.machine needs at least one address", hint='flow.env.machine("127.0.0.1")')
    addresses = [m["addr"] for m in machines]
    if len(set(addresses)) != len(addresses) and LAUNCHED not in os.environ:
        refuse(ArgumentError, f"flow.env.machine: each address may be named once, got {', '.join(addresses)}",
               hint="python -m oneflow.launch --nproc n script.py starts several processes on one machine")  # fmt: skip
    Environment.put("machines", [{"id": i, **m} for i, m in enumerate(machines)])
    return None


def _address(item: Any) -> dict[str, Any]:
    if isinstance(item, str) and item:
        return {"addr": item}
    if isinstance(item, dict) and item.get("addr") and all(type(v) is _ADDRESS_KEYS.get(k) for k, v in item.items()):
        if all(value <= _LAST_PORT for value in item.values() if type(value) is int):
            return dict(item)
    refuse(
        ArgumentError, f"flow.env.machine: {shown(item)} is not an address", hint='"192.168.1.10", or {"addr": "192.168.1.10"}'
    )


class _Hidden(str):
    """A text that a repr does not show."""

    def __repr__(self) -> str:
        return "'...'"


def secret(val: str) -> bool | None:
    """Sets the secret by which the processes of a run know each other; all of them need the same.

    Args:
      val: 16 to 4096 characters, for example of ``openssl rand -hex 32``. Better not a part of the script: see ``secret_file``.
    Returns: None, or False where the environment is in use already and nothing happened.
    Raises:
      ArgumentError: it is not a string of that length.
    """
    if not Environment.accepts("flow.env.secret", "..."):
        return False
    if not isinstance(val, str) or len(val.strip()) not in SECRET_LENGTHS:
        refuse(ArgumentError, f"flow.env.secret takes a string of {SECRET_LENGTHS[0]} to {SECRET_LENGTHS[-1]} characters",
               hint="openssl rand -hex 32")  # fmt: skip
    Environment.put("secret", _Hidden(val.strip()))
    return None


def init_bootstrap_confs(*val: Any, **kargs: Any) -> bool | None:
    """As ``machine``: the processes of a run on one machine, as some later versions name them."""
    return machine(*val)


def needs_environment(what: str) -> None:
    """Raises ModeError before the environment was initialised."""
    if not Environment.frozen:
        refuse(ModeError, f"{what} needs an initialized environment", hint="call flow.env.init() first")


def current_resource() -> SimpleNamespace:
    """The settings of ``flow.config`` as they hold now, with the devices that were found where none were asked for.

    Raises:
      ModeError: before ``flow.env.init()`` and the first session.
    """
    needs_environment("flow.env.current_resource()")
    facts = {option.name: getattr(Resource, option.name) for option in Resource.options if "." not in option.name}
    facts["machine_num"] = facts["machine_num"] or max(1, len(machines()))
    if facts["gpu_device_num"] is None:
        facts["gpu_device_num"] = sum(device.platform == "gpu" for device in jax.local_devices())
    if facts["cpu_device_num"] is None:
        facts["cpu_device_num"] = os.cpu_count() or 1
    return SimpleNamespace(**facts)


def machines() -> Sequence[dict[str, Any]]:
    """The machines that were named, with their ids."""
    return tuple(Environment.machines)
