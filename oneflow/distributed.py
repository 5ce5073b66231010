"""``flow.distributed``: which process of the run this is."""

from __future__ import annotations

from .config import _environment as environment


def get_rank() -> int:
    """The number of this process among those of the run, from 0; 0 before the environment is initialized."""
    return environment.current_machine_id() if environment.Environment.frozen else 0


def get_world_size() -> int:
    """How many processes the run has: one for each machine of ``flow.env.machine``."""
    return max(1, len(environment.machines()))


def get_local_rank() -> int:
    """0: there is one process a machine."""
    return 0


def is_multi_client() -> bool:
    """False: one program describes the whole run."""
    return False
