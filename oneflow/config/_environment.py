"""``flow.env``: the machines of a run. Settings hold for the process and are made before the first session starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from .._jax import jax
from .._refuse import refuse
from ..errors import ArgumentError, ModeError
from ._settings import Resource, Settings

Environment = Settings("flow.env", "environment has been initialized")
_LOGS = "no effect: the library writes no log files; it logs to logging.getLogger('oneflow')"
_PORTS = "no effect on one machine"

ctrl_port = Environment.define("ctrl_port", int, None, _PORTS)
data_port = Environment.define("data_port", int, -1, _PORTS)
log_dir = Environment.define("log_dir", str, "./log", _LOGS)
logtostderr = Environment.define("logtostderr", int, 0, _LOGS)
logbuflevel = Environment.define("logbuflevel", int, -1, _LOGS)
grpc_use_no_signal = Environment.define("grpc_use_no_signal", bool, True, "no effect: there is no gRPC here", implied=True)
enable_eager_environment = Environment.define(
    "enable_eager_environment", bool, False, "Starts the environment of eager mode.", implied=True, refused=bool,
    pending="there is no eager mode",
)  # fmt: skip

_ADDRESS_KEYS = {"addr": str, "ctrl_port_agent": int, "data_port_agent": int}
_machines: list[dict[str, Any]] = []


def machine(*val: Any) -> bool | None:
    """Names the machines of the run, in the order of their ids; without a call it is this one alone.

    Args:
      val: addresses, as arguments or as one list. Each is a string such as "192.168.1.10", or a dict
        {"addr": str, "ctrl_port_agent": int, "data_port_agent": int} whose ports are optional.
    Returns: None, or False where the environment is in use already and nothing happened.
    Raises:
      ArgumentError: an address is of another form or named twice.
    """
    if not Environment.accepts("flow.env.machine", ", ".join(map(repr, val))):
        return False
    given = val[0] if len(val) == 1 and isinstance(val[0], (list, tuple)) else val
    machines = [_address(item) for item in given]
    if not machines:
        refuse(ArgumentError, "flow.env.machine needs at least one address", hint='flow.env.machine("127.0.0.1")')
    addresses = [m["addr"] for m in machines]
    if len(set(addresses)) != len(addresses):
        refuse(ArgumentError, f"flow.env.machine: each address may be named once, got {', '.join(addresses)}")
    _machines[:] = [{"id": i, **m} for i, m in enumerate(machines)]
    return None


def _address(item: Any) -> dict[str, Any]:
    if isinstance(item, str) and item:
        return {"addr": item}
    if isinstance(item, dict) and item.get("addr") and all(type(v) is _ADDRESS_KEYS.get(k) for k, v in item.items()):
        return dict(item)
    refuse(ArgumentError, f"flow.env.machine: {item!r} is not an address", hint='"192.168.1.10", or {"addr": "192.168.1.10"}')


def init_bootstrap_confs(*val: Any, **kargs: Any) -> bool | None:
    """As ``machine``: the processes of a run on one machine, as some later versions name them."""
    return machine(*val)


def init() -> bool:
    """Makes the settings of ``flow.env`` final; the first session does it otherwise.

    Returns: True, or False where it had been done already.
    Raises:
      ModeError: several machines are named.
    """
    if not Environment.accepts("flow.env.init", ""):
        return False
    start_environment()
    return True


def start_environment() -> None:
    """What a session calls when it starts; does nothing the second time. Raises ModeError for several machines."""
    if len(_machines) > 1:
        named = ", ".join(m["addr"] for m in _machines)
        refuse(ModeError, f"several machines are not supported yet, and flow.env.machine names {len(_machines)}: {named}",
               hint="name one machine, or leave flow.env.machine out")  # fmt: skip
    Environment.freeze()


def reset_environment() -> None:
    """As a new process would find it. For tests."""
    Environment.reset()
    _machines.clear()


def _needs_environment(what: str) -> None:
    if not Environment.frozen:
        refuse(ModeError, f"{what} needs an initialized environment", hint="call flow.env.init() first")


def current_resource() -> SimpleNamespace:
    """The settings of ``flow.config`` as they hold now, with the devices that were found where none were asked for.

    Raises:
      ModeError: before ``flow.env.init()`` and the first session.
    """
    _needs_environment("flow.env.current_resource()")
    facts = {option.name: getattr(Resource, option.name) for option in Resource.options if "." not in option.name}
    facts["machine_num"] = facts["machine_num"] or max(1, len(_machines))
    if facts["gpu_device_num"] is None:
        facts["gpu_device_num"] = sum(device.platform == "gpu" for device in jax.local_devices())
    if facts["cpu_device_num"] is None:
        facts["cpu_device_num"] = os.cpu_count() or 1
    return SimpleNamespace(**facts)


def current_machine_id() -> int:
    """The number of this machine in ``flow.env.machine``: 0. Raises ModeError before ``flow.env.init()``."""
    _needs_environment("flow.current_machine_id()")
    return 0


def machines() -> Sequence[dict[str, Any]]:
    """The machines that were named, with their ids."""
    return tuple(_machines)


def init_worker(scp_binary: bool = True, use_uuid: bool = True, ssh_port: int = 22) -> None:
    """``flow.deprecated.init_worker``: started workers on the other machines; with one machine there are none.

    Raises:
      ModeError: several machines are named.
    """
    start_environment()


def delete_worker(ssh_port: int = 22) -> None:
    """``flow.deprecated.delete_worker``: stopped the workers on the other machines; with one machine there are none."""


def delete_worker_by_bootstrap(ssh_port: int = 22) -> None:
    """As ``delete_worker``, no effect with one machine."""


def delete_worker_of_multi_process(run_dir: str) -> None:
    """As ``delete_worker``, no effect: there are no worker processes on this machine."""
