"""``flow.ConfigProto`` and ``flow.JobConfigProto``: OneFlow's protobuf messages behind the settings, which nothing reads here."""

from __future__ import annotations

from typing import Any

from .._base.refuse import refuse
from ..errors import ModeError


class ConfigProto:
    """Raises ModeError when it is made: settings of a session are made with ``flow.config`` and ``flow.env``."""

    def __init__(self, *args: Any, **kwargs: Any):
        refuse(
            ModeError, "flow.ConfigProto configures OneFlow's native session", hint="flow.config.gpu_device_num(1) and its like"
        )


class JobConfigProto:
    """Raises ModeError when it is made: settings of a job are made with ``flow.FunctionConfig``."""

    def __init__(self, *args: Any, **kwargs: Any):
        refuse(ModeError, "flow.JobConfigProto configures OneFlow's native compiler", hint="flow.FunctionConfig()")
