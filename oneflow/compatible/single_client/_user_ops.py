"""Builders of user ops that prefer the forms of 0.6 where a type has several."""

from __future__ import annotations

from ...user_op import UserOpConfBuilder, UserOpModuleBuilder


def user_op_builder(op_name: str) -> UserOpConfBuilder:
    """``oneflow.user_op_builder`` with the names that op types have in 0.6; those of 0.3.4 are taken where they fit alone."""
    return UserOpConfBuilder(op_name, newer=True)


def consistent_user_op_builder(op_name: str) -> UserOpConfBuilder:
    """``user_op_builder``, always in the consistent view."""
    return UserOpConfBuilder(op_name, consistent=True, newer=True)


def user_op_module_builder(op_type_name: str) -> UserOpModuleBuilder:
    """``oneflow.user_op_module_builder`` with the names that op types have in 0.6."""
    return UserOpModuleBuilder(op_type_name, newer=True)


def consistent_user_op_module_builder(op_type_name: str) -> UserOpModuleBuilder:
    """``user_op_module_builder``, always in the consistent view."""
    return UserOpModuleBuilder(op_type_name, consistent=True, newer=True)
