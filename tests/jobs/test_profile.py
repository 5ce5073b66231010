"""job.profile: which op the time goes to. Compared are counts, sums and names, never how long something takes."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, FeedShapeError, ModeError

X = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)


def dense(x, units, name):
    return flow.layers.dense(x, units, kernel_initializer=flow.random_normal_initializer(stddev=0.1), name=name)


def mlp():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((64, 128))) -> tp.Numpy:
        h = flow.math.tanh(dense(x, 256, "first"), name="activation")
        h = flow.nn.dropout(h, 0.1, name="drop")
        loss = flow.math.reduce_mean(dense(h, 32, "second"), name="loss")
        flow.optimizer.Adam(0.01).minimize(loss)
        return loss

    return train


def adds_up(profile):
    parts = sum(row.milliseconds for row in profile.rows) + sum(profile.outside.values())
    assert parts == pytest.approx(profile.step_ms, rel=0.05)
    assert profile.device_ms <= profile.step_ms * 1.05
    shares = sum(row.share for row in profile.rows) + sum(profile.outside.values()) / profile.step_ms
    assert shares == pytest.approx(1, rel=0.05)


@pytest.fixture(scope="module")
def profiled():
    flow.clear_default_session()
    flow.manual_seed(4)
    train = mlp()
    before = train(X)
    return train.profile(X, steps=4), before


def test_it_adds_up_and_every_step_is_counted(profiled):
    profile, _ = profiled
    adds_up(profile)
    assert profile.steps == 4
    assert all(row.instructions % 4 == 0 and row.instructions for row in profile.rows)
    assert list(profile.outside) == ["feeding", "waiting for data", "dispatch and gaps", "delivering"]


def test_ops_passes_and_updates_are_told_apart(profiled):
    profile, _ = profiled
    rows = {row.name: row for row in profile.rows}
    for name in ("first-matmul", "second-matmul"):
        assert rows[name].forward_ms > 0 and rows[name].op == "matmul"
        assert "test_profile.py:" in rows[name].source
    assert rows["second-matmul"].backward_ms > 0  # the first one's is that of the weights, which their update may compute
    updated = [name for name, row in rows.items() if row.update_ms > 0]
    assert {"first-matmul", "second-matmul"} <= set(updated)
    assert set(updated) <= {"first-matmul", "second-matmul", "first-bias_add", "second-bias_add"}
    known = {"first-matmul", "first-bias_add", "activation", "second-matmul", "second-bias_add", "loss", "(other)"}
    assert all(name in known or "drop" in name for name in rows)
    assert profile.rows[0].milliseconds >= profile.rows[1].milliseconds


def test_operations_and_bytes_are_those_of_the_shapes(profiled):
    profile, _ = profiled
    first = next(row for row in profile.rows if row.name == "first-matmul")
    assert first.flops == pytest.approx(2 * 64 * 128 * 256 * 2, rel=0.02)  # x needs no gradient
    second = next(row for row in profile.rows if row.name == "second-matmul")
    assert second.flops == pytest.approx(2 * 64 * 256 * 32 * 3, rel=0.02)
    arrays = [64 * 256, 256 * 32, 64 * 32]
    assert second.bytes == 4 * (sum(arrays) + sum(arrays) + sum(arrays[:2]))
    seconds = (second.forward_ms + second.backward_ms) / 1e3
    assert second.flops_per_second == pytest.approx(second.flops / seconds)
    assert second.bytes_per_second == pytest.approx(second.bytes / seconds)


def test_it_reads_well(profiled):
    profile, _ = profiled
    text = str(profile)
    assert text.startswith("train job 'train': ") and "over 4 steps" in text and repr(profile) == text
    assert "first-matmul" in text and "waiting for data" in text
    assert "<table>" in profile._repr_html_() and "first-matmul" in profile._repr_html_()


def test_the_trace_is_written_for_perfetto_and_xprof(profiled, tmp_path):
    profile, _ = profiled
    profile.save(tmp_path / "trace.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    assert any(event.get("args", {}).get("hlo_module", "").startswith("jit_job_train") for event in events)
    profile.save(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == events
    profile.save(str(tmp_path / "trace.pb"))
    profile.save(tmp_path / "logs")
    (written,) = (tmp_path / "logs").rglob("*.xplane.pb")
    assert written.read_bytes() == (tmp_path / "trace.pb").read_bytes() != b""
    with pytest.raises(ArgumentError, match="save takes a path"):
        profile.save(3)


def test_nothing_changes():
    def losses(profiles):
        flow.clear_default_session()
        flow.manual_seed(4)
        train = mlp()
        first = [train(X)]
        if profiles:
            train.profile(X, steps=1)
        return [*first, train(X), train(X)]

    np.testing.assert_array_equal(losses(True), losses(False))


def test_a_job_that_was_compiled_under_other_names():
    """Compiled programs are cached by what they compute, and carry the names of the ops they were made of."""

    def names(prefix):
        flow.clear_default_session()

        @flow.global_function("predict")
        def job(x: tp.Numpy.Placeholder((64, 128))) -> tp.Numpy:
            return flow.math.tanh(flow.matmul(x, x, transpose_b=True, name=f"{prefix}/product"), name=f"{prefix}/activation")

        return {row.name for row in job.profile(X, steps=1).rows}

    assert names("old") == {"old/product", "old/activation"}
    assert names("new") == {"new/product", "new/activation"}


def test_what_the_host_reads(tmp_path):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((64, 128))) -> tp.Numpy:
        buffers = flow.tensor_to_tensor_buffer(x, instance_dims=1)
        return flow.math.tanh(flow.tensor_buffer_to_tensor(buffers, flow.float32, (128,)), name="activation")

    profile = job.profile(X, steps=3)
    adds_up(profile)
    assert profile.outside["waiting for data"] > 0
    assert {row.name for row in profile.rows} == {"activation"}


def test_checkpointed_parts_are_computed_in_the_backward_pass():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((64, 128))) -> tp.Numpy:
        with flow.experimental.scope.config(checkpointing=True):
            h = flow.math.tanh(dense(x, 256, "first"))
            h = flow.math.tanh(dense(h, 128, "second"))
        loss = flow.math.reduce_mean(h)
        flow.optimizer.SGD(0.01).minimize(loss)
        return loss

    profile = train.profile(X, steps=2)
    adds_up(profile)
    rows = {row.name: row for row in profile.rows}
    assert rows["second-matmul"].backward_ms > 0 and rows["first-matmul"].backward_ms > 0


def test_wrong_use():
    train = mlp()
    for steps in (0, -1, 1.5, "many", None):
        with pytest.raises(ArgumentError, match="steps"):
            train.profile(X, steps=steps)
    with pytest.raises(FeedShapeError):
        train.profile(X[:3])

    @flow.global_function("predict")
    def inside(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        train.profile(X)
        return x

    with pytest.raises(ModeError, match="inside the body"):
        inside(np.ones(2, np.float32))


def test_a_job_with_one_variable():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((64, 128))) -> tp.Numpy:
        return x * flow.get_variable("scale", (128,), initializer=flow.ones_initializer())

    assert "Multiply_0" in [row.name for row in job.profile(X, steps=2).rows]
