"""``flow.env.init`` and what goes with it: the settings of ``flow.env`` become final, and the processes of a run meet."""

from __future__ import annotations

from ..config._environment import Environment, needs_environment
from . import processes


def init() -> bool:
    """Makes the settings of ``flow.env`` final and meets the other processes; the first session does it otherwise.

    Returns: True, or False where it had been done already.
    Raises:
      ArgumentError: no address of ``flow.env.machine`` is this machine's.
      ProcessError: the port is in use, the first process does not answer, or some do not come.
    """
    if not Environment.accepts("flow.env.init", ""):
        return False
    start()
    return True


def start() -> None:
    """Sets up the environment when a session starts; does nothing the second time."""
    Environment.freeze()
    processes.start()


def current_machine_id() -> int:
    """The number of this process, which is its machine in placements. Raises ModeError before ``flow.env.init()``.

    Example: >>> flow.current_machine_id()   # 0
    """
    needs_environment("flow.current_machine_id()")
    return processes.index()


def init_worker(scp_binary: bool = True, use_uuid: bool = True, ssh_port: int = 22) -> None:
    """``flow.deprecated.init_worker``: copied workers to the other machines; now the script is started on each.

    Raises what ``flow.env.init`` raises.
    """
    start()


def delete_worker(ssh_port: int = 22) -> None:
    """``flow.deprecated.delete_worker``: stopped the workers on the other machines, which now end by themselves."""


def delete_worker_by_bootstrap(ssh_port: int = 22) -> None:
    """As ``delete_worker``."""


def delete_worker_of_multi_process(run_dir: str) -> None:
    """As ``delete_worker``; what is in ``run_dir`` stays."""
