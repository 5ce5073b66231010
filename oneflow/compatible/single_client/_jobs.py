"""Declaring jobs of 0.6."""

from __future__ import annotations

from typing import Literal

from ..._base.generation import V0_6
from ...config import FunctionConfig
from ...job.decorator import JobDecorator, declare


def global_function(
    type: Literal["train", "predict"] | FunctionConfig = "predict", function_config: FunctionConfig | None = None
) -> JobDecorator:
    """Declares a job with the meaning of 0.6.

    The devices' results in the mirrored view are joined on axis 0, a predict job that calls ``minimize`` trains (with a
    warning), and ``function_config.train`` names the update rules of 0.6.

    Args and errors: those of ``oneflow.global_function``.
    """
    return declare(type, function_config, V0_6)


def function(function_config: FunctionConfig | None = None) -> JobDecorator:
    """The oldest spelling of ``global_function``."""
    return declare(function_config if function_config is not None else FunctionConfig(), None, V0_6)
