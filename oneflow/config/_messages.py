"""``flow.ConfigProto`` and ``flow.JobConfigProto``: OneFlow's protobuf messages behind the settings, which do not exist here."""

from __future__ import annotations

from typing import Any

from .._base.refuse import refuse
from ..errors import ModeError


class ConfigProto:
    """Raises ModeError: settings of a session are made with ``flow.config`` and ``flow.env``."""

    def __init__(self, *args: Any, **kwargs: Any):
        hint = "flow.config.gpu_device_num(1) and the like"
        refuse(ModeError, "flow.ConfigProto configures OneFlow's native session", hint=hint)


class JobConfigProto:
    """Raises ModeError: settings of a job are made with ``flow.FunctionConfig``."""

    def __init__(self, *args: Any, **kwargs: Any):
        refuse(ModeError, "flow.JobConfigProto configures OneFlow's native compiler", hint="flow.FunctionConfig()")
