"""Single nodes as other exporters write them, with attributes that ours does not use: read here, and run by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import close, job_of, run, session

import oneflow as flow
from oneflow.errors import ExportError

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
pytest.importorskip("onnxruntime", reason="the reference")
helper, from_array = onnx.helper, onnx.numpy_helper.from_array
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


class Constant:
    """An input that is in the file."""

    def __init__(self, value: Any, dtype: Any = np.int64):
        self.array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype)


def node(kind: str, *inputs: Any, opset: int = 17, **attrs: Any) -> Any:
    shown = ", ".join(f"{key}={value}" for key, value in attrs.items())
    arrays = [f"{i.dtype}{list(i.shape)}" for i in inputs if isinstance(i, np.ndarray)]
    return pytest.param(kind, inputs, opset, attrs, id=f"{kind}({', '.join([*arrays, shown])})")


def written(path: Path, kind: str, inputs: Any, opset: int, attrs: Any) -> dict[str, np.ndarray]:
    """Writes a model of one node, and returns what to feed."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    fed = {name: value for name, value in zip(names, inputs, strict=True) if isinstance(value, np.ndarray)}
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()]
    constants = [from_array(value.array, name) for name, value in zip(names, inputs, strict=True) if isinstance(value, Constant)]
    made = helper.make_node(kind, names, ["y"], **attrs)
    graph = helper.make_graph([made], "g", infos, [onnx.ValueInfoProto(name="y")], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = helper.find_min_ir_version_for(model.opset_import)
    model = onnx.shape_inference.infer_shapes(model)
    onnx.save(model, str(path))
    return fed


IMAGE = floats(2, 3, 4, 5)
UP, BETWEEN, SIZES = (Constant(v, d) for v, d in (([1, 1, 2, 3], "f4"), ([1, 1, 1.5, 0.6], "f4"), ([2, 3, 7, 3], "i8")))
TRANSPOSED = Constant(floats(4, 2, 3, 3))
NODES = [
    *(node("DepthToSpace", floats(2, 8, 2, 3), blocksize=2, mode=mode) for mode in ("DCR", "CRD")),
    node("SpaceToDepth", floats(2, 3, 4, 6), blocksize=2),
    *(
        node("Resize", IMAGE, None, factors, mode="nearest", coordinate_transformation_mode=place, nearest_mode=rule)
        for place, rule, factors in [
            ("half_pixel", "floor", UP), ("half_pixel", "ceil", BETWEEN), ("half_pixel", "round_prefer_floor", UP),
            ("asymmetric", "ceil", UP), ("asymmetric", "round_prefer_floor", UP), ("asymmetric", "floor", BETWEEN),
            ("align_corners", "round_prefer_ceil", UP), ("align_corners", "round_prefer_floor", BETWEEN),
            ("pytorch_half_pixel", "floor", UP),
        ]
    ),
    node("Resize", IMAGE, None, None, SIZES, mode="nearest"),
    node("Resize", IMAGE, None, None, SIZES, mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
    node("Resize", floats(1, 1, 49, 1), None, None, Constant([1, 1, 1, 1]), mode="linear"),
    *(
        node("Resize", floats(1, 1, 10, 7), None, Constant([1, 1, 0.7, 2.3], "f4"), mode=mode)
        for mode in ("nearest", "linear")
    ),
    node("Resize", IMAGE, UP, opset=10, mode="nearest"),
    *(
        node("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad=word, count_include_pad=1)
        for word in ("SAME_UPPER", "SAME_LOWER")
    ),
    node("MaxPool", IMAGE - 5, kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1]),
    node("MaxPool", IMAGE - 5, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[0, 1, 1, 0]),
    node("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1, 1, 1, 1]),
    node("AveragePool", floats(1, 2, 8), kernel_shape=[3], strides=[2], ceil_mode=1),
    node("MaxPool", floats(1, 1, 10, 10), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, auto_pad="VALID"),
    node("ArgMin", np.array([[5, 0, 3], [0, 1, 2]], np.uint8), axis=1),
    node("ArgMin", np.array([[5, -(2**31), 3]], np.int32), axis=1),
    node("Pow", np.array([1, 2, 3, 9], np.int32), Constant(2.5, "f4")),
    node("Pow", np.array([1, 4, 9], np.int32), np.array([0.5, 0.5, 1.5], np.float32)),
    node("GatherND", floats(3, 4, 5), Constant([[-1, 2], [0, -4]])),
    node("GatherND", floats(3, 4, 5), np.array([[-1, 2], [0, -4]])),
    node("GatherND", floats(2, 4, 5), np.array([[[-1]], [[2]]]), batch_dims=1),
    node("ScatterND", floats(4, 3), np.array([[-1], [0]]), floats(2, 3)),
    node("ScatterND", floats(4, 3), Constant([[-1], [0]]), floats(2, 3), reduction="add"),
    node("Hardmax", floats(2, 3, 4), opset=11),
    node("PRelu", floats(5), Constant(floats(1))),
    node("PRelu", floats(5), Constant(floats(5))),
    node("QuantizeLinear", floats(2, 3), Constant(0.1, "f4"), opset=21, output_dtype=3),
    node("IsInf", np.array([np.inf, -np.inf, 1], np.float32), detect_positive=0, detect_negative=0),
    node("ConvTranspose", floats(1, 4, 5, 5), TRANSPOSED, strides=[2, 2], output_shape=[10, 10]),
    node("Gather", floats(3, 4), np.array(-1), axis=0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "inputs", "opset", "attrs"), NODES)
def test_a_node_gives_what_onnxruntime_gives(kind: str, inputs: Any, opset: int, attrs: Any, tmp_path: Path) -> None:
    fed = written(tmp_path / "m.onnx", kind, inputs, opset, attrs)
    (expected,) = run(session(tmp_path / "m.onnx", check=False), list(fed.values()))
    model = flow.onnx.load(tmp_path / "m.onnx")
    arrays = [array.reshape(array.shape or (1,)) for array in fed.values()]
    (found,) = job_of(model, arrays)(*arrays)
    close(found, expected.astype(np.int8) if expected.dtype == np.bool_ else expected, 1e-5)


@pytest.mark.parametrize(
    ("attrs", "sizes", "reason"),
    [
        ({"coordinate_transformation_mode": "pytorch_half_pixel"}, [2, 3, 1, 1], "'linear' with 'pytorch_half_pixel'"),
        ({"keep_aspect_ratio_policy": "not_larger"}, [2, 3, 8, 8], "aspect ratio"),
    ],
)
def test_resizing_that_is_not_known_is_refused(attrs: Any, sizes: Any, reason: str, tmp_path: Path) -> None:
    written(tmp_path / "m.onnx", "Resize", (IMAGE, None, None, Constant(sizes)), 18, {"mode": "linear", **attrs})
    with pytest.raises(ExportError, match=reason):
        job_of(flow.onnx.load(tmp_path / "m.onnx"), [IMAGE])(IMAGE)
