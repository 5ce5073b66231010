"""Every row of the op table as StableHLO with an open batch, or the reason why its batch cannot be open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import ONE_SIZE, OTHERWISE, ROWS, arrays_of, close, dtypes_of, expected_of, first_rows, job_of

import oneflow as flow
from oneflow.errors import ExportError
from oneflow.ops._emit import OPS

pytest.importorskip("flatbuffers", reason="needs the extra [export]")
THOROUGH = "ONEFLOW_THOROUGH" in os.environ
PLATFORMS = ("cpu", "cuda", "tpu") if THOROUGH else ("cpu",)
RUN = ("array", "window")  # families whose lowerings compute with symbolic sizes

# Rows that tie the size of their first axis to a number, because of what the op is asked for, and how.
_OF_ONE = "it broadcasts from the size 1 that was declared"
_INSIDE = "it takes an element that every batch would have to have"
TIED = {
    "reshape": "it cuts the batch in pieces",
    "reshape_like": "the other shape is fixed",
    "squeeze": "it removes the batch",
    "squeeze everything": "it removes the batch",
    "broadcast_like front": _OF_ONE,
    "where broadcast": _OF_ONE,
    **{f"{op} of (1,)": _OF_ONE for op in ("add", "subtract", "multiply", "divide", "mod", "floordiv", "maximum", "minimum",
                                           "squared_difference")},
    "getitem int": _INSIDE,
    "getitem all ints": _INSIDE,
    "getitem front and back": _INSIDE,
    "top_k axis": _INSIDE,
    "dynamic top_k": _INSIDE,
    "matmul both": "it sums over the batch, whose size the other matrix has, too",
    **{f"diag of matrix {k}": "the length of a diagonal is the smaller of two sizes" for k in (-2, 0, 1, 3)},
    "dynamic concat": "the size of the padded axis has to be a number",
    "dynamic slices": "the size of the padded axis has to be a number",
    "dynamic slices of one size": "the size of the padded axis has to be a number",
    "dynamic elements by number": "the size of the padded axis has to be a number",
    "dynamic reverse": "the size of the padded axis has to be a number",
    "indexed_slices_reduce_sum": "XLA wants the largest number of distinct values as a number",
    "unique_with_counts": "XLA wants the largest number of distinct values as a number",
    "unique_with_counts values": "XLA wants the largest number of distinct values as a number",
    "ctc_loss": "its first axis is that of time, over which it loops",
}  # fmt: skip
# Rows that no file can hold.
WITHOUT = {
    "uniform", "normal", "categorical",
    "random_mask_like", "bernoulli", "bernoulli int8", "coin_flip", "permutation", "shuffle", "distributed_partial_fc_sample",
    "categorical_ordinal_encode", "ssp_variable_proxy", "sleep_identity",
}  # fmt: skip
# Ops without a row that has an open batch; the reasons are those of their rows.
NEVER_OPEN = {
    "random_normal", "random_uniform",
    "bernoulli", "categorical_ordinal_encode", "coin_flip", "ctc_loss", "distributed_partial_fc_sample", "dropout",
    "dynamic_binary_concat", "dynamic_binary_split", "generate_random_batch_permutation_indices", "indexed_slices_reduce_sum",
    "random_mask_like", "reshape_like", "shuffle", "sleep_identity", "ssp_variable_proxy", "unique_with_counts",
    "at_most", "valid_slice",  # only where an axis is padded
    "batch_normalization_training",  # predict jobs use the moving statistics
    "acc", "pack", "repeat", "unpack",  # repeated parts: test_stablehlo.py
}  # fmt: skip
FIRST = first_rows()
PARAMS = [
    pytest.param(family, row, id=f"{family}-{row.name}", marks=() if row.name in FIRST else pytest.mark.thorough)
    for family, row in ROWS
    if row.name not in OTHERWISE
]


def job(row: Any) -> tuple[Any, list[np.ndarray]]:
    arrays = arrays_of(row, dtypes_of(row)[0])
    return job_of(row.build, arrays), arrays


@pytest.mark.parametrize(("family", "row"), PARAMS)
def test_row(family: str, row: Any, tmp_path: Path) -> None:
    made, arrays = job(row)
    path = tmp_path / "row.stablehlo"
    if row.name in WITHOUT:
        with pytest.raises(ExportError, match="cannot be exported as StableHLO"):
            flow.export.stablehlo(made, path, PLATFORMS)
        return
    if row.name in TIED:
        with pytest.raises(ExportError, match=r"(?s)(does not work for every|JAX cannot export).*dynamic_axes=\{\}"):
            flow.export.stablehlo(made, path, PLATFORMS)
        flow.export.stablehlo(made, path, PLATFORMS, dynamic_axes={})
    else:
        flow.export.stablehlo(made, path, PLATFORMS)
    if THOROUGH or family in RUN:
        found = flow.export.load(path)
        if THOROUGH:
            _check(row, found, arrays, "declared sizes")
        if arrays and row.name not in {*TIED, *ONE_SIZE}:
            opened = [bool(spec.shape) and isinstance(spec.shape[0], str) for spec in found.inputs]
            more = [np.concatenate([a, a[:1]]) if is_open else a for a, is_open in zip(arrays, opened, strict=True)]
            _check(row, found, more, "one sample more")


def _check(row: Any, found: Any, arrays: Sequence[np.ndarray], what: str) -> None:
    for made, wanted in zip(found(*arrays), expected_of(row, arrays), strict=True):
        close(made, wanted.astype(made.dtype), 1e-5, what)


def test_lists_name_rows() -> None:
    assert {row.name for _, row in ROWS} >= {*TIED, *WITHOUT}


def test_every_op_has_a_row_with_an_open_batch() -> None:
    """Except those in NEVER_OPEN, whose rows say why."""
    seen: set[str] = set()
    for _, row in ROWS:
        if row.name not in {*TIED, *WITHOUT, *OTHERWISE}:
            flow.clear_default_session()
            seen |= {node.op.name for node in job(row)[0].graph.nodes}
    assert sorted(OPS.keys() - seen) == sorted(NEVER_OPEN)
