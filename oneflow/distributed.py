"""``flow.distributed``: which process of the run this is."""

from __future__ import annotations

from ._base.frames import shows_user_frames as _shows_user_frames
from .runtime import processes as _processes


@_shows_user_frames
def get_rank() -> int:
    """The number of this process among those of the run, from 0; before ``flow.env.init()`` as its environment says, or 0.

    Example: >>> flow.distributed.get_rank()   # 0
    """
    return _processes.index()


@_shows_user_frames
def get_world_size() -> int:
    """How many processes the run has; before ``flow.env.init()`` as the environment says, or 1.

    Example: >>> flow.distributed.get_world_size()   # 1
    """
    return _processes.count()


@_shows_user_frames
def get_local_rank() -> int:
    """The number of this process among those on its machine.

    Example: >>> flow.distributed.get_local_rank()   # 0
    """
    return _processes.local_index()


@_shows_user_frames
def is_multi_client() -> bool:
    """Whether the run has several processes, each of which runs the whole script.

    Example: >>> flow.distributed.is_multi_client()   # False
    """
    return _processes.count() > 1
