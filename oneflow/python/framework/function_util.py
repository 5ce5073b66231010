"""Declaring jobs, under its old path."""

from __future__ import annotations

from ...config import FunctionConfig as FunctionConfig
from ...job import global_function as api_oneflow_function

__all__ = ["FunctionConfig", "api_oneflow_function"]
