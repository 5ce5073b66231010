"""``flow.user_op_builder``: ops by the names of OneFlow's registry, built by hand."""

from __future__ import annotations

from .builder import (
    UserOp,
    UserOpConfBuilder,
    UserOpModule,
    UserOpModuleBuilder,
    consistent_user_op_builder,
    consistent_user_op_module_builder,
    user_op_builder,
    user_op_module_builder,
    user_op_names,
)

__all__ = [
    "UserOp", "UserOpConfBuilder", "UserOpModule", "UserOpModuleBuilder", "consistent_user_op_builder",
    "consistent_user_op_module_builder", "user_op_builder", "user_op_module_builder", "user_op_names",
]  # fmt: skip
