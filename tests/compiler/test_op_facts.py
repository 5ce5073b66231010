"""The compiler's facts about ops are in their definitions: it looks for no op by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.graph.op import OpDef
from oneflow.ops._emit import OPS
from oneflow.ops._host import HOST_OPS

PACKAGE = Path(flow.__file__).resolve().parent
FILES = [path for room in ("graph", "compiler", "runtime") for path in sorted((PACKAGE / room).rglob("*.py"))]
# words that happen to be names of ops, too
OTHER_MEANINGS = {
    "graph/node.py": OPS.keys(),  # Python's operators, which ops/operators.py turns into ops, and hints in errors
    "compiler/channels_last.py": {"transpose"},  # a function of the native part
    "compiler/lstm_layer_kernels.py": {"matmul"},  # another one, as in the next two
    **dict.fromkeys(["compiler/fused_update.py", "compiler/product_update.py"], {"matmul"}),
    "runtime/host.py": {"where"},  # an attribute of records
    **dict.fromkeys([f"runtime/processes/{n}.py" for n in ("messages", "run", "watch")], {"gather"}),  # a kind of message
}


def docstrings(tree: ast.AST) -> set[int]:
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body and isinstance(node.body[0], ast.Expr)
    }


def names_read(tree: ast.AST) -> Iterator[int]:
    """The lines that read ``....op.name`` or ``op.name`` otherwise than to write it into a message."""
    in_messages = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.FormattedValue) for inner in ast.walk(node.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "name" and id(node) not in in_messages:
            of = node.value
            if (isinstance(of, ast.Attribute) and of.attr == "op") or (isinstance(of, ast.Name) and of.id == "op"):
                yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_no_op_is_asked_for_by_name(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert list(names_read(tree)) == [], "read a field of OpDef instead"
    words = (OPS.keys() | HOST_OPS.keys()) - OTHER_MEANINGS.get(path.relative_to(PACKAGE).as_posix(), set())
    texts = docstrings(tree)
    defined = {id(n.args[0]) for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "OpDef"}
    found = [
        f"line {node.lineno}: {node.value!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in words and id(node) not in texts | defined
    ]  # fmt: skip
    assert found == []


ALWAYS = {"matmul", "conv1d", "conv2d", "conv3d", "amp_white_identity", "fused_self_attention_query_mul_key_and_value"}
BETWEEN = {
    # OneFlow's grey list
    "add_n", "avg_pool_1d", "avg_pool_2d", "avg_pool_3d", "bias_add", "multiply", "sigmoid", "tanh", "tanh_v2", "sqrt",
    "scalar_mul", "scalar_div", "scalar_add", "scalar_sub", "add", "subtract", "divide", "layer_norm", "dropout", "softmax",
    "gelu", "batch_normalization", "batch_normalization_training",
    # its clear list
    "gather", "max_pool_1d", "max_pool_2d", "max_pool_3d", "reshape", "dynamic_reshape", "relu", "transpose", "concat", "stack",
    "pad", "same_padding", "tril", "slice", "getitem", "fused_scale_tril", "identity", "identity_n", "flatten", "squeeze",
    "expand_dims", "cast_to_static_shape", "parallel_cast",
}  # fmt: skip


def test_mixed_precision_takes_the_ops_of_oneflows_lists() -> None:
    ours = {"einsum", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose"}
    assert {name for name, op in OPS.items() if op.autocast == "always"} == ALWAYS | ours
    assert {name for name, op in OPS.items() if op.autocast == "between"} == BETWEEN | {"stop_gradient"}  # ours
    assert {op.autocast for op in OPS.values()} == {"always", "between", "never"}


def test_the_page_about_adding_an_op_lists_all_facts() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "adding-an-op.md"
    rows = re.findall(r"^\| `(\w+)=", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted({field.name for field in fields(OpDef)} - {"name", "define"})


def test_a_fact_that_ops_do_not_have_is_refused() -> None:
    from oneflow.ops._emit import op

    with pytest.raises(TypeError, match="autokast"):
        op("misspelt", autokast="always")(lambda x: x)
    assert "misspelt" not in OPS
    with pytest.raises(ValueError, match="already"):
        op("relu")(lambda x: x)


def test_a_job_may_hold_an_op_that_no_room_but_its_own_knows() -> None:
    """Each fact does its work for an op of any name."""
    made = OpDef("of_any_name", lambda x: x, autocast="always")

    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)

    @flow.global_function("predict", config)
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        from oneflow.ops._emit import emit

        return emit(made, x, prefix="Any")

    assert "in bfloat16" in str(job.summary())
