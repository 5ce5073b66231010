"""flow.interop: weights from PyTorch compute the same here, and go back bit for bit."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, DtypeError, MissingExtraError, ShapeError

torch = pytest.importorskip("torch")
nn = torch.nn


def scrambled(module):
    """The module with values that are neither 0 nor 1 anywhere."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.dtype.is_floating_point:
                tensor.copy_(torch.rand(tensor.shape, generator=random) + (0.5 if "var" in name else -0.5))
    return module.eval()


def image_job(data_format):
    last = data_format == "NHWC"

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 8, 8, 4) if last else (2, 4, 8, 8))) -> tp.Numpy:
        y = flow.layers.conv2d(x, 6, 3, padding="SAME", data_format=data_format, name="conv")
        y = flow.layers.batch_normalization(y, axis=3 if last else 1, epsilon=1e-5, training=False, name="norm")
        y = flow.layers.conv2d(flow.nn.relu(y), 6, 3, data_format=data_format, groups=2, name="body-0")
        y = flow.math.reduce_mean(y, axis=[1, 2] if last else [2, 3])
        return flow.layers.dense(y, 3, name="body-1-fc")

    return predict


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.body = nn.ModuleList([nn.Conv2d(6, 6, 3, groups=2), nn.ModuleDict({"fc": nn.Linear(6, 3)})])

    def forward(self, x):
        y = self.body[0](torch.relu(self.norm(self.conv(x))))
        return self.body[1]["fc"](y.mean((2, 3)))


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_convolutions_dense_layers_and_normalization(data_format):
    module, job = scrambled(Images()), image_job(data_format)
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    flow.load_variables(flow.interop.from_torch(module.state_dict(), job), strict=True)
    ours = job(x.transpose(0, 2, 3, 1).copy() if data_format == "NHWC" else x)
    np.testing.assert_allclose(ours, module(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5)

    back, other = flow.interop.to_torch(job), Images()
    other.load_state_dict(back)
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in back.items())


def test_matrices_tables_and_layer_norm_in_train_jobs():
    """Square matrices are transposed by how the job uses them, not by their shapes."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.one, self.two = nn.Embedding(7, 5), nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
            self.norm = nn.LayerNorm(5)

        def forward(self, ids):
            y = self.norm(self.two(self.one(self.table(ids))))
            return y @ self.table.weight.T

    @flow.global_function(type="train")
    def train(ids: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        zeros = flow.zeros_initializer()
        table = flow.get_variable("table-weight", (7, 5), initializer=zeros)
        one = flow.get_variable("one-weight", (5, 5), initializer=zeros)
        bias = flow.get_variable("one-bias", (5,), initializer=zeros)
        two = flow.get_variable("two-weight", (5, 5), initializer=zeros)
        y = flow.nn.bias_add(flow.matmul(flow.gather(table, ids), flow.identity(one)), bias)
        y = flow.layers.layer_norm(flow.matmul(y, two, transpose_b=True), begin_norm_axis=1, begin_params_axis=1, name="norm")
        y = flow.matmul(y, table, transpose_b=True)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.0])).minimize(y)
        return y

    module, ids = scrambled(Module()), np.array([0, 6, 3, 3], np.int32)
    values = flow.interop.from_torch(module.state_dict(), train)
    np.testing.assert_array_equal(values["one-weight"], module.one.weight.detach().numpy().T)
    np.testing.assert_array_equal(values["two-weight"], module.two.weight.detach().numpy())
    flow.load_variables(values)
    np.testing.assert_allclose(train(ids), module(torch.from_numpy(ids)).detach().numpy(), rtol=1e-4, atol=1e-5)
    back = flow.interop.to_torch(train)
    assert back.keys() == module.state_dict().keys() and all(torch.equal(back[n], t) for n, t in module.state_dict().items())


@pytest.mark.parametrize("dimensions", [1, 3])
def test_other_convolutions(dimensions):
    layer = {1: flow.layers.conv1d, 3: flow.layers.conv3d}[dimensions]
    last, spatial = {1: "NWC", 3: "NDHWC"}[dimensions], (6,) * dimensions
    module = scrambled(nn.ModuleDict({"c": getattr(nn, f"Conv{dimensions}d")(2, 3, 3)}))
    x = np.random.default_rng(0).standard_normal((2, 2, *spatial)).astype(np.float32)
    x_last = np.ascontiguousarray(np.moveaxis(x, 1, -1))

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder(x_last.shape)) -> tp.Numpy:
        return layer(x, 3, 3, data_format=last, name="c")

    flow.load_variables(flow.interop.from_torch(module.state_dict(), predict))
    wanted = np.moveaxis(module["c"](torch.from_numpy(x)).detach().numpy(), 1, -1)
    np.testing.assert_allclose(predict(x_last), wanted, rtol=1e-4, atol=1e-5)


def test_transposed_convolutions():
    module = scrambled(nn.ModuleDict({"up": nn.ConvTranspose2d(3, 5, 2, stride=2, bias=False)}))
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3, 4, 4))) -> tp.Numpy:
        weight = flow.get_variable("up-weight", (3, 5, 2, 2), initializer=flow.zeros_initializer())
        return flow.nn.conv2d_transpose(x, weight, output_shape=(2, 5, 8, 8), strides=2, padding="VALID")

    flow.load_variables(flow.interop.from_torch(module.state_dict(), predict))
    np.testing.assert_allclose(predict(x), module["up"](torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5)


def dense_job(names=("a", "b"), dtype=flow.float):
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3), dtype)) -> tp.Numpy:
        return flow.layers.dense(flow.layers.dense(x, 3, name=names[0]), 1, name=names[1])

    return predict


def linears(**names):
    return nn.ModuleDict({name: nn.Linear(3, size) for name, size in names.items()})


@pytest.mark.parametrize(
    ("weights", "shape", "shared_axes"),
    [(6, (2, 6), None), (6, (2, 6, 5), [2]), (1, (2, 6, 5), [1, 2]), (6, (2, 3, 4, 6), [1, 2]), (1, (2, 1), None)],
)
def test_prelu(weights, shape, shared_axes):
    module = nn.Sequential()
    module.add_module("act", nn.PReLU(weights))
    scrambled(module)

    def predict(x):
        return flow.layers.prelu(x, shared_axes=shared_axes, name="act")

    predict.__annotations__ = {"x": tp.Numpy.Placeholder(shape), "return": tp.Numpy}
    job = flow.global_function()(predict)
    flow.load_variables(flow.interop.from_torch(module.state_dict(), job), strict=True)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    theirs = torch.from_numpy(x.transpose(0, 3, 1, 2).copy() if len(shape) == 4 else x)
    expected = module(theirs).detach().numpy()
    np.testing.assert_array_equal(job(x), expected.transpose(0, 2, 3, 1) if len(shape) == 4 else expected)
    back = flow.interop.to_torch(job)
    assert list(back) == ["act.weight"] and torch.equal(back["act.weight"], module.state_dict()["act.weight"])


def test_prelu_of_other_shapes_is_refused():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 6, 5))) -> tp.Numpy:
        return flow.layers.prelu(x, name="act")

    for weights in (1, 6):
        with pytest.raises(ShapeError, match=r"act\.weight +\(\d,\).*variable 'act-alpha' is \(6, 5\)"):
            flow.interop.from_torch({"act.weight": torch.ones(weights)}, job)
    job(np.ones((2, 6, 5), np.float32))
    with pytest.raises(ShapeError, match=r"(?s)'act-alpha' is \(6, 5\).*try +.*shared_axes"):
        flow.interop.to_torch(job)


def test_names_are_changed_by_a_dictionary_or_a_function():
    module = linears(first=3, head=1)
    job = dense_job(("stem-linear", "b"))
    table = {"first": "stem.linear", "head.weight": "b-weight", "head.bias": "b.bias"}
    values = flow.interop.from_torch(module.state_dict(), job, table)
    np.testing.assert_array_equal(values["stem-linear-weight"], module["first"].weight.detach().numpy())
    function = lambda name: name.replace("first", "stem.linear").replace("head", "b")  # noqa: E731
    assert flow.interop.from_torch(module.state_dict(), job, function).keys() == values.keys()
    flow.load_variables(values)
    assert flow.interop.to_torch(job, table).keys() == module.state_dict().keys()
    assert flow.interop.to_torch(job, str.upper).keys() == {"STEM.LINEAR.WEIGHT", "STEM.LINEAR.BIAS", "B.WEIGHT", "B.BIAS"}


def test_several_jobs_and_other_types():
    one = dense_job(("a", "b"))

    @flow.global_function()
    def other(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 1, name="c")

    state = linears(a=3, b=1, c=1).half().state_dict()
    values = flow.interop.from_torch(state, [one, other])
    assert len(values) == 6 and all(v.dtype == np.float32 for v in values.values())
    bfloat = {name: tensor.to(torch.bfloat16) for name, tensor in state.items()}
    assert flow.interop.from_torch(bfloat, [one, other])["a-weight"].dtype == np.float32
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    np.testing.assert_array_equal(flow.interop.from_torch(arrays, [one, other])["c-weight"], values["c-weight"])


def test_layers_of_other_names_are_matched_by_their_shapes():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3, 6, 6))) -> tp.Numpy:
        y = flow.layers.conv2d(x, 4, 3, padding="SAME", data_format="NCHW", name="conv")
        y = flow.nn.relu(flow.layers.batch_normalization(y, axis=1, training=False, name="bn"))
        return flow.layers.dense(flow.reshape(y, (2, -1)), 5, name="fc")

    def sequence(size, features):
        return nn.Sequential(
            nn.Conv2d(3, 4, size, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(features, 5)
        ).state_dict()

    with pytest.raises(ArgumentError, match='try        rename={"0": "conv", "1": "bn", "4": "fc"}$'):
        flow.interop.from_torch(sequence(3, 144), job)
    assert len(flow.interop.from_torch(sequence(3, 144), job, {"0": "conv", "1": "bn", "4": "fc"})) == 8
    with pytest.raises(ArgumentError, match='try        rename={"1": "bn"}$'):
        flow.interop.from_torch(sequence(5, 64), job)
    with pytest.raises(ArgumentError, match="try        map layers with rename="):
        flow.interop.from_torch({"0.weight": torch.zeros(7)}, job)


def test_what_does_not_fit():
    state = linears(a=3, b=1).state_dict()
    job = dense_job()
    with pytest.raises(ArgumentError, match=r'(?s)no value for *a-weight.*no variable for *aa.weight.*try *rename={"aa": "a"}$'):
        flow.interop.from_torch({"aa.weight": state["a.weight"]}, job)
    part = {"aa.weight": state["a.weight"], "a.bias": state["a.bias"]}
    assert flow.interop.from_torch(part, job, strict=False).keys() == {"a-bias"}
    with pytest.raises(ShapeError, match=r"(?s)shapes of 1 tensor.*b.weight.*\(2, 3\).*'b-weight' is \(1, 3\)"):
        flow.interop.from_torch({**state, "b.weight": torch.zeros(2, 3)}, job)
    with pytest.raises(DtypeError, match="'b.bias' is int64"):
        flow.interop.from_torch({**state, "b.bias": torch.zeros(1, dtype=torch.int64)}, job)
    with pytest.raises(ArgumentError, match="both for variable 'a-bias'"):
        flow.interop.from_torch({**state, "a-bias": state["a.bias"]}, job)
    with pytest.raises(ArgumentError, match="needs a state_dict"):
        flow.interop.from_torch(nn.Linear(2, 2), job)
    with pytest.raises(ArgumentError, match="must be a job function"):
        flow.interop.from_torch(state, len)
    with pytest.raises(ArgumentError, match="is not a name"):
        flow.interop.from_torch(state, job, lambda name: None)


def test_without_pytorch(monkeypatch):
    job = dense_job()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="to_torch needs torch"):
        flow.interop.to_torch(job)
    arrays = {"a.weight": np.zeros((3, 3)), "a.bias": np.zeros(3), "b.weight": np.zeros((1, 3)), "b.bias": np.zeros(1)}
    assert len(flow.interop.from_torch(arrays, job)) == 4


def test_bfloat16_variables_go_to_pytorch():
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3), dtype=flow.bfloat16)) -> tp.Numpy:
        return x * flow.get_variable("w", (3,), dtype=flow.bfloat16, initializer=flow.constant_initializer(0.5))

    (tensor,) = flow.interop.to_torch(predict).values()
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [0.5] * 3


def test_no_jobs_have_no_tensors():
    assert flow.interop.to_torch([]) == {}
