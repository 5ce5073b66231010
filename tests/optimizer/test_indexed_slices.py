"""indexed_slices_optimizer_conf: only rows that a step gathered move."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, JobWarning

TABLE = np.random.default_rng(4).standard_normal((6, 3)).astype(np.float32)


def embedding(optimizer, names=("table",), readers=1, micro_batches=1, told=None):
    config = flow.FunctionConfig()
    config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": list(names)}})
    config.train.num_gradient_accumulation_steps(micro_batches)

    @flow.global_function("train", config)
    def train(at: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        table = flow.get_variable("table", TABLE.shape, initializer=flow.zeros_initializer())
        y = flow.gather(table, at)
        for _ in range(readers - 1):
            y = y + flow.gather(table, at)
        loss = flow.math.square(y)
        optimizer(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    with nullcontext() if told is None else pytest.warns(JobWarning, match=told):
        flow.load_variables({"table": TABLE})
    return train


def values(*names):
    kept = flow.get_all_variables()
    return [kept[name].numpy() for name in names]


@pytest.mark.parametrize("names", [("table",), ("another",)])
def test_adam(names):
    told = None if names == ("table",) else "no effect on 'another' in job 'train': the job trains no variable of this name"
    train = embedding(lambda rate: flow.optimizer.LazyAdam(rate), names, told=told)
    train(np.array([1, 1, 4, 4], np.int32))
    first, m = values("table", "table-m")
    assert (first[[0, 2, 3, 5]] == TABLE[[0, 2, 3, 5]]).all() and (m[[0, 2, 3, 5]] == 0).all()
    train(np.array([2, 2, 2, 2], np.int32))
    second, m2 = values("table", "table-m")
    assert (second[2] != TABLE[2]).all()
    untouched = [0, 1, 3, 4, 5]
    if names == ("table",):  # duplicates are summed, and rows that are not gathered keep m, v and their values
        assert (second[untouched] == first[untouched]).all() and (m2[untouched] == m[untouched]).all()
        g = 2 * TABLE[2] * 4 / 12
        np.testing.assert_allclose(m2[2], 0.1 * g, rtol=1e-5)
    else:
        assert (second[[1, 4]] != first[[1, 4]]).all()


def test_weight_decay_and_momentum_touch_gathered_rows_only():
    train = embedding(lambda rate: flow.optimizer.SGDW(rate, momentum=0.9, weight_decay=0.5))
    for _ in range(2):
        train(np.array([0, 3, 3, 0], np.int32))
    table, momentum = values("table", "table-momentum")
    assert (table[[1, 2, 4, 5]] == TABLE[[1, 2, 4, 5]]).all() and (momentum[[1, 2, 4, 5]] == 0).all()
    assert (table[[0, 3]] != TABLE[[0, 3]]).all()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"grad_clipping": flow.optimizer.grad_clipping.by_global_norm(1.0)}, "is clipped"),
        ({"loss_scale_policy": flow.optimizer.loss_scale.dynamic_loss_scale()}, "with a dynamic loss scale"),
        ({"kind": flow.optimizer.LAMB}, "updates by LAMB are dense"),
        ({"micro_batches": 2}, "several times per call"),
    ],
)
def test_dense_where_the_pattern_does_not_match(options, told):
    own = dict(options)
    kind, micro_batches = own.pop("kind", flow.optimizer.SGDW), own.pop("micro_batches", 1)
    train = embedding(lambda rate: kind(rate, weight_decay=0.5, **own), micro_batches=micro_batches, told=told)
    for _ in range(3):
        train(np.array([0, 0, 0, 0], np.int32))
    (table,) = values("table")
    assert (table != TABLE).all()


def test_tables_that_are_read_whole_stay_dense():
    config = flow.FunctionConfig()
    config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": ["table"]}})

    @flow.global_function("train", config)
    def train(at: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        table = flow.get_variable("table", TABLE.shape, initializer=flow.zeros_initializer())
        loss = flow.matmul(flow.gather(table, at), table, transpose_b=True)
        flow.optimizer.SGDW(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), weight_decay=0.5).minimize(loss)
        return loss

    with pytest.warns(JobWarning, match="something else than gathers along axis 0"):
        flow.load_variables({"table": TABLE})
    train(np.array([0, 0, 0, 0], np.int32))
    assert (values("table")[0] != TABLE).all()


@pytest.mark.parametrize(
    "conf", [{}, {"include_op_names": ["table"]}, {"include_op_names": {"op_name": [1]}}, {"enable": True, "x": 1}]
)
def test_bad_settings(conf):
    with pytest.raises(ArgumentError, match="include_op_names|its keys"):
        flow.FunctionConfig().indexed_slices_optimizer_conf(conf)


def test_adamw_decays_the_rows_of_the_batch_only():
    """Against torch's AdamW over those rows alone, of which it sees one gradient per step."""
    torch = pytest.importorskip("torch")
    rate, decay, batches = 0.1, 0.5, [[0, 3, 3, 0], [3, 3, 3, 3], [3, 0, 0, 3]]
    train = embedding(lambda r: flow.optimizer.AdamW(r, do_bias_correction=False, weight_decay=decay))
    x, m, v = TABLE.astype(np.float64), np.zeros(TABLE.shape), np.zeros(TABLE.shape)
    for batch in batches:
        train(np.array(batch, np.int32))
        leaf = torch.tensor(x, requires_grad=True)
        (leaf[batch] ** 2).mean().backward()
        g, rows = leaf.grad.numpy(), sorted(set(batch))
        m[rows] = 0.9 * m[rows] + 0.1 * g[rows]
        v[rows] = 0.999 * v[rows] + 0.001 * g[rows] ** 2
        x[rows] -= rate * (m[rows] / (np.sqrt(v[rows]) + 1e-8) + decay * x[rows])
        table, slot = values("table", "table-m")
        np.testing.assert_allclose(table, x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(slot, m, rtol=1e-4, atol=1e-6)


RULES = {
    "sgd": lambda rate: flow.optimizer.SGD(rate, momentum=0),
    "momentum": lambda rate: flow.optimizer.SGD(rate, momentum=0.9),
    "decay": lambda rate: flow.optimizer.SGDW(rate, momentum=0.9, weight_decay=0.5),
    "adam": lambda rate: flow.optimizer.Adam(rate),
    "adamw": lambda rate: flow.optimizer.AdamW(rate, weight_decay=0.5),
    "scaled": lambda rate: flow.optimizer.SGD(
        rate, momentum=0.9, loss_scale_policy=flow.optimizer.loss_scale.static_loss_scale(64)
    ),
}


@pytest.mark.parametrize(("kind", "devices"), [("int32", 1), ("int64", 1), ("int8", 1), ("uint8", 1), ("int32", 2)])
@pytest.mark.parametrize("rule", RULES)
def test_tables_of_many_rows_are_updated_as_those_of_few(rule: str, kind: str, devices: int) -> None:
    """Where a table has many rows for each one that is gathered, only these are read and written."""
    few, many = 12, 300
    table = np.random.default_rng(4).standard_normal((many, 3)).astype(np.float32)
    batches = [[0, 3, 3, 0, 3, 11], [5, 5, 5, 5, 5, 5], [11, 0, 5, 1, 1, 0]]
    found = []
    for rows in (few, many):
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        config = flow.FunctionConfig()
        config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": ["table"]}})

        @flow.global_function("train", config)
        def train(at: tp.Numpy.Placeholder((2, 3), dtype=getattr(flow, kind))) -> tuple[tp.Numpy, tp.Numpy]:
            known = flow.get_variable("table", (rows, 3), initializer=flow.zeros_initializer())  # noqa: B023
            other = flow.get_variable("other", (3,), initializer=flow.ones_initializer())
            y = flow.gather(known, at) * other
            loss = flow.math.square(y)
            RULES[rule](flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
            return loss, known

        flow.load_variables({"table": table[:rows]})
        results = [train(np.array(batch, kind).reshape(2, 3)) for batch in batches]
        np.testing.assert_allclose(results[0][1], table[:rows])
        kept = {name: value.numpy() for name, value in flow.get_all_variables().items()}
        assert (kept["table"][few:] == table[few:rows]).all()
        found.append([*(loss for loss, _ in results), *(kept[n][:few] for n in sorted(kept) if n.startswith("table"))])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_several_gathers_of_one_table(rule: str, devices: int) -> None:
    """As one gather of all their indices, whether the table has few rows or many."""
    few, many = 12, 300
    table = np.random.default_rng(4).standard_normal((many, 3)).astype(np.float32)
    batches = [([0, 3], [3, 11, 0], [7]), ([5, 5], [5, 5, 5], [5]), ([11, -1], [0, 12000, 5], [8])]
    found = []
    for rows, together in ((few, False), (many, False), (many, True)):
        flow.clear_default_session()
        flow.config.cpu_device_num(devices)
        config = flow.FunctionConfig()
        config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": ["table"]}})

        @flow.global_function("train", config)
        def train(
            left: tp.Numpy.Placeholder((2,), dtype=flow.int64),
            right: tp.Numpy.Placeholder((3,), dtype=flow.int32),
            still: tp.Numpy.Placeholder((1,), dtype=flow.int32),
        ) -> tp.Numpy:
            known = flow.get_variable("table", (rows, 3), initializer=flow.zeros_initializer())  # noqa: B023
            if together:  # noqa: B023
                read = flow.gather(known, flow.concat([flow.cast(left, flow.int32), right], axis=0))
                x, y = flow.slice(read, [0, 0], [2, 3]), flow.slice(read, [2, 0], [3, 3])
            else:
                x, y = flow.gather(known, left), flow.gather(known, right)
            z = flow.stop_gradient(flow.gather(known, still))  # whose rows get no gradient, and do not move
            loss = flow.math.reduce_sum(flow.matmul(x, y, transpose_b=True)) * flow.math.reduce_mean(z)
            RULES[rule](flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
            return loss

        flow.load_variables({"table": table[:rows]})
        results = [train(np.array(x), np.array(y, np.int32), np.array(z, np.int32)) for x, y, z in batches]
        kept = {name: value.numpy() for name, value in flow.get_all_variables().items()}
        assert (kept["table"][[7, 8, 9, *range(few, rows)]] == table[[7, 8, 9, *range(few, rows)]]).all()
        found.append([*results, *(kept[n][:few] for n in sorted(kept) if n.startswith("table"))])
    for one, other, all_at_once in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one, all_at_once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["one device", "whole", "rows", "columns"])
def test_plain_descent_of_many_rows_is_that_of_pytorch(layout: str) -> None:
    flow.config.cpu_device_num(1 if layout == "one device" else 2)
    distribute = {"rows": flow.distribute.split(0), "columns": flow.distribute.split(1)}.get(layout, flow.distribute.broadcast())
    torch = pytest.importorskip("torch")
    table = np.random.default_rng(4).standard_normal((300, 3)).astype(np.float32)

    @flow.global_function("train")
    def train(at: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
        known = flow.get_variable("table", table.shape, initializer=flow.zeros_initializer(), distribute=distribute)
        loss = flow.math.reduce_sum(flow.math.square(flow.gather(known, at)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    flow.load_variables({"table": table})
    theirs = torch.tensor(table, requires_grad=True)
    descent = torch.optim.SGD([theirs], 0.1)
    for batch in ([1, 1, 7, 199, 7, 1, 0, 5], [3, 3, 3, 3, 1, 1, 1, 1]):
        loss = theirs[torch.tensor(batch)].square().sum()
        descent.zero_grad()
        loss.backward()
        descent.step()
        np.testing.assert_allclose(train(np.array(batch, np.int32)), loss.item(), rtol=1e-5)
    np.testing.assert_allclose(values("table")[0], theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    train(np.array([500, -1, 500, -1, 500, -1, 500, -1], np.int32))  # rows that no table has
    if layout == "whole":
        program = train.executables[-1][1].hlo()
        assert not any("300,3" in line for line in program.splitlines() if " all-reduce(" in line)
    np.testing.assert_allclose(values("table")[0], theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_of_tables_that_are_watched() -> None:
    seen = []

    @flow.global_function("train")
    def train(at: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        table = flow.get_variable("table", (100, 3), initializer=flow.ones_initializer())
        flow.watch_diff(table, lambda gradient: seen.append(gradient.numpy()))
        loss = flow.math.reduce_sum(flow.math.square(flow.gather(table, at)))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    train(np.array([0, 1, 1, 99], np.int32))
    expected = np.zeros((100, 3))
    np.add.at(expected, [0, 1, 1, 99], 2.0)
    np.testing.assert_allclose(seen[0], expected)
    np.testing.assert_allclose(values("table")[0], 1 - 0.1 * expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_equal_rows_of_16_bits_add_up_in_32(kind: str) -> None:
    count = 5000

    @flow.global_function("train")
    def train(at: tp.Numpy.Placeholder((count,), dtype=flow.int32)) -> tp.Numpy:
        table = flow.get_variable("table", (40_000, 4), dtype=getattr(flow, kind), initializer=flow.zeros_initializer())
        loss = flow.math.reduce_sum(flow.gather(table, at))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [2.0**-10]), momentum=0).minimize(loss)
        return loss

    train(np.full(count, 3, np.int32))
    (table,) = values("table")
    np.testing.assert_allclose(table[3].astype(np.float32), -count / 2**10, rtol=0.01)
    assert not table[:3].any() and not table[4:].any()


@pytest.mark.parametrize("classes", [16, 400])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_sample_of_the_classes_moves_by_itself(devices, classes):
    """Partial FC with momentum, as face recognition trains it."""
    flow.config.gpu_device_num(devices)
    config = flow.FunctionConfig()
    config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": ["fc7-weight"]}})

    @flow.global_function("train", config)
    def train(label: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        with flow.scope.placement("gpu", f"0:0-{devices - 1}"):
            initializer = flow.random_uniform_initializer(-10, 10)
            weight = flow.get_variable("fc7-weight", (classes, 3), initializer=initializer, distribute=flow.distribute.split(0))
            _, sampled, rows = flow.distributed_partial_fc_sample(weight, label, num_sample=8)
            loss = flow.math.square(rows)
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
            return sampled

    momentum = np.zeros((classes, 3), np.float32)
    for labels in ([1, 5, 9, 13], [2, 6, 10, 14], [1, 6, 11, 15]):
        before = values("fc7-weight")[0].copy()
        sampled = train(np.array(labels, np.int32))
        assert {*labels} <= {*sampled.tolist()}
        momentum[sampled] = 0.9 * momentum[sampled] - 0.1 * 2 * before[sampled] / (8 * 3)
        before[sampled] += momentum[sampled]
        np.testing.assert_allclose(values("fc7-weight")[0], before, rtol=1e-5)
