"""Imports go down the ranks only. The drawing is in docs/architecture.md."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oneflow
from oneflow._base import jax as lazy_jax

PACKAGE = Path(oneflow.__file__).resolve().parent
RANKS = [
    {"errors", "_base"},  # these may import each other
    {"graph"},
    {"core"},
    {"_signature", "config", "data"},
    {"_variables"},
    {"ops"},
    {"layers", "optimizer"},
    {"compiler"},
    {"runtime"},
    {"_targets"},
    {"checkpoint", "_reports"},
    {"job"},
    # the top floor: imported when it is used
    {"interop", "loggers", "metrics"},
    {"callbacks", "summary"},
    {"trainer"},
]
PARTS = {"typing": "_signature"}  # files that are one room with another
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
# __init__, the modules that give names, and export and onnx, which use these: nothing of the above imports them
TOP = len(RANKS)
FRONT_END = {"_variables", "ops", "layers", "optimizer"}
FORBIDDEN = {"compiler": FRONT_END, "runtime": FRONT_END}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    if path == PACKAGE / "data" / "__init__.py":
        return "names of data"  # it gives the ops' names, too, when they are asked for
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return PARTS.get(name, name)


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[ast.stmt, str]]:
    """The dotted name of everything that is imported, at any depth of the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = [*base, *(node.module.split(".") if node.module else [])]
            yield from ((node, ".".join([*start, alias.name])) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_go_down(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    room = room_of(path)
    rank = RANK.get(room, TOP)
    wrong: set[str] = set()
    for node, name in imported(tree, ["oneflow", *path.relative_to(PACKAGE).parts[:-1]]):
        top, _, rest = name.partition(".")
        target = PARTS.get(rest.split(".")[0], rest.split(".")[0])
        if room == "graph" and rest.startswith("_base.jax"):
            wrong.add(f"line {node.lineno}: graph/ is plain data and knows no JAX")
        if name.startswith("jax._src") and path.name != "jax_versions.py":
            wrong.add(f"line {node.lineno}: {name} is private to JAX; the one place for such parts is _base/jax_versions.py")
        if top in ("jax", "jaxlib") and node in tree.body:
            wrong.add(f"line {node.lineno}: imports {name} with the module; take jax from oneflow/_base/jax.py, which is lazy")
        elif top == "oneflow" and target and target != room:
            upwards = RANK.get(target, TOP) >= max(rank, 1) and rank < TOP
            if upwards or target in FORBIDDEN.get(room, ()):
                wrong.add(f"line {node.lineno}: {room} (rank {rank}) imports {target} (rank {RANK.get(target, TOP)})")
    if "jax._src" in path.read_text(encoding="utf-8") and path.name != "jax_versions.py":
        wrong.add("mentions jax._src; the one place for private parts of JAX is _base/jax_versions.py")
    assert not wrong, "\n".join([str(path), *sorted(wrong)])


def run_in_a_new_process(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_top_floor_is_imported_when_it_is_used() -> None:
    rooms = ("callbacks", "export", "interop", "loggers", "metrics", "onnx", "serving", "summary", "trainer")
    packages = ("tensorboardX", "tqdm", "pandas", "torch", "onnx", "flatbuffers", "safetensors", "uvicorn", "httptools",
                "prometheus_client")  # fmt: skip
    program = (
        "import sys, oneflow as flow\n"
        f"loaded = [m for m in sys.modules if m.split('.')[0] in {packages}]\n"
        f"loaded += [m for m in sys.modules if m.startswith('oneflow.') and m.split('.')[1] in {rooms}]\n"
        "assert not loaded and 'oneflow.data.loader' not in sys.modules, loaded\n"
        f"assert {{'Trainer', *{rooms}}} <= set(dir(flow))\n"
        "flow.Trainer, flow.callbacks.Callback, flow.loggers.CSVLogger, flow.metrics.Accuracy, flow.data.ArrayLoader\n"
        "flow.export.stablehlo, flow.onnx.load, flow.interop.from_torch, flow.serving.Server\n"
        f"assert not [m for m in sys.modules if m.split('.')[0] in ('jax', *{packages})]\n"
    )
    run_in_a_new_process(program)


def test_names_of_few_programs_are_imported_when_they_are_used() -> None:
    """``import oneflow`` takes three quarters of the time, NumPy's part included."""
    program = (
        "import logging, sys, numpy\n"
        "before = {*sys.modules}\n"  # pathlib may be among them: Python, NumPy, and what site-packages starts decide
        "import oneflow as flow\n"
        "late = ('oneflow.checkpoint.api', 'oneflow.data.codecs', 'oneflow.data.records', 'oneflow.model._model',\n"
        "        'oneflow.ops.custom', 'oneflow.ops.image', 'oneflow.optimizer.rules', 'oneflow.optimizer.schedules',\n"
        "        'oneflow.runtime.host', 'oneflow.runtime.processes.run', 'difflib', 'hashlib', 'pathlib', 'socket')\n"
        "loaded = [m for m in late if m in sys.modules and m not in before]\n"
        "assert not loaded, loaded\n"
        "for name in ('load', 'checkpoint.save', 'data.Records', 'Model', 'model.Callback', 'image.decode', 'train.CheckPoint',\n"
        "             'detection.object_bbox_flip', 'experimental.register_op', 'optimizer.Adam', 'optimizer.warmup.linear'):\n"
        "    module, _, own = ('flow.' + name).rpartition('.')\n"
        "    assert own in dir(eval(module)) and own not in vars(eval(module)), name\n"
        "    assert callable(eval('flow.' + name)) and own in vars(eval(module)), name\n"
    )
    run_in_a_new_process(program)


def test_a_small_training_imports_only_what_it_uses() -> None:
    program = (
        "import sys, numpy as np, oneflow as flow, oneflow.typing as tp\n"
        "@flow.global_function('train')\n"
        "def step(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:\n"
        "    loss = flow.layers.dense(x, 4)\n"
        "    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)\n"
        "    return loss\n"
        "flow.train.CheckPoint().init()\n"
        "step(np.ones((2, 3), np.float32))\n"
        "unused = ('checkpoint.api', 'checkpoint.saving', 'compiler.int8', 'compiler.fusion',\n"
        "          'compiler.cudnn_attention', 'runtime.nonfinite', 'runtime.processes.run')\n"
        "loaded = [m for m in unused if 'oneflow.' + m in sys.modules]\n"
        "assert not loaded, loaded\n"
        "assert step.find_nonfinite(np.ones((2, 3), np.float32)) is None and 'oneflow.runtime.nonfinite' in sys.modules\n"
    )
    run_in_a_new_process(program)


def test_star_imports_bring_names_that_are_imported_when_they_are_used() -> None:
    program = (
        "from oneflow import *\n"
        "from oneflow.image import *\n"
        "from oneflow.optimizer import *\n"
        "assert callable(load) and callable(Model) and callable(Resize) and callable(SGD)\n"
        "assert not {'Trainer', 'onnx', 'unittest'} & globals().keys()\n"
        "from oneflow.compatible.single_client import *\n"
        "assert 'half' in globals()\n"
    )
    run_in_a_new_process(program)


def test_the_compiler_is_imported_with_the_first_job() -> None:
    """``import oneflow`` takes a fifth less time without it."""
    program = (
        "import sys, numpy as np, oneflow as flow, oneflow.typing as tp\n"
        "late = ('oneflow.compiler.plan', 'oneflow.runtime.executable', 'oneflow.job.building', 'oneflow.user_op')\n"
        "assert not [m for m in late if m in sys.modules]\n"
        "@flow.global_function('predict')\n"
        "def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:\n"
        "    return x + 1\n"
        "assert repr(job).endswith('not built yet>') and job.build_report() == ['not built yet']\n"
        "assert not [m for m in late if m in sys.modules]\n"
        "flow.user_op_builder, flow.quantization.calibrate\n"
        "assert 'oneflow.user_op' in sys.modules\n"
        "job.build()\n"
        "assert 'oneflow.compiler.plan' in sys.modules\n"
    )
    run_in_a_new_process(program)


def test_ranks_name_what_exists() -> None:
    rooms = {room_of(path) for path in FILES}
    assert RANK.keys() <= rooms


COMPILER = [  # from the bottom; the table is in docs/architecture.md, "The packages"
    {
        "native",
        "precision",
        "analysis",
        "layout",
        "int8_kernels",
        "packed_products",
        "attention_kernels",
        "batch_norm_kernels",
        "lstm_cell_kernels",
        "lstm_layer_kernels",
        "blocks",
    },
    {"lowering", "storing", "int8_analysis"},
    {"shared"},
    {"joint_gradients"},
    {"autodiff"},
    {
        "expansion",
        "host_plan",
        "indexed_slices",
        "arrangement",
        "attention",
        "channels_last",
        "batch_slices",
        "int8",
        "fusion",
        "fused_update",
        "batch_norm",
        "lstm_cell",
        "lstm_layer",
        "loops",
        "loop_call",
    },  # fmt: skip
    {"plan"},
    {"update", "addends", "replicas", "options", "cudnn_attention", "fingerprint"},
    {"parts", "product_update", "recomputed", "wide_reductions"},
    {"rewriting"},
    {"program"},
    {"stages"},
]


def test_imports_inside_the_compiler_go_down() -> None:
    rank = {name: i for i, names in enumerate(COMPILER) for name in names}
    files = [path for path in FILES if room_of(path) == "compiler" and path != PACKAGE / "compiler" / "__init__.py"]
    assert {path.relative_to(PACKAGE / "compiler").parts[0].removesuffix(".py") for path in files} == rank.keys()
    for path in files:
        own = path.relative_to(PACKAGE / "compiler").parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node, name in imported(tree, ["oneflow", *path.relative_to(PACKAGE).parts[:-1]]):
            parts = name.split(".")
            if parts[:2] == ["oneflow", "compiler"] and len(parts) > 2:
                assert rank[parts[2]] <= rank[own], f"{path.name}, line {node.lineno}: {own} imports {parts[2]}"


# circles that are known; each entry is to be deleted with its circle
KNOWN_CIRCLES: list[set[str]] = []


def file_of(name: str) -> Path | None:
    """The file of the package that a dotted name, of a module or of something in it, stands for."""
    parts = name.split(".")[1:]
    for end in (len(parts), len(parts) - 1):
        base = PACKAGE.joinpath(*parts[:end])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if end >= 1 and path.is_file():
                return path
    return None


def circles(graph: dict[Path, set[Path]]) -> Iterator[set[Path]]:
    """Files that reach each other (Tarjan's strongly connected components of more than one)."""
    numbers: dict[Path, int] = {}
    lows: dict[Path, int] = {}
    stack: list[Path] = []

    def visit(at: Path) -> Iterator[set[Path]]:
        numbers[at] = lows[at] = len(numbers)
        stack.append(at)
        for target in graph[at]:
            if target not in numbers:
                yield from visit(target)
                lows[at] = min(lows[at], lows[target])
            elif target in stack:
                lows[at] = min(lows[at], numbers[target])
        if lows[at] == numbers[at]:
            found = set(stack[stack.index(at) :])
            del stack[stack.index(at) :]
            if len(found) > 1:
                yield found

    for path in graph:
        if path not in numbers:
            yield from visit(path)


def test_files_do_not_import_each_other_in_circles() -> None:
    """Imports for type checkers and those inside functions included."""
    graph: dict[Path, set[Path]] = {path: set() for path in FILES}
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for _, name in imported(tree, ["oneflow", *path.relative_to(PACKAGE).parts[:-1]]):
            target = file_of(name) if name.split(".")[0] == "oneflow" else None
            if target is not None and target != path:
                graph[path].add(target)
    found = [{path.relative_to(PACKAGE).as_posix() for path in circle} for circle in circles(graph)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, KNOWN_CIRCLES))


def test_the_garbage_collector_rests_while_jax_is_imported_and_is_then_as_before(tmp_path, monkeypatch):
    for name in ("as_ever", "switched_off", "frozen"):
        (tmp_path / f"imported_{name}.py").write_text("import gc\nwas_on = gc.isenabled()\n", encoding="utf-8")
    (tmp_path / "imported_not.py").write_text("raise OSError", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    gc.unfreeze()  # of conftest.py
    import_module = lazy_jax._module
    assert not import_module("imported_as_ever").was_on
    assert gc.isenabled() and not gc.get_freeze_count()
    with pytest.raises(OSError):
        import_module("imported_not")
    assert gc.isenabled()
    gc.disable()
    try:
        assert not import_module("imported_switched_off").was_on and not gc.isenabled()
    finally:
        gc.enable()
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        assert import_module("imported_frozen").was_on and 0 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()
