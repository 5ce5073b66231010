"""One logical tensor on several devices: results are those of one device, whatever lies where."""

from __future__ import annotations

import numpy as np
import pytest
from placed_jobs import WIDTH, assert_same, begin, constant, train

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import AxisError


def adam() -> flow.optimizer.Optimizer:
    clipping = flow.optimizer.grad_clipping.by_global_norm(0.05)
    return flow.optimizer.Adam(constant(0.01), epsilon=1e-2, grad_clipping=clipping)  # small ones make much of rounding


def scaled() -> flow.optimizer.Optimizer:
    return flow.optimizer.SGD(constant(0.1), loss_scale_policy=flow.optimizer.loss_scale.dynamic_loss_scale(increment_period=2))


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.thorough), 8])
def test_data_parallel_training_is_that_of_one_device(devices):
    assert_same(train(devices, dropout=0.3, normalize=True), train(1, dropout=0.3, normalize=True))


@pytest.mark.parametrize("options", [{"split": True}, {"batch": 10}, {"batch": 10, "split": True}], ids=str)
def test_split_layers_and_uneven_sizes(options):
    assert_same(train(4, **options), train(1, **{k: v for k, v in options.items() if k != "split"}))


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param(("0:0", "0:1"), marks=pytest.mark.thorough),
        pytest.param(("0:0-3", "0:1"), marks=pytest.mark.thorough),
        ("0:0-2", "0:1-3"),
    ],
)
def test_stages_on_other_devices(stages):
    assert_same(train(4, stages=stages, dropout=0.2, normalize=True), train(1, dropout=0.2, normalize=True))


@pytest.mark.parametrize("optimizer", [adam, pytest.param(scaled, marks=pytest.mark.thorough)])
def test_rules_that_look_at_all_gradients_across_stages(optimizer):
    assert_same(train(4, stages=("0:0-1", "0:2-3"), optimizer=optimizer), train(1, optimizer=optimizer))


@pytest.mark.parametrize("optimizer", [adam, scaled])
def test_rules_that_look_at_all_gradients(optimizer):
    assert_same(train(4, optimizer=optimizer, split=True), train(1, optimizer=optimizer))


@pytest.mark.parametrize("mode", ["distributed_split", "non_distributed"])
def test_sharded_optimizer_state(mode):
    def setting(config: flow.FunctionConfig) -> None:
        config.optimizer_placement_optimization_mode(mode)
        config.optimizer_placement_optimization_threshold(1)

    found = train(2, config=setting, optimizer=adam)
    pieces = {name: v.devices for name, v in flow.get_all_variables().items() if name.startswith("first-weight")}
    assert {len(devices) for devices in pieces.values()} == ({2} if mode == "distributed_split" else {1})
    assert_same(found, train(1, optimizer=adam))


def test_gathering_in_16_bits_changes_no_result(monkeypatch):
    def setting(config: flow.FunctionConfig) -> None:
        config.enable_auto_mixed_precision(True)
        config.optimizer_placement_optimization_mode("distributed_split")
        config.optimizer_placement_optimization_threshold(1)

    found = train(2, config=setting, optimizer=adam)
    monkeypatch.setattr("oneflow.compiler.program.narrow_gathers", lambda *_: {})
    assert_same(found, train(2, config=setting, optimizer=adam))


def test_a_split_variable_and_its_optimizer_state_cost_each_device_a_piece():
    begin(4)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((8, 16))) -> tp.Numpy:
        w = flow.get_variable("w", (32, 16), initializer=flow.ones_initializer(), distribute=flow.distribute.split(0))
        loss = flow.math.reduce_mean(flow.matmul(x, w, transpose_b=True))
        flow.optimizer.Adam(constant(0.1)).minimize(loss)
        return loss

    job(np.ones((8, 16), np.float32))
    variables = flow.get_all_variables()
    for name in ("w", "w-m", "w-v"):
        assert variables[name].bytes_per_device == 32 * 16 * 4 // 4
        assert [str(d) for d in variables[name].devices] == ["0:0", "0:1", "0:2", "0:3"]
    rows = {row.name: row for row in job.plan().variables}
    assert rows["w"].layout == "S(0)" and rows["w"].bytes_per_device == 512


def test_variables_live_where_their_layer_is_placed():
    train(4, stages=("0:0-1", "0:3"))
    found = {name: [str(d) for d in v.devices] for name, v in flow.get_all_variables().items()}
    assert found["first-weight"] == found["first-weight-momentum"] == ["0:0", "0:1"]
    assert found["second-bias"] == found["second-bias-momentum"] == ["0:3"]


def test_embedding_and_cross_entropy_over_split_classes():
    def run(devices: int, over_classes: bool):
        begin(devices)
        split = flow.distribute.split

        @flow.global_function(type="train")
        def job(ids: tp.Numpy.Placeholder((8, 3), dtype=flow.int32), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)) -> tp.Numpy:
            start = flow.random_normal_initializer(stddev=0.5)
            table = flow.get_variable("table", (12, 8), initializer=start, distribute=split(0))
            h = flow.math.reduce_mean(flow.gather(table, ids), axis=[1])
            w = flow.get_variable("w", (8, 8), initializer=start, distribute=split(0))
            logits = flow.matmul(h, w, transpose_b=True)
            if over_classes:
                logits = logits.with_distribute(split(1))
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            flow.optimizer.SGD(constant(0.5), momentum=0).minimize(loss)
            return loss

        rng = np.random.default_rng(1)
        losses = [job(rng.integers(0, 12, (8, 3)).astype("i"), rng.integers(0, 8, 8).astype("i")) for _ in range(3)]
        return np.stack(losses), {n: v.numpy() for n, v in flow.get_all_variables().items()}

    expected = run(1, False)
    for over_classes in (False, True):
        losses, variables = run(4, over_classes)
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
        for name, value in expected[1].items():
            np.testing.assert_allclose(variables[name], value, atol=2e-6, err_msg=name)


def test_layouts_on_rows_and_columns():
    def run(devices: int, hierarchy: tuple[int, int] | None):
        begin(devices)
        placement = flow.scope.placement("gpu", "0:0-3" if hierarchy else "0:0", hierarchy)

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
            start = flow.random_normal_initializer(stddev=0.5)
            with placement:
                kwargs = {"parallel_distribution": ["B", "S(1)"]} if hierarchy else {}
                if hierarchy:
                    x = flow.hierarchical_parallel_cast(x, ["S(0)", "B"])
                h = flow.matmul(x, flow.get_variable("w", (6, 8), initializer=start, **kwargs))
                if hierarchy:
                    h = flow.hierarchical_parallel_cast(h, ["S(0)", "B"], "manual", ["S(0)", "S(1)"])
                loss = flow.math.reduce_mean(flow.math.square(h), axis=[1])
            flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
            return loss

        losses = np.stack([job(np.random.default_rng(i).standard_normal((8, 6)).astype("f")) for i in range(2)])
        return losses, flow.get_all_variables()["w"]

    expected, one = run(1, None)
    value = one.numpy()
    found, w = run(4, (2, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(w.numpy(), value, atol=1e-6)
    assert w.bytes_per_device == 6 * 8 * 4 // 2


@pytest.mark.parametrize("layout", [["S(0)", "P"], ["P", "P"], "S(0), P", ["P", "B"]], ids=str)
def test_partial_sums_are_whole_values(layout):
    def run(devices: int, hierarchy: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
        begin(devices)

        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
            with flow.scope.placement("gpu", f"0:0-{devices - 1}", hierarchy):
                rows = ["B", "S(0)"] if hierarchy else []
                w = flow.get_variable("w", (6, 4), initializer=flow.constant_initializer(0.1), nd_sbp=rows)
                y = flow.matmul(x, w)
                if hierarchy:
                    y = flow.hierarchical_parallel_cast(y, layout)
                    y = flow.hierarchical_parallel_cast(y, ["S(0)", "B"], "manual", ["S(0)", "P"])
                loss = flow.math.square(y)
            flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
            return y

        return job(np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)), flow.get_all_variables()["w"].numpy()

    for found, expected in zip(run(4, (2, 2)), run(1, None), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("where", ["variable", "cast"])
def test_layouts_that_are_refused(where):
    begin(1)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        if where == "cast":
            return flow.hierarchical_parallel_cast(x, ["Q"])
        return x + flow.get_variable("w", (4, 6), initializer=flow.ones_initializer(), nd_sbp=["P"])

    allowed = r'entries "B" and "S\(axis\)", got' if where == "variable" else r'entries "B", "S\(axis\)" and "P", got'
    with pytest.raises(flow.errors.ArgumentError, match=allowed):
        job(np.ones((4, 6), np.float32))


def test_pieces_of_single_devices():
    begin(3)

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((7, 2))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
        pieces = flow.advanced.distribute_split(x)
        assert [p.shape for p in pieces] == [(3, 2), (2, 2), (2, 2)]
        assert [p.parallel_conf.device_name() for p in pieces] == [["0:0-0"], ["0:1-1"], ["0:2-2"]]
        joined = flow.math.negative(flow.advanced.distribute_concat(pieces))
        total = flow.advanced.distribute_add(flow.advanced.distribute_clone(x))
        (mapped,) = flow.advanced.distribute_map(x, flow.math.square)
        return joined, total, mapped, pieces[0]

    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    joined, total, mapped, first = job(x)
    np.testing.assert_array_equal(joined, -x)
    np.testing.assert_array_equal(total, 3 * x)
    np.testing.assert_array_equal(mapped, x**2)
    np.testing.assert_array_equal(first, x[:3])


def test_a_checkpoint_is_loaded_by_other_numbers_of_devices(tmp_path):
    trained = train(4, split=True)
    flow.checkpoint.save(str(tmp_path / "model"))
    begin(2)

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((8, WIDTH))) -> tp.Numpy:
        return flow.layers.dense(x, 10, name="first", model_distribute=flow.distribute.split(0))

    with pytest.warns(flow.errors.CheckpointWarning, match=r"2 name\(s\).*'second-bias'.*'second-weight'"):
        flow.load_variables(flow.checkpoint.get(str(tmp_path / "model")), ignore_mismatch=True)
    x = np.ones((8, WIDTH), np.float32)
    weight, bias = trained.variables["first-weight"], trained.variables["first-bias"]
    np.testing.assert_allclose(job(x), x @ weight.T + bias, rtol=1e-5, atol=1e-6)


def test_a_job_on_other_devices_reads_the_same_variables():
    begin(4)
    start = flow.random_normal_initializer(stddev=0.5)

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.layers.dense(x, 8, kernel_initializer=start, name="d",
                                                       model_distribute=flow.distribute.split(0)))  # fmt: skip
        flow.optimizer.SGD(constant(0.1), momentum=0).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def evaluate(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:2"):
            return flow.layers.dense(x, 8, kernel_initializer=start, name="d")

    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    step(x)
    v = {name: value.numpy() for name, value in flow.get_all_variables().items()}
    np.testing.assert_allclose(evaluate(x), x @ v["d-weight"].T + v["d-bias"], rtol=1e-5, atol=1e-6)


def test_many_asynchronous_calls_with_collectives_come_back():
    begin(4)

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((16, 8))) -> tp.Callback[tp.Numpy]:
        loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(x, 8, name="d")), axis=[1])
        flow.optimizer.SGD(constant(0.01), momentum=0).minimize(loss)
        return loss

    seen = []
    for i in range(100):
        step(np.full((16, 8), i, np.float32))(lambda loss: seen.append(loss.shape))
    flow.sync_default_session()
    assert seen == [(16,)] * 100


@pytest.mark.parametrize("devices", ["0:1", "0:0-1", "@0:1-3", ["0:3", "0:0"]])
@pytest.mark.parametrize("rows", [8, 7])
def test_a_predict_job_all_of_whose_layers_are_on_some_of_the_devices(devices, rows):
    begin(4)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((rows, 4))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            return flow.matmul(x, flow.get_variable("w", (4, 3), initializer=flow.ones_initializer()))

    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    np.testing.assert_allclose(job(x), x @ np.ones((4, 3), np.float32))
    assert "matmul" in str(job.plan())


def test_one_set_of_devices_in_two_arrangements():
    begin(4)

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-3", (2, 2)):
            w = flow.get_variable("w", (6, 4), initializer=flow.ones_initializer(), parallel_distribution=["B", "S(1)"])
            y = flow.matmul(flow.hierarchical_parallel_cast(x, ["S(0)", "B"]), w)
        loss = flow.math.square(y)  # in a row, not in rows and columns
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    y = x @ np.ones((6, 4), np.float32)
    np.testing.assert_allclose(job(x), y**2, rtol=1e-5)
    w = flow.get_all_variables()["w"].numpy()
    np.testing.assert_allclose(w, 1 - 0.1 * x.T @ (2 * y) / y.size, rtol=1e-5)


@pytest.mark.parametrize("where", ["variable", "reader"])
def test_split_along_an_axis_that_is_not_there(where):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        asked = flow.distribute.split(2)
        if where == "reader":
            return x.with_distribute(asked) * 2.0
        return x + flow.get_variable("w", (4, 6), initializer=flow.ones_initializer(), distribute=asked)

    with pytest.raises(AxisError, match="axis"):
        job(np.ones((4, 6), np.float32))


def test_the_compilers_limit_of_elements_counts_per_device(monkeypatch):
    monkeypatch.setattr("oneflow._base.jax_versions.most_elements_on_cpu", lambda: 1000)
    begin(2)

    @flow.global_function()
    def split(x: tp.Numpy.Placeholder((1200,))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-1"):
            return x * x

    @flow.global_function()
    def whole(x: tp.Numpy.Placeholder((1200,))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            return x * x

    x = np.arange(1200, dtype=np.float32)
    np.testing.assert_array_equal(split(x), x * x)
    with pytest.raises(flow.errors.CompileError, match="1,200 elements"):
        whole(x)


def test_a_placement_outside_of_a_job_is_inert():
    with pytest.warns(flow.errors.JobWarning, match="no effect outside of a job"), flow.scope.placement("cpu", "0:1"):

        @flow.global_function()
        def job() -> tp.Numpy:
            return flow.constant(1.0, flow.float, (1,))

        assert job.graph.scope.placement.devices == ((0, 0),)
    assert job().tolist() == [1.0]


@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_of_split_arrays_with_nans(axis: int) -> None:
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def extremes(x: tp.Numpy.Placeholder((64, 1024))) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", "0:0-1"):
            parts = x.with_distribute(flow.distribute.split(0)) * 1.0
            return flow.math.reduce_max(parts, axis), flow.math.reduce_min(parts, axis)

    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    for given in (x, np.where(x > 3, np.nan, x), np.where(x > 0, -np.inf, np.inf)):
        for found, expected in zip(extremes(given), (given.max(axis), given.min(axis)), strict=True):
            np.testing.assert_array_equal(found, expected)
