"""Malformed feeds, arguments and declarations over every public name, while a session trains.

Only the library's own errors with the user's line may come; afterwards the variables are as they were, and training goes on as if
nothing had happened. The names are those of ``tests/ops/test_fuzz_public.py``, with seed 0 its values, too, so that a new name
which passes there does not fail here; other seeds draw values of their own.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import jobs
from .children import PATIENCE, ROOT, running
from .report import Budget, Report
from .saving import reference

# Calls that are meant to change what the session holds, and may succeed with a value that is tried.
_CHANGES = (
    "flow.clear_default_session", "flow.manual_seed", "flow.load_variables", "flow.env.", "flow.unittest.", "flow.config.",
    "flow.experimental.enable_typing_check", "flow.experimental.set_interface_blob_value", "flow.checkpoint.save_on_preemption",
    "flow.checkpoint.init", "CheckPoint.init", "CheckPoint.load",
    "flow.doctor", "flow.enable_eager", "flow.train.CheckPoint",
)  # fmt: skip
_ROUND = 120  # calls between two looks at the session
_PER_CHILD = 1200
_OUTSIDE = ("JobFunction", "Result", "LocalTensor", "Variable")  # made of a declared job, which happens outside of jobs


class _Hostile:
    """Makes one malformed call after another, in a session that trains."""

    def __init__(self, seed: int, draws_values: bool):
        import test_fuzz_public as fuzz

        self._fuzz, self._random, self._at = fuzz, random.Random(seed), 0
        self._values = self._random if draws_values else None
        self._paths = sorted(p for p in fuzz.SUBJECTS if not p.startswith(_CHANGES))
        self._random.shuffle(self._paths)
        self._train = jobs.declare()
        self._names = set(jobs.state())
        self._step = 0
        self.go_on()

    def state(self) -> str:
        return jobs.digest({name: value for name, value in jobs.state().items() if name in self._names})

    def go_on(self) -> None:
        """A step of the training."""
        print("loss", self._step, self._train(jobs.batch(self._step)).tobytes().hex(), flush=True)
        self._step += 1

    def next(self) -> None:
        """One call."""
        kind = self._random.random()
        if kind < 0.1:
            self._feed()
        elif kind < 0.2:
            self._declare()
        else:
            self._call(inside=kind < 0.6)

    def _value(self, shape: tuple[int, ...]) -> Any:
        return self._fuzz._resolved(self._random.choice(self._fuzz.SAMPLED), self._fuzz.stale_blob(shape))

    def _judge(self, shown: str, call: Callable[[], object], decorated: Any = None) -> None:
        begun = time.monotonic()
        wrong = self._fuzz.outcome(call, decorated, Path(__file__).name)
        print("tried", f"{time.monotonic() - begun:.3f}")
        if wrong:
            print("wrong", f"{shown}: {wrong}".replace("\n", " / "), flush=True)

    def _feed(self) -> None:
        value, right = self._value((8, jobs.WIDTH)), jobs.batch(1)
        args = self._random.choice([(value,), (value, value), (), (right, value), (right[:3],), (right.astype(str),), ([right],)])
        if len(args) == 1 and args[0] is right:
            return
        self._judge(f"train({', '.join(map(self._fuzz._described, args))})", lambda: self._train(*args))

    def _declare(self) -> None:
        import oneflow as flow

        value, place = self._value((2, 3)), self._random.choice(["x", "return", "the result"])

        def nonsense(x: flow.typing.Numpy.Placeholder((2, 3))) -> flow.typing.Numpy:
            return value if place == "the result" else x

        if place != "the result":
            nonsense.__annotations__[place] = value
        shown = f"a job whose {place} is {self._fuzz._described(value)}"
        self._judge(shown, lambda: flow.global_function()(nonsense).graph)

    def _call(self, inside: bool) -> None:
        from table import trace

        path = self._paths[self._at % len(self._paths)]
        self._at += 1
        make, _ = self._fuzz.SUBJECTS[path]
        if path.startswith(_OUTSIDE) or not (inside or path.startswith(("UserOpConfBuilder", "UserOpModuleBuilder"))):
            self._spoil(path, self._fuzz.stale_blob(), make())
            return

        def body(x: Any) -> Any:
            self._spoil(path, x, make())
            return x

        trace(body, [((8, 4), np.float32)])

    def _spoil(self, path: str, blob: Any, owner: Any) -> None:
        fuzz, attribute = self._fuzz, self._fuzz.SUBJECTS[path][1]
        owner = blob if owner is fuzz.BLOB else owner
        target = getattr(owner, attribute) if attribute else owner
        args, kwargs = self._random.choice(list(fuzz.calls(path, fuzz.parameters_of(target), self._values)))
        args = [fuzz._resolved(a, blob) for a in args]
        kwargs = {k: fuzz._resolved(v, blob) for k, v in kwargs.items()}
        decorated = fuzz._resolved(self._random.choice(fuzz.DECORATED), blob)
        shown = ", ".join([*map(fuzz._described, args), *(f"{k}={fuzz._described(v)}" for k, v in kwargs.items())])
        self._judge(f"{path}({shown})", lambda: target(*args, **kwargs), decorated)
        if path.startswith("Result."):  # a callback that raises is reported by another call, without a line
            self._sync()

    @staticmethod
    def _sync() -> None:
        import oneflow as flow

        with contextlib.suppress(flow.errors.CallbackError):
            flow.sync_default_session()


def _session(seed: int, draws_values: bool, count: int, seconds: float) -> None:
    sys.path[:0] = [str(ROOT / "tests" / "ops"), str(ROOT / "tests")]
    os.chdir(tempfile.mkdtemp(prefix="calls-"))
    Path("m").mkdir()
    for name in ("m_py_api.py", "m_cpp_def.cpp", "m_py_kernel.py"):
        (Path("m") / name).write_text("")
    import jax

    hostile, done, end = _Hostile(seed, draws_values), 0, time.monotonic() + seconds
    while done < count and (time.monotonic() < end or not done):
        before = hostile.state()
        with jax.enable_x64(True):  # as the table of ops has it
            for _ in range(_ROUND):
                hostile.next()
                done += 1
                if time.monotonic() > end:
                    break
        if hostile.state() != before:
            print("wrong", f"the variables have changed after call {done}", flush=True)
        hostile.go_on()


def run(budget: Budget) -> Report:
    """Some 1,000 calls in one session; then another child goes on with other random numbers."""
    report, trained = Report(), 0
    with running(reference, False) as child:
        if child.wait(PATIENCE) != 0:
            raise RuntimeError(child.errors)
        expected = {row[0]: row[1] for row in (line.split() for line in child.output.splitlines())}
    number = 0
    while budget.allows(report.runs):
        seed = budget.seed * 1000 + number
        number += 1
        count = min(_PER_CHILD, budget.count - report.runs)
        with running(_session, seed, budget.seed != 0, count, budget.left) as child:
            status = child.wait(max(budget.left, 0.0) + PATIENCE)
            rows = [line.split(maxsplit=1) for line in child.output.splitlines() if line]
            if status != 0:
                report.fail(f"the session of seed {seed} ended with {status}: {child.errors}")
        for row in rows:
            if row[0] == "tried":
                report.runs += 1
                report.took(float(row[1]))
            elif row[0] == "wrong":
                report.fail(row[1])
            elif row[0] == "loss":
                step, loss = row[1].split()
                trained += 1
                if expected[step] != loss:
                    report.fail(f"the loss of step {step} is another than without malformed calls (seed {seed})")
        if status != 0:
            break
    report.notes = f"{number} sessions; {trained} steps between the calls, bit for bit those of an undisturbed training"
    return report
