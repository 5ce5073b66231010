"""How ops are written in ONNX: one function per op, in a file for each family, beside which ``oneflow/ops`` has the op itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from ..._base.registry import enter
from .._emitter import Emitter, Result

Rule = Callable[[Emitter], Result | Sequence[Result] | None]
_RULES: dict[str, Rule] = {}


# Ops that ONNX cannot express, and why.
_DATA = "the size of its result depends on data"
_RANDOM = "it draws random numbers from the session's state"
WITHOUT: Mapping[str, str] = {
    "argwhere": _DATA,
    "at_most": _DATA,
    "valid_concat": _DATA,
    "valid_elements": _DATA,
    "valid_loss": _DATA,
    "valid_moment": _DATA,
    "valid_reshape": _DATA,
    "valid_slice": _DATA,
    "dynamic_binary_concat": _DATA,
    "dynamic_binary_split": _DATA,
    "fill_padding": _DATA,
    "indexed_slices_reduce_sum": _DATA,
    "broadcast_to_length": _DATA,
    "resized": _DATA,
    "unique_with_counts": _DATA,
    "bernoulli": _RANDOM,
    "coin_flip": _RANDOM,
    "distributed_partial_fc_sample": _RANDOM,
    "dropout": _RANDOM,
    "generate_random_batch_permutation_indices": _RANDOM,
    "random_mask_like": _RANDOM,
    "shuffle": _RANDOM,
    "batch_normalization_training": "it computes the statistics that training keeps",
    "categorical": _RANDOM,
    "cumprod": "ONNX has cumulative sums alone",
    "random_normal": _RANDOM,
    "random_uniform": _RANDOM,
    "categorical_ordinal_encode": "it enters new keys into a table",
    "ctc_greedy_decoder": "only loops could write it in ONNX",
    "ctc_loss": "ONNX has no such loss, and only loops could write it",
    "lgamma": "ONNX has no logarithm of the gamma function",
    "sleep_identity": "it waits",
    "ssp_variable_proxy": "it reads earlier values of a variable",
}


class Inexpressible(Exception):
    """ONNX cannot express this use of an op; the text says why."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of ops.

    It emits nodes and returns the tensor that holds each output, or None if it called ``alias``.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            enter(_RULES, name, function, f"a rule for {name!r}")
        return function

    return register


@lru_cache(maxsize=1)
def rules() -> Mapping[str, Rule]:
    """All rules, by the op's name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _RULES
