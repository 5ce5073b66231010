"""Op folders written for OneFlow: declarations from C++, kernel and functions in Python."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, CustomOpError, ModeError

DECLARATIONS = """
// a comment with REGISTER_USER_OP("nothing")
REGISTER_USER_OP("cube_forward")
    .Input("x")
    .Output("y")
    .Attr<float>("unused", 1.5f)
    .SetTensorDescInferFn([](InferContext* ctx) -> Maybe<void> { return Maybe<void>::Ok(); });

REGISTER_USER_OP("cube_backward").Input("x").Input("dy").Output("dx")
    .SetTensorDescInferFn([](InferContext* ctx) -> Maybe<void> { return Maybe<void>::Ok(); });

REGISTER_USER_OP_GRAD("cube_forward").SetGenBackwardOpConfFn([](const UserOpWrapper& op, AddOpFn AddOp) { });
"""
KERNEL = """
def forward(args):
    (x,) = args
    return x ** 3

def backward(args):
    x, dy = args
    return [3 * x ** 2 * dy]
"""
API = """
import oneflow as flow

def cube(x, name):
    op = flow.user_op_builder(name).Op("cube_forward").Input("x", [x]).Output("y").Build()
    return op.InferAndTryRun().SoleOutputBlob()
"""


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    monkeypatch.setattr("oneflow.ops.custom.REGISTERED", {})


@pytest.fixture
def folder(tmp_path):
    for suffix, text in {"_cpp_def.cpp": DECLARATIONS, "_py_kernel.py": KERNEL, "_py_api.py": API}.items():
        path = tmp_path / "cube" / f"cube{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_whole_module(folder):
    module = flow.experimental.custom_op_module("cube", str(folder))
    assert module.py_api().cpp_def().py_kernel().build_load() is None
    x = np.array([1.0, -2.0], np.float32)

    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.zeros_initializer())
        y = module.api.cube(w, "c")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(y)
        return y

    flow.load_variables({"w": x})
    np.testing.assert_allclose(job(), x**3)
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), x - 3 * x**2 / 2)


NEWER = """
REGISTER_USER_OP_GRAD("cube_forward").SetBackwardOpConfGenFn([](user_op::BackwardOpConfContext* ctx) {
  const auto grad_op_name = ctx->FwOp().op_name() + "_grad";
  ctx->DefineOp(grad_op_name, [&ctx](user_op::BackwardOpBuilder& builder) {
    return builder.OpTypeName("cube_backward").InputBind("a", ctx->FwOp().input("in", 0))
        .InputBind("b", ctx->FwOp().output_grad("out", 0)).Output("c").Build();
  });
  ctx->FwOp().InputGradBind(user_op::OpArg("in", 0), [&ctx, &grad_op_name]() -> const std::string& {
    return ctx->GetOp(grad_op_name).output("c", 0);
  });
});
"""
OLDER = """
REGISTER_USER_OP_GRAD("cube_forward").SetGenBackwardOpConfFn([](const user_op::UserOpWrapper& op, user_op::AddOpFn AddOp) {
  if (op.NeedGenGradTensor4OpInput("in", 0)) {
    user_op::UserOpConfWrapperBuilder builder(op.op_name() + "_grad");
    user_op::UserOpConfWrapper grad_op = builder.Op("cube_backward").Input("a", op.input("in", 0))
        .Input("b", op.GetGradTensorWithOpOutput("out", 0)).Output("c").Build();
    op.BindGradTensorWithOpInput(grad_op.output("c", 0), "in", 0);
    AddOp(grad_op);
  }
});
"""


@pytest.mark.parametrize("bindings", [NEWER, OLDER])
def test_names_that_the_gradient_binds(folder, bindings):
    definition = folder / "cube" / "cube_cpp_def.cpp"
    definition.write_text(
        'REGISTER_USER_OP("cube_forward").Input("in").Output("out");\n'
        'REGISTER_USER_OP("cube_backward").Input("a").Input("b").Output("c");\n' + bindings
    )
    kernel = folder / "cube" / "cube_py_kernel.py"
    kernel.write_text(
        "def forward(args):\n    return args[0] ** 3\n\ndef backward(args):\n    return 3 * args[0] ** 2 * args[1]\n"
    )
    flow.experimental.custom_op_module("cube", str(folder)).cpp_def().py_kernel()

    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        v = flow.get_variable("v", (2,), initializer=flow.constant_initializer(2.0))
        builder = flow.user_op_builder("c").Op("cube_forward").Input("in", [v]).Output("out")
        y = builder.Build().InferAndTryRun().SoleOutputBlob()
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(y)
        return y

    np.testing.assert_allclose(train(), [8, 8])
    np.testing.assert_allclose(flow.get_all_variables()["v"].numpy(), 2 - 0.1 * 12 / 2 * np.ones(2), rtol=1e-6)


def test_another_shape_needs_a_rule(folder):
    kernel = folder / "cube" / "cube_py_kernel.py"
    kernel.write_text(KERNEL.replace("x ** 3", "x[:1] ** 3"))

    def run():
        flow.experimental.custom_op_module("cube", str(folder)).py_api().cpp_def().py_kernel()

        @flow.global_function("predict")
        def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
            return (
                flow.user_op_builder("c").Op("cube_forward").Input("x", [x]).Output("y").Build().InferAndTryRun().SoleOutputBlob()
            )

        return job(np.array([2.0, 3.0], np.float32))

    with pytest.raises(CustomOpError, match=r"is float32\[1\], but it must be float32\[2\]"):
        run()
    kernel.write_text(kernel.read_text() + "\ndef infer(x, **attrs):\n    return (1,), x.dtype\n")
    assert run().tolist() == [8.0]


def test_mistakes(folder):
    module = flow.experimental.CustomOpModule("cube", str(folder))
    with pytest.raises(ArgumentError, match="call cpp_def.. first"):
        module.py_kernel()
    for method in (module.cpp_kernel, module.gpu_kernel):
        with pytest.raises(ModeError, match="needs OneFlow's own runtime"):
            method()
    with pytest.raises(ArgumentError, match="there is no folder"):
        flow.experimental.custom_op_module("cub", str(folder))
    (folder / "cube" / "cube_py_api.py").unlink()
    with pytest.raises(ArgumentError, match="has no file"):
        module.py_api()
    definition = folder / "cube" / "cube_cpp_def.cpp"
    definition.write_text(DECLARATIONS.replace('"cube_', '"root_'))
    with pytest.raises(ArgumentError, match="does not register that op(?s:.*)root_forward, root_backward(?s:.*)cube_forward"):
        module.cpp_def().py_kernel()
    definition.write_text(DECLARATIONS.replace('"dy"', '"upstream"'))
    with pytest.raises(ArgumentError, match="'upstream' of cube_backward is the gradient of none of y(?s:.*)call it dy"):
        module.cpp_def().py_kernel()
