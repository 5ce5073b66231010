"""Every op through a saved model and back; and graphs as OneFlow itself writes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import OTHERWISE, ROWS, arrays_of, close, dtypes_of, expected_of, job_of
from saving import launched, session

import oneflow as flow
import oneflow.typing as tp
from oneflow.core.serving import saved_model_pb2
from oneflow.errors import SavedModelError

text_format = pytest.importorskip("google.protobuf.text_format", reason="needs the extra [data]")

RANDOM = "it draws random numbers"
REFUSED = {
    **dict.fromkeys(("uniform", "normal", "categorical", "categorical of one class", "random_mask_like", "bernoulli",
                     "bernoulli int8", "coin_flip", "permutation", "shuffle", "distributed_partial_fc_sample"), RANDOM),
    "cast_to_static_shape": "has another size at each call",
    "categorical_ordinal_encode": "host_callbacks",
    "sleep_identity": "it waits",
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{family}-{row.name}") for family, row in ROWS if row.name not in OTHERWISE]
)
@pytest.mark.filterwarnings("ignore::oneflow.errors.JobWarning")
def test_row(row: Any, tmp_path: Path) -> None:
    arrays = arrays_of(row, dtypes_of(row)[0])
    job = job_of(row.build, arrays)
    model = flow.saved_model.ModelBuilder(str(tmp_path / "net")).ModelName("net").Version(1)
    model.AddFunction(job)
    model.Save()
    if row.name in REFUSED:
        with pytest.raises(SavedModelError, match=REFUSED[row.name]):
            launched(tmp_path / "net")
        return
    wanted = expected_of(row, arrays)
    s = launched(tmp_path / "net")
    made = s.run(job.name, **dict(zip(s.list_inputs(), arrays, strict=True)))
    for found, want in zip(made, wanted, strict=True):
        close(found, want.astype(found.dtype), 1e-5, row.name)


def test_ops_of_both_kinds(tmp_path: Path) -> None:
    """Ops that the registry has, in uses that it has and that it lacks, and ops that only this library has; in one graph."""
    flow.clear_default_session()

    @flow.global_function("predict")
    def job(
        x: tp.Numpy.Placeholder((2, 4, 6, 6)), v: tp.Numpy.Placeholder((2, 4)), i: tp.Numpy.Placeholder((2,), dtype=flow.int32)
    ) -> list[tp.Numpy]:
        w = flow.get_variable("w", (8, 4, 3, 3), initializer=flow.random_normal_initializer())
        m = flow.get_variable("m", (4, 5), initializer=flow.random_normal_initializer())
        c, g = (flow.get_variable(n, (4,), initializer=flow.random_uniform_initializer(0.5, 1.5)) for n in "cg")
        deep = flow.reshape(x, (2, 4, 36))
        return [
            flow.nn.conv2d(x, w, 1, "SAME", "NCHW"), flow.nn.conv2d(x, w, 2, "VALID", "NCHW"),
            flow.nn.conv2d(x, w, 1, [[0, 0], [0, 0], [1, 1], [1, 1]], "NCHW"),
            flow.nn.conv2d(x, w, 1, [[0, 0], [0, 0], [1, 0], [0, 1]], "NCHW"),
            flow.nn.bias_add(x, c), flow.nn.batch_normalization(x, c, g, c, g, 1e-3, 1), flow.nn.layer_norm(v, g, c),
            flow.nn.layer_norm(v), flow.nn.max_pool2d(x, 3, 2, "SAME"), flow.nn.avg_pool2d(x, 2, 2, "VALID"),
            flow.nn.max_pool2d(x, 3, 2, [[0, 0], [0, 0], [1, 1], [1, 1]]), flow.layers.upsample_2d(x, (2, 2)),
            flow.matmul(v, m), flow.matmul(deep, deep, transpose_b=True), flow.matmul(v, v, transpose_b=True, alpha=0.5),
            flow.transpose(x, [0, 2, 3, 1]), flow.concat([v, v * 2], 1), flow.squeeze(flow.expand_dims(v, 1), [1]),
            flow.flatten(x, 1), flow.slice_v2(x, [(None, None, None), (1, 3, 1), (0, None, 2), (-1, None, -1)]), x[:, 1:3, 0],
            flow.pad(v, [(0, 0), (1, 2)], 1.5), flow.gather(m, i), flow.one_hot(i, 5, dtype=flow.float32),
            flow.nn.softmax(v), flow.nn.softmax(x, 1), flow.nn.logsoftmax(v), flow.math.reduce_sum(x, [2, 3]),
            flow.math.reduce_mean(x, [1], True), flow.math.reduce_max(x, -1), flow.math.argmax(v), flow.math.top_k(v, k=2),
            flow.argsort(v, direction="DESCENDING"), flow.sort(v, axis=0), flow.cast(v, flow.int32), v + 2.5, 3 - v, v / 3.0,
            v * v, v % 2.0, flow.math.pow(flow.math.abs(v), 1.5), flow.math.square(v), flow.clip_by_value(v, -0.5, 0.5),
            flow.math.sigmoid(v), flow.math.gelu(v), flow.nn.leaky_relu(v, 0.2), flow.nn.elu(v, 0.7), flow.nn.swish(v),
            flow.where(v > 0.0, v, flow.zeros_like(v)), flow.math.equal(i, i), flow.constant(2.5, flow.float32, (2, 4)) + v,
            flow.range(4, dtype=flow.float32) + v, flow.math.tril(m, 1, 9.0), flow.stack([v, v], 1), flow.reverse(v, [1]),
            flow.einsum("ij,kj->ik", v, v), flow.nn.sparse_softmax_cross_entropy_with_logits(i, v),
            flow.math.add_n([v, v, v]), flow.scatter_nd(flow.expand_dims(i, 1), v, [5, 4]),
        ]  # fmt: skip

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s.shape).astype(s.dtype.numpy_dtype) for s in job.graph.inputs]
    arrays[2] = np.array([3, 1], np.int32)
    wanted = job(*arrays)
    model = flow.saved_model.ModelBuilder(str(tmp_path / "net")).ModelName("net").Version(1)
    model.AddFunction(job)
    model.Save()
    shutil.rmtree(tmp_path / "net" / "1" / "compiled")  # from the ops, as OneFlow's own directory would be
    kinds = {conf.user_conf.op_type_name.startswith("oneflow_jax.") for conf in model.proto.graphs["job"].op_list}
    assert kinds == {True, False}
    s = launched(tmp_path / "net")
    made = s.run("job", **dict(zip(s.list_inputs(), arrays, strict=True)))
    assert len(made) == len(wanted) == 59
    for i, (found, want) in enumerate(zip(made, wanted, strict=True)):
        assert found.dtype == want.dtype and found.shape == want.shape, i
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6, err_msg=str(i))


def conf(name: str, kind: str, inputs: str, outputs: str, *attributes: str) -> str:
    """A user op in text form. Inputs and outputs as ``in=a/out``; attributes as ``axis at_int32: 1``."""
    rows = [f'key: "{k}" value {{ s: "{v}" }}' for k, v in (pair.split("=") for pair in inputs.split())]
    made = "".join(f" input {{ {row} }}" for row in rows)
    for pair in outputs.split():
        argument, _, lbn = pair.partition("=")
        made += f' output {{ key: "{argument}" value {{ s: "{lbn or f"{name}/{argument}_0"}" }} }}'
    for attribute in attributes:
        key, _, value = attribute.partition(" ")
        made += f' attr {{ key: "{key}" value {{ {value} }} }}'
    return f'op_list {{ name: "{name}" device_tag: "gpu" scope_symbol_id: 5 user_conf {{ op_type_name: "{kind}"{made} }} }}\n'


def ints(*numbers: int) -> str:
    return f"at_list_int32 {{ {' '.join(f'val: {n}' for n in numbers)} }}"


def variable(name: str, *shape: int) -> str:
    dims = " ".join(f"dim: {n}" for n in shape)
    return (f'op_list {{ name: "{name}" device_tag: "gpu" variable_conf {{ out: "out" shape {{ {dims} }} data_type: kFloat '
            'initializer { random_normal_conf { mean: 0.0 std: 1.0 } } trainable: true nd_sbp: "B" } }\n')  # fmt: skip


WINDOW = ('data_format at_string: "channels_first"', f"strides {ints(1, 1)}", f"padding_before {ints(1, 1)}")
GRAPH = (
    'op_list { name: "Input_0" device_tag: "gpu" input_conf { out: "out" blob_conf { shape { dim: 2 dim: 3 dim: 8 dim: 8 } '
    'data_type: kFloat is_dynamic: false parallel_distribution { sbp_parallel { split_parallel { axis: 0 } } } } '
    'job_name: "f" } }\n'
    + variable("w", 4, 3, 3, 3) + variable("b", 4) + variable("d", 64, 5) + variable("one", 4)
    + conf("conv", "conv2d", "in=Input_0/out weight=w/out", "out", *WINDOW, f"kernel_size {ints(3, 3)}",
           f"dilation_rate {ints(1, 1)}", "filters at_int32: 4", "groups at_int32: 1")
    + conf("bias", "bias_add", "a=conv/out_0 b=b/out", "out", "axis at_int32: 1")
    + conf("norm", "normalization", "x=bias/out_0 moving_mean=b/out moving_variance=one/out gamma=one/out beta=b/out", "y",
           "axis at_int32: 1", "epsilon at_float: 0.001", "training at_bool: false", "momentum at_float: 0.9")
    + conf("act", "relu", "{relu_in}=norm/y_0", "{relu_out}")
    + conf("pool", "{max_pool}", "x=act/{relu_out}_0", "y", 'padding at_string: "valid"', f"padding_before {ints(0, 0)}",
           f"padding_after {ints(0, 0)}", 'data_format at_string: "channels_first"', f"pool_size {ints(2, 2)}",
           f"strides {ints(2, 2)}", "ceil_mode at_bool: false")
    + conf("flat", "reshape", "in=pool/y_0", "out", "shape at_shape { dim: 2 dim: 64 }")
    + 'op_list { name: "same" identity_conf { in: "flat/out_0" out: "out" } }\n'
    + conf("dense", "matmul", "a=same/out b=d/out", "out", "transpose_a at_bool: false", "transpose_b at_bool: false",
           "alpha at_double: 1.0")
    + 'op_list { name: "ones" constant_like_conf { like: "dense/out_0" out: "out" float_operand: 1.0 } }\n'
    + conf("sum", "broadcast_add", "x=dense/out_0 y=ones/out", "z")
    + 'op_list { name: "wide" broadcast_to_compatible_with_conf { x: "sum/z_0" compatible: "ones/out" y: "y" } }\n'
    + 'op_list { name: "back" dynamic_reshape_conf { in: "wide/y" out: "out" shape { dim: -1 dim: 5 } } }\n'
    + conf("prob", "softmax", "in=back/out", "out")
    + 'op_list { name: "Return_1" return_conf { in: "prob/out_0" out: "out" job_name: "f" } }\n'
)  # fmt: skip


@pytest.mark.parametrize("spelling", ["0.4", "0.6"])
def test_a_directory_of_oneflows_own_builder(spelling: str, tmp_path: Path) -> None:
    """Text alone, with the names of that release, device tags of another machine and no compiled form."""
    torch = pytest.importorskip("torch", reason="the reference")
    names = {"0.4": ("in", "out", "max_pool_2d"), "0.6": ("x", "y", "tf_max_pool_2d")}[spelling]
    graph = GRAPH
    for key, value in zip(("{relu_in}", "{relu_out}", "{max_pool}"), names, strict=True):
        graph = graph.replace(key, value)
    signature = ('signatures { key: "s" value { inputs { key: "image" value { lbi { op_name: "Input_0" blob_name: "out" } '
                 "blob_conf { shape { dim: 2 dim: 3 dim: 8 dim: 8 } data_type: kFloat is_dynamic: false } } }"
                 ' outputs { key: "prob" value { lbi { op_name: "prob" blob_name: "out_0" } } } } }')  # fmt: skip
    text = f'name: "net" version: 1 checkpoint_dir: "variables" graphs {{ key: "f" value {{ {graph} {signature} }} }}'
    folder = tmp_path / "net" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.prototxt").write_text(f'{text} default_graph_name: "f"')
    rng = np.random.default_rng(0)
    weights = {"w": (4, 3, 3, 3), "b": (4,), "d": (64, 5), "one": (4,)}
    values = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in weights.items()}
    flow.checkpoint.save(str(folder / "variables"), values)
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    w, b, d, one = (torch.tensor(values[n]) for n in ("w", "b", "d", "one"))
    y = torch.nn.functional.conv2d(torch.tensor(x), w, b, padding=1)
    y = torch.relu(torch.nn.functional.batch_norm(y, b, one, one, b, eps=1e-3))
    wanted = torch.softmax(torch.nn.functional.max_pool2d(y, 2).flatten(1) @ d + 1, 1).numpy()
    for kwargs, name in (({"signature_name": "s"}, "image"), ({}, "Input_0")):
        s = launched(tmp_path / "net", **kwargs)
        assert s.list_inputs() == (name,)
        np.testing.assert_allclose(s.run("f", **{name: x})[0], wanted, rtol=1e-5, atol=1e-6)


def test_ops_that_are_not_here(tmp_path: Path) -> None:
    source = 'op_list { name: "x" input_conf { out: "out" blob_conf { shape { dim: 2 } data_type: kFloat } } }'
    end = 'op_list { name: "r" return_conf { in: "y/out_0" out: "out" } }'
    for number, (middle, message) in enumerate([
        (conf("y", "moon_phase", "in=x/out", "out"), "'y' of type 'moon_phase' cannot be made(?s:.*)there is no op type"),
        (conf("y", "oneflow_jax.moon", "in=x/out", "out"), "there is no op 'moon'"),
        (conf("y", "reshape", "in=x/out", "out", "shape at_shape { dim: 3 }"), "op 'y' of type 'reshape' cannot be made"),
        (conf("y", "reshape", "in=x/out", "out"), "attribute 'shape', Shape, is missing"),
        (conf("y", "softmax", "in=z/out", "out"), "'z/out' is read, and no op makes it"),
        (conf("y", "softmax", "in=y/out_0", "out"), "reads 'y/out_0' before an op makes it"),
        ('op_list { name: "y" }', "'y/out_0' is read, and no op makes it"),
    ]):  # fmt: skip
        folder = tmp_path / "net" / str(number)
        folder.mkdir(parents=True)
        graph = f'graphs {{ key: "f" value {{ {source} {middle} {end} }} }}'
        text = f'name: "n" version: 1 checkpoint_dir: "v" default_graph_name: "f" {graph}'
        text_format.Parse(text, saved_model_pb2.SavedModel())
        (folder / "saved_model.prototxt").write_text(text)
        with pytest.raises(SavedModelError, match=message):
            session().load_saved_model(str(tmp_path / "net"), number)
