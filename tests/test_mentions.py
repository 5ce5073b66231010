"""Files and symbols that docs, comments and docstrings name exist."""

from __future__ import annotations

import ast
import builtins
import importlib
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import oneflow as flow
from oneflow.ops._emit import OPS
from oneflow.ops._host import HOST_OPS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
ROOMS = ("oneflow", "benchmarks", "examples", "scripts", "tests")
CODE = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
NATIVE = sorted((ROOT / "native").rglob("*.cc")) + sorted((ROOT / "native").rglob("*.h"))

# files of users, of JAX and of OneFlow, and those that programs write
OTHER_FILES = {
    "train.py", "script.py", "program.py", "predict.py", "lenet_models.py", "lenet_train.py", "lenet_eval.py", "tables.py",
    "my_ops.py", "add_op.py", "malloc.h", "sysexits.h", "_py_api.py", "_py_kernel.py",
}  # fmt: skip
# modules, programs and constants that are not ours, and examples of names
OTHERS = {
    "jax", "jnp", "np", "torch", "_LOCAL_RANK", "_LOCAL_SIZE", "NCCL_SOCKET_IFNAME", "M_MMAP_THRESHOLD", "M_TRIM_THRESHOLD",
    "M_ARENA_MAX", "leakyrelu", "protoc", "JobSet", "nohup", "y_grad", "grad_y", "d_y", "Class", "cb", "GatherNd",
    "input_layouts", "pthread_exit",
}  # fmt: skip
# what a page says that the library does not have
MISSING = {"coverage.md": None, "compatibility.md": {"flow.half", "flow.int", "flow.long", "flow.bool"},
           "guide.md": {"flow.optimizer.X(...).minimize(loss)"}, "from-oneflow.md": {"oneflow.Tensor"},
           "from-pytorch.md": {"lr_scheduler.CosineAnnealingLR", "DistributedDataParallel"},
           "from-keras.md": {"keras.optimizers.schedules.CosineDecay", "model.save_weights", "load_weights"}}  # fmt: skip
FILE = re.compile(r"(?<![\w/.-])(?:[\w-]+/)*[\w-]+\.(?:py|md|cc|h)\b(?!\()")
NAME = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*$")
PATH = re.compile(r"^(?:flow|oneflow)(?:\.[A-Za-z_]\w*)+$")


# strings, comments and names; the module tokenize takes ten times as long
TOKEN = re.compile(
    r"""(?P<docstring>\w{0,2}\"{3}.*?(?<!\\)\"{3})|(?P<string>\w{0,2}(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))"""
    r"|(?P<comment>\#[^\n]*)|(?P<name>[^\W\d]\w*)",
    re.DOTALL,
)


@cache
def source_of(path: Path) -> tuple[str, list[re.Match[str]]]:
    source = path.read_text(encoding="utf-8")
    return source, list(TOKEN.finditer(source))


@cache
def tracked() -> frozenset[str]:
    files = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file() and ".git/" not in p.as_posix()]
    return frozenset(files)


def is_file(name: str, beside: Path) -> bool:
    if name in OTHER_FILES or (beside.parent / name).exists():
        return True
    return any(path == name or path.endswith("/" + name) for path in tracked())


@cache
def words() -> frozenset[str]:
    """Every name in the code of the repository, and what is written in its texts and in that of the native part."""
    found: set[str] = {*keyword.kwlist, *dir(builtins), *OPS, *HOST_OPS}
    for path in CODE:
        if path != Path(__file__):
            for token in source_of(path)[1]:
                if token.lastgroup == "name":
                    found.add(token[0])
                elif token.lastgroup == "string" or (token.lastgroup == "docstring" and not token[0].startswith('"""')):
                    found.update(re.findall(r"\w+", token[0]))
    for path in NATIVE:
        found.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return frozenset(found)


def strange(span: str) -> bool:
    """Whether a span is a name, or a dotted one, that leads nowhere."""
    dotted = re.sub(r"_\d+$", "", span.split("(")[0].strip())  # Conv2d_0: a node's name
    if PATH.match(dotted):
        return not is_symbol(dotted)
    return bool(NAME.match(dotted)) and dotted.split(".")[-1] not in words() and dotted.split(".")[0] not in OTHERS


def is_symbol(path: str) -> bool:
    """Whether a dotted name that begins with ``flow`` or ``oneflow`` leads somewhere."""
    parts = ["oneflow", *path.split(".")[1:]]
    value: object = flow
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            try:
                value = importlib.import_module(".".join(parts[:i]))
            except ImportError:
                return part in getattr(value, "__dataclass_fields__", {})
        else:
            value = getattr(value, part)
    return True


def told(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and docstrings, with their lines."""
    source, tokens = source_of(path)
    for token in tokens:
        if token.lastgroup == "comment":
            yield source.count("\n", 0, token.start()) + 1, token[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            yield first.lineno, ast.get_docstring(node, clean=False) or ""


def spans(text: str, mark: str) -> list[str]:
    return re.findall(f"(?<!`){mark}([^`\n]+){mark}(?!`)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_names_what_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for span in spans(text, "`"):
        wrong += [name for name in FILE.findall(span) if not is_file(name, page)]
        if MISSING.get(page.name, ()) is not None and span not in MISSING.get(page.name, ()) and strange(span):
            wrong.append(span)
    assert not wrong


@pytest.mark.parametrize("room", ROOMS)
def test_comments_name_what_exists(room: str) -> None:
    wrong = []
    for path in CODE:
        if path.relative_to(ROOT).parts[0] == room:
            for line, text in told(path):
                names = [name for name in FILE.findall(text) if not is_file(name, path)]
                names += [span for span in spans(text, "``") if strange(span)]
                wrong += [f"{path.relative_to(ROOT)}:{line}: {name}" for name in names]
    assert not wrong
