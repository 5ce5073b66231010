"""The public functions and classes, and the example in each docstring as a program of its own.

In a docstring an example is a line or a few: ``>>> y = flow.math.relu(x)``. Names that it does not make are Blobs, fed to a
job; a comment may give their shapes in the order in which they occur, and that of the result: ``# (8, 4), (4, 3) -> (8, 3)``,
and dtypes other than float32: ``# ids int32 (8,)``. ``program`` makes of it what a user would write around it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import oneflow as flow
from oneflow._base.source import caller

NAMESPACES = """flow flow.math flow.nn flow.layers flow.losses flow.random flow.image flow.detection flow.quantization
 flow.advanced flow.experimental flow.linalg flow.system flow.keras.activations flow.keras.maths flow.regularizers flow.optimizer
 flow.optimizer.grad_clipping flow.optimizer.loss_scale flow.optimizer.warmup flow.train flow.checkpoint flow.data flow.typing
 flow.scope flow.distribute flow.distributed flow.config flow.env flow.util flow.sysconfig flow.unittest flow.unittest.env
 flow.experimental.scope flow.deprecated flow.summary flow.profiler flow.tensorrt flow.export flow.onnx flow.saved_model
 flow.serving flow.model flow.errors flow.trainer flow.callbacks flow.loggers flow.metrics flow.interop""".split()

# The shapes of names that no comment explains.
SHAPES = {
    "labels": (8,), "logits": (8, 10), "predictions": (8,), "ids": (8,), "table": (100, 4), "rows": (8, 4), "row": (1, 4),
    "positions": (3, 1), "counter": (1,), "scores": (2, 8, 8), "padding": (2, 8, 8), "images": (8, 3, 6, 6), "loss": (1,),
}  # fmt: skip
INTEGERS = {
    "labels",
    "predictions",
    "ids",
    "padding",
    "best",
    "targets",
    "keys",
    "input_lengths",
    "target_lengths",
    "new_size",
}
INTEGERS |= {"new_size", "label", "positions"}
SHAPES["label"] = (8,)
VARIABLES = {"counter", "table"}
IMAGE = {"x": (8, 3, 28, 28)}
OF_FUNCTION: dict[str, dict[str, tuple[int, ...]]] = {
    "compat_conv2d": {**IMAGE, "w": (16, 3, 5, 5)},
    "conv2d_transpose": {"x": (8, 16, 14, 14), "w": (16, 3, 5, 5)},
    "torch_conv2d_transpose": {"x": (8, 16, 14, 14), "w": (16, 3, 3, 3)},
    "batch_normalization": IMAGE,
    "batch_normalization_relu": IMAGE,
    "batch_normalization_add_relu": {**IMAGE, "shortcut": (8, 3, 28, 28)},
    "InstanceNorm2d": IMAGE,
    "GroupNorm": {"x": (4, 16, 5)},
    "layer_norm_grad": {"dy": (8, 4), "x": (8, 4), "mean": (8,), "inv_variance": (8,)},
    "layer_norm_param_grad": {"dy": (8, 4), "norm": (8, 4), "gamma": (4,)},
    "fused_bias_add_dropout": {**IMAGE, "b": (3,)},
    "fused_self_attention_query_mul_key_and_value": {"x": (7, 2, 384)},
    "combined_margin_loss": {"cosines": (8, 10)},
    "broadcast_like": {"like": (2, 3)},
    "ctc_loss": {"x": (20, 4, 6), "targets": (4, 5), "input_lengths": (4,), "target_lengths": (4,)},
    "KLDivLoss": {"target": (8, 4)},
    "distributed_partial_fc_sample": {"weight": (2000, 8)},
    "object_bbox_flip": {"new_size": (8, 2)},
    "object_bbox_scale": {"scale": (8, 2)},
    "object_segmentation_polygon_flip": {"new_size": (8, 2)},
    "object_segmentation_polygon_scale": {"scale": (8, 2)},
    "object_segmentation_polygon_to_mask": {"new_size": (8, 2)},
}  # fmt: skip
# Statements that make what an example takes, in place of feeding it.
_PAIR = "pair = flow.gen_tensor_buffer([2], [[2, 2], [2, 2]], [0.0, 1.0])"
GIVEN: dict[str, list[str]] = {
    "flow.tensor_buffer_to_list_of_tensors": [_PAIR],
    "flow.tensor_buffer_to_tensor": ["images = flow.gen_tensor_buffer([2], [[224, 224, 3]] * 2, [0.0, 1.0], flow.uint8)"],
    "flow.tensor_buffer_to_tensor_list": ["images = flow.gen_tensor_buffer([2], [[480, 640, 3]] * 2, [0.0, 1.0])"],
    "flow.tensor_list_split": [_PAIR, "pair = flow.tensor_buffer_to_tensor_list(pair, shape=(2, 2), dtype=flow.float)"],
    "flow.tensor_list_to_tensor_buffer": [_PAIR, "fed = flow.tensor_buffer_to_tensor_list(pair, shape=(2, 2), dtype=flow.float)"],
    "flow.profiler.range_pop": ['flow.profiler.range_push("step")'],
    "flow.find_or_create_module": ["class Twice(flow.nn.Module):", "    def forward(self, x):", "        return x + x"],
    "flow.optimizer.CombinedOptimizer": [
        'body = flow.layers.dense(x, 8, name="body")',
        'loss = flow.math.reduce_mean(flow.layers.dense(body, 1, name="head"))',
    ],
}
_IMAGES = "images = flow.gen_tensor_buffer([{0}], [[256, 320, 3]] * {0}, [0.0] * {0}, {1})"
_READ = 'flow.data.ofrecord_reader("./train", batch_size=8, data_part_num=4)'
GIVEN["flow.image.CropMirrorNormalize"] = [_IMAGES.format(32, "flow.uint8")]
MADE = {  # the same by name, in the namespaces of data
    "images": _IMAGES.format(8, "flow.float"),
    "records": f"records = {_READ}",
    "encoded": f'encoded = flow.data.OFRecordBytesDecoder({_READ}, "encoded")',
    "boxes": "boxes = flow.gen_tensor_buffer([8], [[5, 4]] * 8, [1.0] * 8)",
    "polygons": "polygons = flow.gen_tensor_buffer([8], [[12, 2]] * 8, [1.0] * 8)",
    "flip_code": "flip_code = flow.random.CoinFlip(8)",
    "examples": 'examples = flow.data.onerec_reader(["a.onerec", "b.onerec"], batch_size=8)',
    "index": "index = flow.gen_tensor_buffer([8], [[12, 3]] * 8, [0.0] * 8, flow.int32)",
}
DATA = ("flow.image.", "flow.detection.", "flow.data.")

# The surroundings of examples that are programs of their own, or use a session.
_JOB = [
    "@flow.global_function()",
    "def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:",
    '    return x * flow.get_variable("w", (8, 4), initializer=flow.ones_initializer())',
    "job(np.ones((8, 4), np.float32))",
]
_OPEN = [line.replace('"w", (8, 4)', '"w", (4,)') for line in _JOB]  # for every batch
_NAMED = [
    "lbn = {}",
    "@flow.global_function()",
    "def infer(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:",
    "    y = flow.nn.softmax(x)",
    "    lbn.update(x=x.logical_blob_name, y=y.logical_blob_name)",
    "    return y",
    "infer(np.ones((8, 4), np.float32))",
]
_GRAPH = [
    *_NAMED,
    'model = flow.saved_model.ModelBuilder("models").ModelName("net").Version(1)',
    "graph = model.AddFunction(infer)",
]
_SAVED = [*_GRAPH, 'graph.AddSignature("s").Input("image", lbn["x"]).Output("prob", lbn["y"])', "model.Save()",
          "batch = np.ones((8, 4), np.float32)"]  # fmt: skip
_LOADED = [*_OPEN, 'flow.export.stablehlo(job, "model.stablehlo")', "images = np.ones((8, 4), np.float32)"]
SETUP: dict[str, list[str]] = {
    **dict.fromkeys(
        (
            "flow.get_all_variables", "flow.save", "flow.checkpoint.save", "flow.train.CheckPoint", "flow.job_summary",
            "flow.experimental.get_interface_blob_value", "flow.experimental.set_interface_blob_value",
            "flow.train.SimpleCheckPointManager", "flow.sync_default_session", "flow.clear_default_session",
            "flow.experimental.get_job_set", "flow.checkpoint.CheckpointManager", "flow.checkpoint.PendingSave",
            "flow.checkpoint.save_on_preemption", "flow.plot_model",
        ),
        _JOB,
    ),
    **dict.fromkeys(("flow.export.onnx", "flow.export.stablehlo"), _OPEN),
    "flow.quantization.calibrate": [
        "@flow.global_function()",
        "def predict(x: tp.Numpy.Placeholder((100, 16))) -> tp.Numpy:",
        "    return flow.layers.dense(x, 4)",
        "images = np.ones((200, 16), np.float32)",
    ],
    "flow.quantization.convert": [
        "config = flow.FunctionConfig()",
        "config.enable_qat(True)",
        '@flow.global_function("train", config)',
        "def train(x: tp.Numpy.Placeholder((4, 16))) -> tp.Numpy:",
        "    loss = flow.math.reduce_mean(flow.layers.dense(x, 4))",
        "    flow.optimizer.SGD(0.1).minimize(loss)",
        "    return loss",
        "train(np.ones((4, 16), np.float32))",
        '@flow.global_function("predict", config)',
        "def predict(x: tp.Numpy.Placeholder((4, 16))) -> tp.Numpy:",
        "    return flow.layers.dense(x, 4)",
    ],
    "flow.onnx.export": [*_OPEN, 'flow.checkpoint.save("./models")'],
    **dict.fromkeys(("flow.export.load", "flow.export.ExportedFunction"), _LOADED),
    "flow.saved_model.ModelBuilder": _NAMED,
    **dict.fromkeys(("flow.saved_model.GraphBuilder", "flow.saved_model.SignatureBuilder"), _GRAPH),
    "flow.serving.InferenceSession": _SAVED,
    "flow.serving.ModelVersionPolicy": [*_SAVED, "session = flow.serving.InferenceSession()"],
    "flow.serving.Server": [*_OPEN, "import os", 'os.mkdir("models")', 'flow.export.stablehlo(job, "models/job.stablehlo")'],
    **dict.fromkeys(
        ("flow.onnx.load", "flow.onnx.OnnxModel"),
        [
            "@flow.global_function()",
            "def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:",
            "    return flow.math.relu(x)",
            'flow.export.onnx(job, "model.onnx")',
        ],
    ),
    "flow.checkpoint.get": [*_JOB, 'flow.checkpoint.save("./lenet_models")'],
    "flow.load": [*_JOB, 'flow.checkpoint.save("./lenet_models")'],
    "flow.load_variables": [line.replace('"w", (8, 4)', '"dense1-bias", (10,)').replace("x * ", "") for line in _JOB],
    "flow.data.EpochArray": ["my_batches = np.ones((3, 8, 4), np.float32)", "count = print",
                             *[line.replace("job", "predict").replace(" -> tp.Numpy", "") for line in _JOB[:3]]],
}  # fmt: skip
_SHAPE = re.compile(r"(?:\b([a-z]\w*) )?(?:(u?int\d+|b?float\d+) )?\((\d[\d, ]*)\)(?: (u?int\d+|b?float\d+))?")


@dataclass
class Input:
    """A Blob that an example takes."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass
class Example:
    """The example of one function or class."""

    path: str
    target: Any
    lines: list[str]
    inputs: list[Input] = field(default_factory=list)
    result: tuple[int, ...] | None = None

    @property
    def code(self) -> str:
        return "\n".join(self.lines)


def public() -> dict[str, Any]:
    """Functions and classes by their first public name, those of flow.math and flow.nn before the same ones in flow."""
    found: dict[int, tuple[str, Any]] = {}
    for namespace in NAMESPACES[1:] + NAMESPACES[:1]:
        module = _reach(namespace)
        for name in dir(module) if module is not None else ():
            value = getattr(module, name)
            ours = (getattr(value, "__module__", None) or "").split(".")[0] == "oneflow"
            if name.startswith("_") or not ours or not (inspect.isroutine(value) or inspect.isclass(value)):
                continue
            found.setdefault(id(value), (f"{namespace}.{name}", value))
    return dict(sorted(found.values(), key=lambda item: item[0]))


def _reach(path: str) -> Any:
    module: Any = flow
    for part in path.split(".")[1:]:
        module = getattr(module, part, None)
    return module


def example(path: str, target: Any) -> Example | None:
    """The example in the docstring, or None."""
    lines = [line.strip() for line in (inspect.getdoc(target) or "").splitlines()]
    shown = [re.sub(r"^(Example: )?(>>>|\.\.\.) ?", "", line) for line in lines if re.match(r"(Example: )?>>>|\.\.\.", line)]
    if not shown:
        return None
    made = Example(path, target, [line.partition("   # ")[0] for line in shown])
    told, _, after = (shown[-1].partition("   # ")[2]).partition("->")
    shapes = [(m[1], _ints(m[3]), m[2] or m[4]) for m in _SHAPE.finditer(told.replace("with ", ""))]
    name = getattr(target, "__name__", "")
    for i, free in enumerate(_free(made.code)):
        shape = OF_FUNCTION.get(name, {}).get(free, SHAPES.get(free, (8, 4)))
        dtype = "int32" if free in INTEGERS and not (name.endswith("Loss") or name.startswith("sigmoid_cross")) else "float32"
        if name.startswith("sigmoid_cross"):
            shape = (8, 10)
        told_here = next((s for s in shapes if s[0] == free), shapes[i] if i < len(shapes) and not shapes[i][0] else None)
        if told_here:
            shape, dtype = told_here[1], told_here[2] or dtype
        made.inputs.append(Input(free, shape, dtype))
    result = re.match(r"\s*\((\d[\d, ]*)\)", after)
    made.result = _ints(result[1]) if result else None
    return made


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _free(code: str) -> Iterator[str]:
    """Names that the code loads and does not make, in the order in which they occur."""
    tree = ast.parse(code)
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    made = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {a.arg for n in ast.walk(tree) for a in _arguments(n)}
    made |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    loaded = sorted((n for n in names if isinstance(n.ctx, ast.Load)), key=lambda n: (n.lineno, n.col_offset))
    known = {"flow", "tp", "np", *made, *dir(builtins)} - {"x", "y"}
    used = [n.id for n in loaded if n.id not in known or (n.id in made and _first_is_load(names, n.id))]
    yield from dict.fromkeys(n for n in used if n not in ("flow", "tp", "np"))


def _first_is_load(names: list[ast.Name], name: str) -> bool:
    """``ids, rows = f(ids, rows)`` takes what it then makes."""
    first = min((n for n in names if n.id == name), key=lambda n: (n.lineno, isinstance(n.ctx, ast.Store), n.col_offset))
    return isinstance(first.ctx, ast.Load)


def _arguments(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
        return []
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def made_by(code: str) -> list[str]:
    """The names that the last statement assigns."""
    last = ast.parse(code).body[-1]
    targets = last.targets if isinstance(last, ast.Assign) else []
    return [t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)]


FILES = """
from oneflow.core.record import record_pb2 as pb
coded = flow.data.images.encode(np.zeros((48, 64, 3), np.uint8), ".png")
number = pb.Feature(int32_list=pb.Int32List(value=[1]))
feature = {"encoded": pb.Feature(bytes_list=pb.BytesList(value=[coded])), "class/label": number, "label": number}
records = [pb.OFRecord(feature=feature)] * 64
record = records[0]
for directory in ("train", "ofrecords"):
    flow.data.write_parts(directory, records, parts=4)
"""


@contextlib.contextmanager
def prepared(made: Example) -> Iterator[None]:
    """A working directory with the files that examples about data read."""
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        if made.path.startswith(DATA):
            exec(compile(FILES, __file__, "exec"), {"flow": flow, "np": np})  # noqa: S102
        yield


def examples() -> dict[str, Example | None]:
    """Of everything public."""
    return {path: example(path, target) for path, target in public().items()}


# --- as a program


def in_a_job(made: Example) -> bool:
    """Whether the example is the body of a job, or a program of its own."""
    if re.search(r"^(@|class |def )", made.code, re.MULTILINE) or made.path in SETUP:
        return False
    module = getattr(made.target, "__module__", "")
    if module.startswith("oneflow.data"):
        return False
    describes = module.startswith(("oneflow.ops", "oneflow.layers")) and "gen_seed" not in made.code
    return (
        bool(made.inputs)
        or describes
        or bool(re.search(r"get_variable|flow\.(layers|scope)\.|user_op_(module_)?builder", made.code))
    )


def trains(made: Example) -> bool:
    return "minimize(" in made.code or "add_loss(" in made.code or any(i.name == "loss" for i in made.inputs)


def body_of(made: Example) -> tuple[list[Input], list[str]]:
    """The inputs, and the statements: variables and a loss are made, other names are fed."""
    fed, before = [], list(GIVEN.get(made.path, []))
    there = made_by("\n".join(before)) if before else []
    for given in made.inputs:
        if given.name in there or f"class {given.name}(" in "\n".join(before):
            if given.name == "loss":
                fed.append(Input("x", (8, 4)))
        elif given.name in MADE and made.path.startswith(DATA):
            before.append(MADE[given.name])
        elif given.name in VARIABLES:
            before.append(
                f'{given.name} = flow.get_variable("{given.name}", {given.shape}, initializer=flow.zeros_initializer())'
            )
        elif given.name == "loss":
            fed.append(Input("x", (8, 4)))
            before.append("loss = flow.math.reduce_mean(flow.layers.dense(x, 1))")
        elif given.name == "schedule":
            before.append("schedule = flow.optimizer.CosineScheduler(1e-3, 1000)")
        else:
            fed.append(given)
    return fed, before + made.lines


@dataclass
class Traced:
    """The results of an example's last statement: (name, shape, dtype, whether it can be returned, whether its size varies)."""

    results: list[tuple[str, tuple[int, ...], str, bool, bool]]


def traced(made: Example) -> Traced:
    """Runs the example's statements on placeholders."""
    from oneflow._base.dist import parse_placement
    from oneflow.graph.graph import Graph, tracing
    from oneflow.graph.node import Blob, Scope

    fed, statements = body_of(made)
    graph = Graph("job", train=trains(made), scope=Scope(parse_placement("cpu", "0:0")))
    with tracing(graph):
        scope: dict[str, Any] = {"flow": flow, "np": np}
        for given in fed:
            kind, source = getattr(flow, given.dtype), caller()
            scope[given.name] = graph.add_input(given.name, given.shape, kind, "Numpy", 0, source)
        exec(compile("\n".join(statements), __file__, "exec"), scope)  # noqa: S102 - our own docstring
    results = []
    for name in made_by(made.code):
        blob = scope[name]
        if isinstance(blob, (list, tuple)) and blob and isinstance(blob[0], Blob):
            name, blob = f"{name}[0]", blob[0]
        if isinstance(blob, Blob):
            plain = blob.dtype.name not in ("tensor_buffer", "record") and not blob.is_tensor_list
            results.append((name, blob.shape, blob.dtype.name, plain, blob.is_dynamic))
    return Traced(results)


def program(made: Example) -> str:
    """A program around the example that runs it."""
    if not in_a_job(made):
        return made.code
    fed, statements = body_of(made)
    parameters = []
    for given in fed:
        dtype = "" if given.dtype == "float32" else f", flow.{given.dtype}"
        parameters.append(f"{given.name}: tp.Numpy.Placeholder({given.shape}{dtype})")
    returned = [(name, "tp.ListNumpy" if varies else "tp.Numpy") for name, _, _, plain, varies in traced(made).results if plain]
    kinds = [kind for _, kind in returned]
    arrow = "" if not kinds else f" -> {kinds[0]}" if len(kinds) == 1 else f" -> tuple[{', '.join(kinds)}]"
    last = [f"return {', '.join(name for name, _ in returned)}"] if returned else []
    if len(returned) == 1 and statements[-1].startswith(f"{returned[0][0]} = "):
        statements[-1], last = "return " + statements[-1].removeprefix(f"{returned[0][0]} = "), []
    kind = '"train"' if trains(made) else '"predict"'
    head = f"def job({', '.join(parameters)}){arrow}:"
    if len(head) > 110:
        head = "def job(\n    " + ",\n    ".join(parameters) + f",\n){arrow}:"
    return "\n".join([f"@flow.global_function({kind})", head, *(f"    {line}" for line in statements + last)])


def arguments(made: Example) -> list[Any]:
    """Something to call the job with."""
    rng = np.random.default_rng(0)
    return [rng.uniform(0.1, 0.9, i.shape).astype(np.float32) if "float" in i.dtype
            else rng.integers(0, 3, i.shape).astype(i.dtype) for i in body_of(made)[0]]  # fmt: skip
