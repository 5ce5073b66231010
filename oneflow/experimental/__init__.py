"""``flow.experimental``: names that were not final."""

from __future__ import annotations

from ..scope import namespace as name_scope
from . import scope
from .interface_op_read_and_write import get_interface_blob_value, set_interface_blob_value
from .typing_check import enable_typing_check

__all__ = ["enable_typing_check", "get_interface_blob_value", "name_scope", "scope", "set_interface_blob_value"]
