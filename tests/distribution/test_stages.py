"""Staged jobs: the list of instructions that a call replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from placed_jobs import begin, constant

import oneflow as flow
import oneflow.typing as tp
from oneflow.compiler.stages import Call, Free, Move, StagedProgram

ROWS, WIDTH = 16, 8


def declare(micro_batches: int = 1, clip: bool = False, layers: int = 2) -> Callable[[np.ndarray], np.ndarray]:
    """A train job whose layers lie on two devices in turn."""

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tp.Numpy:
        h = flow.unpack(x, micro_batches) if micro_batches > 1 else x
        for i in range(layers):
            with flow.scope.placement("gpu", f"0:{i % 2}"):
                start = flow.random_normal_initializer(stddev=0.5)
                h = flow.math.tanh(flow.layers.dense(h, WIDTH, kernel_initializer=start, name=f"d{i}"))
                h = flow.nn.dropout(h, 0.1, name=f"drop{i}")
        clipping = flow.optimizer.grad_clipping.by_global_norm(0.5) if clip else None
        flow.optimizer.Adam(constant(0.1), grad_clipping=clipping).minimize(h)
        return h

    return step


def program_of(job: Any) -> StagedProgram:
    program = job.executables[-1][1].function
    assert isinstance(program, StagedProgram)
    return program


def batch() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.thorough), {"micro_batches": 4}, {"clip": True, "layers": 4}]
)
def test_buffers_are_written_before_they_are_read_and_freed_after(options):
    begin(2)
    job = declare(**options)
    job(batch())
    program = program_of(job)
    arguments = len(program.plan.written) + len(program.plan.read) + len(program.plan.feeds) + len(program._constants)
    there, freed = set(range(arguments)), set()
    last_read: dict[int, int] = {}
    for position, instruction in enumerate(program.instructions):
        if isinstance(instruction, Free):
            assert there >= set(instruction.buffers)
            assert all(last_read[i] == position - 1 for i in instruction.buffers), "freed later than it could be"
            there -= set(instruction.buffers)
            freed |= set(instruction.buffers)
        else:
            assert there >= set(instruction.inputs), f"{instruction.name} reads what is not there"
            made = range(instruction.first, instruction.end)
            there |= set(made)
            last_read.update(dict.fromkeys([*instruction.inputs, *made], position))
    assert there - set(range(arguments)) <= set(program._returned)
    assert freed


def test_runs_share_their_functions_and_sum_their_gradients_in_place():
    begin(2)
    job = declare(micro_batches=4)
    job(batch())
    program = program_of(job)
    calls = [i for i in program.instructions if isinstance(i, Call)]
    for kind in ("forward segment", "backward segment"):
        runs = [i for i in calls if i.name.startswith(kind) and " run " in i.name]
        assert len(runs) == 4 and len({id(i.function) for i in runs}) == 1
    assert sum(i.name.startswith("add the gradients") for i in calls) == 2 * 3
    assert len(program.functions) < len(calls)


def test_weights_are_not_copied_for_the_backward_pass():
    begin(2)
    job = declare(layers=4)
    job(batch())
    program = program_of(job)
    calls = [i for i in program.instructions if isinstance(i, Call) and "segment 2" in i.name]
    weight = program.plan.written.index("d2-weight")
    assert [i.name.split()[0] for i in calls] == ["forward", "backward"]
    assert all(weight in i.inputs for i in calls)


def test_each_instruction_is_told_with_its_time():
    results = []
    for observe in (False, True):
        begin(2)
        job = declare()
        first = job(batch())
        if observe:
            told = []
            with program_of(job).observed(lambda *pair: told.append(pair)):  # noqa: B023 - called in this round alone
                second = job(batch())
        else:
            second = job(batch())
        third = job(batch())
        results.append((first, second, third))
    assert [i for i, _ in told] == list(program_of(job).instructions)  # nothing after the block is told
    assert all(seconds >= 0 for _, seconds in told)
    assert sum(isinstance(i, Move) for i, _ in told) and all(i.name for i, _ in told)
    for plain, observed in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, observed)


def test_a_trained_variable_is_assigned_to_another_one():
    begin(2)

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("gpu", "0:0"):
            w = flow.get_variable("w", (WIDTH, WIDTH), initializer=flow.random_normal_initializer(stddev=0.3))
            before = flow.get_variable("before", (WIDTH, WIDTH), initializer=flow.zeros_initializer(), trainable=False)
            flow.assign(before, w)
            h = flow.matmul(x, w)
            same = flow.identity(w)
        with flow.scope.placement("gpu", "0:1"):
            loss = flow.math.square(h)
        flow.optimizer.SGD(constant(0.01), momentum=0.9).minimize(loss)
        return loss, same

    for _ in range(3):
        _, used = step(batch())
        variables = {name: v.numpy() for name, v in flow.get_all_variables().items()}
        np.testing.assert_array_equal(variables["before"], used)
        assert not np.array_equal(variables["w"], used)


def test_gradients_flow_through_a_variable_from_run_to_run():
    torch = pytest.importorskip("torch")
    begin(1)

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((6, 3))) -> tp.Numpy:
        w = flow.get_variable("w", (3, 3), initializer=flow.constant_initializer(0.3))
        state = flow.get_variable("state", (2, 3), initializer=flow.ones_initializer(), trainable=False)
        h = flow.math.tanh(flow.matmul(flow.unpack(x, 3), w) + state)
        flow.assign(state, h)
        flow.optimizer.SGD(constant(1.0), momentum=0).minimize(h)
        return flow.pack(h, 3)

    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    step(x)
    w, state, loss = torch.full((3, 3), 0.3, requires_grad=True), torch.ones(2, 3), 0
    for i in range(0, 6, 2):
        state = torch.tanh(torch.tensor(x[i : i + 2]) @ w + state)
        loss = loss + state.sum()
    (loss / 18).backward()
    variables = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    np.testing.assert_allclose(variables["state"], state.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(0.3 - variables["w"], w.grad.numpy(), atol=1e-6)


def test_transfers_are_those_of_the_instructions():
    begin(2)
    step = declare(micro_batches=2)
    moved = [(t.name, t.source, t.target, t.backward) for t in step.plan().transfers]
    forward, backward = ("gpu 0:0-0", "gpu 0:1-1", False), ("gpu 0:1-1", "gpu 0:0-0", True)
    assert [m[1:] for m in moved].count(forward) == 2
    assert [m[1:] for m in moved].count(backward) == 2


def test_micro_batches_of_different_stages_can_be_computed_at_the_same_time():
    """Every place works through its calls in order, each as soon as what it reads is there: how long is that, in calls?"""
    lengths, calls = {}, {}
    for micro_batches in (1, 4):
        begin(2)
        job = declare(micro_batches)
        job(batch())
        program = program_of(job)
        places = {id(f.made): program.segments[f.segment].placement for f in program.functions if f.segment is not None}
        ready: dict[int, int] = {}  # when each buffer is there
        free: dict[Any, int] = {}  # when each place has done its calls so far
        for instruction in program.instructions:
            if isinstance(instruction, Free):
                continue
            at = max((ready.get(i, 0) for i in instruction.inputs), default=0)
            place = places.get(id(instruction.function)) if isinstance(instruction, Call) else None
            if place is not None and instruction.name.startswith(("forward", "backward")):
                at = free[place] = max(at, free.get(place, 0)) + 1
                calls[micro_batches] = calls.get(micro_batches, 0) + 1
            ready.update(dict.fromkeys(range(instruction.first, instruction.end), at))
        lengths[micro_batches] = max(free.values())
    assert (calls[1], lengths[1]) == (3, 3)  # one after the other: forward, forward and backward of the last stage, backward
    assert lengths[4] <= calls[4] - 3, "three of the second place's four calls fit beside the first's"


@pytest.mark.parametrize("micro_batches", [4, pytest.param(8, marks=pytest.mark.thorough)])
def test_four_stages_wait_no_longer_than_in_a_pipeline_without_gaps(micro_batches):
    """The last stage's calls are forward and backward in one, and count twice. No clock: the list of instructions is followed."""
    begin(4)

    @flow.global_function(type="train")
    def step(x: tp.Numpy.Placeholder((ROWS, WIDTH))) -> tp.Numpy:
        h = flow.unpack(x, micro_batches)
        for i in range(4):
            with flow.scope.placement("gpu", f"0:{i}"):
                start = flow.random_normal_initializer(stddev=0.5)
                h = flow.math.tanh(flow.layers.dense(h, WIDTH, kernel_initializer=start, name=f"d{i}"))
        flow.optimizer.SGD(constant(0.1), momentum=0).minimize(h)
        return flow.pack(h, micro_batches)

    step(batch())
    program = program_of(step)
    places = {id(f.made): program.segments[f.segment].placement for f in program.functions if f.segment is not None}
    lasting = {"forward": 1, "backward": 1, "forward_backward": 2}
    ready: dict[int, int] = {}
    free: dict[Any, int] = {}
    for instruction in program.instructions:
        if isinstance(instruction, Free):
            continue
        at = max((ready.get(i, 0) for i in instruction.inputs), default=0)
        place = places.get(id(instruction.function)) if isinstance(instruction, Call) else None
        kind = instruction.name.split(" ")[0]
        if place is not None and place.parallel_num == 1 and kind in lasting:  # not what splits the batch, on all devices
            at = free[place] = max(at, free.get(place, 0)) + lasting[kind]
        ready.update(dict.fromkeys(range(instruction.first, instruction.end), at))
    assert len(free) == 4
    assert max(free.values()) == 2 * (micro_batches + 4 - 1)
