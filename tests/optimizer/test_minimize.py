"""minimize and add_loss: what they leave in the graph, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import losses
from oneflow import optimizer as opt
from oneflow._base.dist import parse_placement
from oneflow._base.source import caller
from oneflow.errors import ArgumentError, JobWarning, ModeError, TrainError
from oneflow.graph.graph import Graph, Variable, tracing
from oneflow.graph.node import Blob, Scope

SCHEDULE = opt.PiecewiseConstantScheduler([], [0.1])


@contextmanager
def job(train: bool = True) -> Iterator[Graph]:
    graph = Graph("train_job", train=train, scope=Scope(parse_placement("cpu", "0:0")))
    with tracing(graph):
        yield graph


def blob(graph: Graph, shape: tuple[int, ...] = (4,), dtype: Any = flow.float32) -> Blob:
    return graph.add_input("x", shape, dtype, "Numpy", 0, caller())


def variables(graph: Graph, *names: str) -> None:
    for name in names:
        graph.add_variable(Variable(name, (2,), flow.float32, None, caller(), trainable=True))  # type: ignore[arg-type]


def test_minimize_leaves_losses_optimizer_and_line() -> None:
    with job() as graph:
        loss = blob(graph)
        optimizer = opt.SGD(SCHEDULE)
        optimizer.minimize(loss)
        objective = graph.objective
    assert objective.losses[0] is loss and len(objective.losses) == 1
    assert objective.optimizers == (optimizer,)
    assert objective.source is not None and objective.source.file == __file__


def test_a_second_minimize_replaces_the_first_and_its_losses() -> None:
    with job() as graph:
        first, second = blob(graph), blob(graph)
        losses.add_loss(first)
        opt.SGD(SCHEDULE).minimize(first)
        with pytest.warns(
            JobWarning, match=r"(?s)Adam.minimize replaces the loss .*earlier .*SGD.SCHEDULE..minimize.*try .*minimize"
        ):
            opt.Adam(SCHEDULE).minimize([second])
        assert [b.op_name for b in graph.objective.losses] == [second.op_name]
        assert graph.objective.optimizers == (opt.Adam(SCHEDULE),)
        losses.add_loss(first)
        assert [b.op_name for b in graph.objective.losses] == [second.op_name, first.op_name]


def test_another_optimizer_for_the_same_loss_is_told() -> None:
    with job() as graph:
        first, second = blob(graph), blob(graph)
        opt.SGD(SCHEDULE).minimize(first)
        opt.SGD(SCHEDULE).minimize([first, second])  # the loss trains as before
        with pytest.warns(JobWarning, match=r"(?s)Adam.minimize replaces the optimizer .*try .*CombinedOptimizer"):
            opt.Adam(SCHEDULE).minimize([first, second])


def test_a_refused_minimize_changes_nothing() -> None:
    with job() as graph:
        loss = blob(graph)
        opt.SGD(SCHEDULE).minimize(loss)
        before = graph.objective
        with pytest.raises(ArgumentError):
            opt.Adam(SCHEDULE, variables=["nothing"]).minimize(loss)
        assert graph.objective is before


def test_outside_a_job() -> None:
    with pytest.raises(ModeError, match="flow.optimizer.SGD.minimize can only be called inside a job"):
        opt.SGD(SCHEDULE).minimize(None)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="flow.losses.add_loss can only be called inside a job"):
        losses.add_loss(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [lambda b: opt.SGD(SCHEDULE).minimize(b), losses.add_loss], ids=["minimize", "add_loss"])
def test_in_a_predict_job(call: Any) -> None:
    with job(train=False) as graph:
        with pytest.raises(TrainError) as error:
            call(blob(graph))
    text = str(error.value)
    assert "'train_job'" in text and 'type="train"' in text and "test_minimize.py" in text


@pytest.mark.parametrize("loss", [None, 0.5, np.zeros(3), [], [0.5], "loss"])
def test_what_is_no_blob(loss: Any) -> None:
    with job():
        with pytest.raises(ArgumentError, match="Blob"):
            opt.SGD(SCHEDULE).minimize(loss)


def test_losses_of_different_shape_or_dtype() -> None:
    with job() as graph:
        first, second, third = blob(graph, (4,)), blob(graph, (3,)), blob(graph, (4,), flow.float64)
        for other in (second, third):
            with pytest.raises(TrainError, match="one shape and dtype") as error:
                opt.SGD(SCHEDULE).minimize([first, other])
            assert first.op_name in str(error.value) and other.op_name in str(error.value)
        losses.add_loss(first)
        with pytest.raises(TrainError, match="one shape and dtype"):
            losses.add_loss(second)
        assert len(graph.objective.losses) == 1


def test_custom_scheduler_finds_its_blob() -> None:
    with job() as graph:
        rate, loss = blob(graph, (1,)), blob(graph)
        optimizer = opt.SGD(opt.CustomScheduler(rate.logical_blob_name))
        optimizer.minimize(loss)
        assert graph.objective.optimizers[0].learning_rate_blob is rate
        assert optimizer.learning_rate_blob is None  # it may serve another job
        with pytest.raises(ArgumentError, match=f"which the job does not have(.|\n)*{rate.logical_blob_name}"):
            opt.SGD(opt.CustomScheduler(rate.logical_blob_name + "0")).minimize(loss)
        with pytest.raises(ArgumentError, match=r"shape \(1,\) and dtype float32"):
            opt.SGD(opt.CustomScheduler(loss.logical_blob_name)).minimize(loss)


def test_train_step_lbn_finds_its_blob() -> None:
    with job() as graph:
        step, loss = blob(graph, (1,), flow.int64), blob(graph)
        opt.SGD(SCHEDULE, train_step_lbn=step.logical_blob_name).minimize(loss)
        assert graph.objective.optimizers[0].train_step_blob is step
        with pytest.raises(ArgumentError, match=r"shape \(1,\) and dtype int64"):
            opt.SGD(SCHEDULE, train_step_lbn=loss.logical_blob_name).minimize(loss)


def test_variables() -> None:
    for given, meant in [
        (None, None),
        (["a", "c"], {"a", "c"}),
        (("b",), {"b"}),
        ({"b"}, {"b"}),
        ([], set()),
        (lambda: ["a"], {"a"}),
    ]:
        with job() as graph:
            variables(graph, "a", "b", "c")
            optimizer = opt.Adam(SCHEDULE, variables=given)
            optimizer.minimize(blob(graph))
            assert graph.objective.optimizers[0].variables == meant
            assert optimizer.Variables() == sorted(meant if meant is not None else {"a", "b", "c"})
    with job() as graph:
        loss = blob(graph)
        with pytest.raises(ArgumentError, match="'dense-weihgt', which is not a variable"):
            opt.SGD(SCHEDULE, variables=["dense-weihgt"]).minimize(loss)
        with pytest.raises(ArgumentError, match="list of names"):
            opt.SGD(SCHEDULE, variables=lambda: "a").minimize(loss)


def test_one_optimizer_serves_two_jobs() -> None:
    names: list[str] = []
    optimizer = opt.SGD(SCHEDULE, variables=lambda: names)
    for name in ("a", "b"):
        names[:] = [name]
        with job() as graph:
            variables(graph, name)
            optimizer.minimize(blob(graph))
            assert graph.objective.optimizers[0].variables == {name}


def test_combined_optimizer() -> None:
    with job() as graph:
        variables(graph, "a", "b", "c")
        step, loss = blob(graph, (1,), flow.int64), blob(graph)
        slow, fast = opt.SGD(SCHEDULE, variables=["a"]), opt.Adam(SCHEDULE, variables=["b"])
        combined = opt.CombinedOptimizer([slow, fast], loss_scale_factor=4.0, train_step_lbn=step.logical_blob_name)
        combined.minimize(loss)
        first, second = graph.objective.optimizers
        assert (type(first), type(second)) == (opt.SGD, opt.Adam)
        assert (first.variables, second.variables) == ({"a"}, {"b"})
        for member in (first, second):
            assert member.loss_scale.factor == 4.0
            assert member.train_step_blob is step
        assert slow.loss_scale is None  # members are not changed
        assert combined.Variables() == ["a", "b"]
        assert combined.train_conf["optimizers"] == [slow.train_conf, fast.train_conf]


def test_combined_optimizer_whose_members_overlap() -> None:
    with job() as graph:
        variables(graph, "a", "b")
        loss = blob(graph)
        for other in (["a", "b"], None):
            members = [opt.SGD(SCHEDULE, variables=["a"]), opt.Adam(SCHEDULE, variables=other)]
            with pytest.raises(ArgumentError, match="two members would update variable 'a'"):
                opt.CombinedOptimizer(members).minimize(loss)
