"""ONNX models in job bodies: those of PyTorch's exporter, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import close

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, CheckpointWarning, DtypeError, ExportError, ModeError, ShapeError, VariableConflictError

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
torch = pytest.importorskip("torch", reason="its exporter makes the models")
nn = torch.nn
pytestmark = pytest.mark.timeout(600)


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        changes = stride > 1 or before != width
        self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)) if changes else None

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def resnet18(width: int = 16) -> Any:
    widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
    blocks = [Block(b, w, 2 if w > b else 1) for b, w in zip([width, *widths], widths, strict=False)]
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(0.1 * torch.randn(12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Any) -> Any:
        return self.layers(self.words(tokens) + self.places)


class Recipe(nn.Module):
    """Ops that the others lack."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 2, 2)
        self.norm, self.group = nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4)

    def forward(self, x: Any) -> Any:
        y = nn.functional.interpolate(nn.functional.silu(self.group(self.norm(self.up(x)))), scale_factor=2)
        y = nn.functional.avg_pool2d(nn.functional.pad(y, (1, 1, 0, 2)), 2)
        y = torch.cat([y[:, :2], torch.flip(y[:, 2:], [3])], 1).clamp(-1, 1)
        return torch.logsumexp(y.flatten(2), 2), y.mean((2, 3), keepdim=True).squeeze(-1), torch.topk(y.amax(1).amax(1), 3)[0]


def scrambled(module: Any) -> Any:
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith(("running_mean", "bias")):
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=random))
            elif name.endswith("running_var"):
                tensor.copy_(0.75 + 0.5 * torch.rand(tensor.shape, generator=random))
    return module.eval()


def exported(module: Any, x: Any, path: Path, dynamo: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), input_names=["x"], dynamo=dynamo, verbose=False)


def loaded(path: Path, x: np.ndarray) -> Any:
    model = flow.onnx.load(path)

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder(x.shape, flow.float if x.dtype == np.float32 else flow.int64)) -> tp.Bundle[tp.Numpy]:
        made = model(x)
        return list(made) if isinstance(made, tuple) else [made]

    return predict


MODELS = {
    "resnet18": (resnet18, lambda: torch.randn(2, 3, 64, 64)),
    "transformer encoder": (Encoder, lambda: torch.randint(0, 50, (2, 12))),
    "recipe": (Recipe, lambda: torch.randn(2, 3, 5, 6)),
}


@pytest.mark.parametrize(
    ("name", "dynamo"),
    [
        *((name, False) for name in MODELS),
        pytest.param("resnet18", True, marks=pytest.mark.thorough),
        pytest.param("transformer encoder", True, marks=pytest.mark.thorough),
        ("recipe", True),
    ],
)
def test_a_model_of_pytorch_gives_the_same(name: str, dynamo: bool, tmp_path: Path) -> None:
    if dynamo:
        pytest.importorskip("onnxscript", reason="PyTorch's newer exporter needs it")
    torch.manual_seed(0)
    make, sample = MODELS[name]
    module, x = scrambled(make()), sample()
    exported(module, x, tmp_path / "m.onnx", dynamo)
    with torch.no_grad():
        expected = module(x)
    found = loaded(tmp_path / "m.onnx", x.numpy())(x.numpy())
    for made, wanted in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        close(made, wanted.numpy(), 1e-4)


def test_a_loaded_model_is_trained_saved_and_exported_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    x, y = torch.randn(16, 3), torch.randn(16, 1)
    exported(module, x, tmp_path / "m.onnx", False)
    model = flow.onnx.load(tmp_path / "m.onnx")
    assert [(s.name, s.shape) for s in model.inputs] == [("x", (16, 3))] and len(model.variables) == 4

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((16, 3)), y: tp.Numpy.Placeholder((16, 1))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(model(x) - y))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.125]), momentum=0.0).minimize(loss)
        return loss

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((16, 3))) -> tp.Numpy:
        return model(x)

    optimizer = torch.optim.SGD(module.parameters(), 0.125)
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((module(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        close(train(x.numpy(), y.numpy()).reshape(()), loss.detach().numpy(), 1e-4)
    expected = module(x).detach().numpy()
    close(predict(x.numpy()), expected, 1e-4)
    flow.checkpoint.save(tmp_path / "saved.safetensors", format="safetensors")
    flow.export.onnx(predict, tmp_path / "again.onnx")
    flow.clear_default_session()
    (found,) = loaded(tmp_path / "again.onnx", x.numpy())(x.numpy())
    close(found, expected, 1e-4)


def test_copies_and_frozen_variables(tmp_path: Path) -> None:
    exported(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(2, 3), tmp_path / "m.onnx", False)
    model = flow.onnx.load(tmp_path / "m.onnx")

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = model(model(x, trainable=False, name="first"), trainable=lambda name: "bias" in name, name="second")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.0).minimize(loss)
        return loss

    before = {n: h.numpy() for n, h in flow.get_all_variables().items()}
    train(np.ones((2, 3), np.float32))
    changed = {
        n.removesuffix("-momentum") for n, h in flow.get_all_variables().items() if not np.array_equal(h.numpy(), before[n])
    }
    weights = {n for n in before if not n.startswith("System-") and not n.endswith("-momentum")}
    assert len(weights) == 8
    assert changed & weights == {n for n in weights if n.startswith("second") and "bias" in n}


def scaled(path: Path, first: float, second: float, names: tuple[str, str] = ("w/a", "w-a")) -> Any:
    """A model that multiplies by two vectors."""
    nodes = [onnx.helper.make_node("Mul", ["x", names[0]], ["t"]), onnx.helper.make_node("Mul", ["t", names[1]], ["y"])]
    made = node_model(*nodes)
    for name, value in zip(names, (first, second), strict=True):
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.full(3, value, np.float32), name))
    onnx.save(made, str(path))
    return flow.onnx.load(path)


def test_weights_whose_names_would_be_one_as_variables(tmp_path: Path) -> None:
    for names, made in ((("w/a", "w-a"), ["w-a", "w-a_2"]), (("...", "//"), ["variable", "variable_2"])):
        flow.clear_default_session()
        assert list(scaled(tmp_path / "m.onnx", 2, 5, names).variables) == made
        (found,) = loaded(tmp_path / "m.onnx", np.ones((2, 3), np.float32))(np.ones((2, 3), np.float32))
        np.testing.assert_array_equal(found, np.full((2, 3), 10.0))


def test_values_that_the_session_had_before_are_told(tmp_path: Path) -> None:
    x = np.ones((2, 3), np.float32)
    one, two = scaled(tmp_path / "one.onnx", 2, 5), scaled(tmp_path / "two.onnx", 3, 7)

    def job(body: Any) -> Any:
        @flow.global_function()
        def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            return body(x)

        return predict(x)[0, 0]

    assert job(one) == 10 and job(scaled(tmp_path / "again.onnx", 2, 5)) == 10
    with pytest.warns(CheckpointWarning, match=r"variable 'w-a' and 1 more of '.*two.onnx' is in use for something else"):
        assert job(two) == 10
    assert job(two) == 10  # told once in a session
    assert job(lambda x: two(x, name="own")) == 21
    flow.load_variables({"w-a": np.zeros(3, np.float32)})
    assert job(one) == 0  # its own variables
    flow.clear_default_session()
    with pytest.warns(CheckpointWarning, match="gives it variables of its own"):
        job(lambda x: one(x) + two(x))
    three = scaled(tmp_path / "three.onnx", 4, 9)
    with pytest.warns(CheckpointWarning, match="variable 'w-a' and 1 more of"):  # of the job and of the session alike
        job(lambda x: one(x) + three(x))


class Interpolate(nn.Module):
    def __init__(self, options: Any):
        super().__init__()
        self.options = options

    def forward(self, x: Any) -> Any:
        return nn.functional.interpolate(x, **self.options)


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_interpolation_of_pytorch(dynamo: bool, tmp_path: Path) -> None:
    """Its exporters write the attributes of all modes at each one."""
    if dynamo:
        pytest.importorskip("onnxscript", reason="PyTorch's newer exporter needs it")
    x = torch.randn(1, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    for size in ({"scale_factor": 2}, {"scale_factor": (1.5, 3)}, {"size": (7, 9)}):
        for mode in ({"mode": "bilinear"}, {"mode": "bilinear", "align_corners": True}, {"mode": "nearest"}):
            module = Interpolate({**size, **mode})
            exported(module, x, tmp_path / "m.onnx", dynamo)
            (found,) = loaded(tmp_path / "m.onnx", x.numpy())(x.numpy())
            close(found, module(x).numpy(), 1e-5)
    exported(Interpolate({"scale_factor": 2, "mode": "bicubic"}), x, tmp_path / "m.onnx", dynamo)
    with pytest.raises(ExportError, match="mode 'cubic' with 'half_pixel' places"):
        loaded(tmp_path / "m.onnx", x.numpy())(x.numpy())


def test_variables_of_other_shapes_that_the_session_had_before(tmp_path: Path) -> None:
    x = np.ones((2, 4), np.float32)
    for size in (3, 4):
        made = node_model(onnx.helper.make_node("Mul", ["x", "w"], ["y"]), shape=(2, size))
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.full(size, size, np.float32), "w"))
        onnx.save(made, str(tmp_path / f"{size}.onnx"))
        (found,) = loaded(tmp_path / f"{size}.onnx", x[:, :size])(x[:, :size])  # the job is declared anew
        assert (found == size).all()

    @flow.global_function()
    def other(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.onnx.load(tmp_path / "3.onnx")(x)

    with pytest.raises(VariableConflictError, match=r"(?s)float32\[3\].*float32\[4\]"):
        other(x[:, :3])


def test_split_by_a_number_of_outputs(tmp_path: Path) -> None:
    made = node_model(
        onnx.helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
        onnx.helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    )
    made.opset_import[0].version = 18
    onnx.save(made, str(tmp_path / "m.onnx"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = loaded(tmp_path / "m.onnx", x)(x)
    np.testing.assert_array_equal(found, x[:, [2, 0, 1]])


# --- refused


def node_model(*nodes: Any, shape: Any = (2, 3), kind: int = 1) -> Any:
    helper = onnx.helper
    graph = helper.make_graph(
        list(nodes), "g", [helper.make_tensor_value_info("x", kind, shape)], [helper.make_tensor_value_info("y", kind, shape)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_op_types_without_a_counterpart_are_all_listed(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [node("RandomNormalLike", ["x"], ["a"], "noise"), node("Det", ["a"], ["b"]), node("Mine", ["b"], ["y"], domain="own")]
    onnx.save(node_model(*nodes), str(tmp_path / "m.onnx"))
    with pytest.raises(
        ExportError, match=r"(?s)3 of its op types have no counterpart.*Det.*RandomNormalLike.*'noise'.*own\.Mine"
    ):
        flow.onnx.load(tmp_path / "m.onnx")


def test_attributes_that_change_the_values_are_read_or_refused(tmp_path: Path) -> None:
    """Those that ONNX takes by itself may be written down."""
    make = onnx.helper.make_node
    for attributes, accepted in (({"round_mode": "down"}, False), ({"saturate": 1}, True), ({"saturate": 0}, False)):
        model = node_model(make("Cast", ["x"], ["y"], to=1, **attributes))
        model.opset_import[0].version = 21
        onnx.save(model, str(tmp_path / "m.onnx"))

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            return flow.onnx.load(tmp_path / "m.onnx")(x)

        if accepted:
            assert (job(np.ones((2, 3), np.float32)) == 1).all()
        else:
            (name,) = attributes
            with pytest.raises(ExportError, match=rf"Cast.*attribute {name}={attributes[name]!r} has no counterpart"):
                job(np.ones((2, 3), np.float32))


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="there is no file"):
        flow.onnx.load(tmp_path / "m.onnx")
    for content in (b"", b"hello" * 20, bytes(range(256))):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(ExportError, match="is not an ONNX model"):
            flow.onnx.load(tmp_path / "m.onnx")
    with pytest.raises(ArgumentError, match="path"):
        flow.onnx.load(3)
    onnx.save(node_model(onnx.helper.make_node("Identity", ["x"], ["y"]), kind=8), str(tmp_path / "m.onnx"))
    with pytest.raises(ExportError, match="'x' is of STRING"):
        flow.onnx.load(tmp_path / "m.onnx")


def test_wrong_inputs(tmp_path: Path) -> None:
    onnx.save(node_model(onnx.helper.make_node("Relu", ["x"], ["y"]), shape=("n", 3)), str(tmp_path / "m.onnx"))
    model = flow.onnx.load(tmp_path / "m.onnx")
    assert repr(model).startswith("<ONNX model 'g'(x: float32[n, 3]), 1 nodes, 0 variables>")
    with pytest.raises(ModeError):
        model(np.ones((2, 3), np.float32))

    def job(call: Any) -> None:
        @flow.global_function()
        def predict(x: tp.Numpy.Placeholder((4, 3)), i: tp.Numpy.Placeholder((4, 3), flow.int32)) -> tp.Numpy:
            return call(x, i)

        predict(np.ones((4, 3), np.float32), np.ones((4, 3), np.int32))

    job(lambda x, i: model(x))
    for call, error, text in (
        (lambda x, i: model(x, x), ArgumentError, "takes 1 inputs"),
        (lambda x, i: model(1.0), ArgumentError, "x must be a Blob, got float"),
        (lambda x, i: model(flow.transpose(x, (1, 0))), ShapeError, r"x has shape \(n, 3\), and was given \(3, 4\)"),
        (lambda x, i: model(i), DtypeError, "x is float32, and was given int32"),
    ):
        flow.clear_default_session()
        with pytest.raises(error, match=text):
            job(call)
