"""``job.profile``: steps under JAX's profiler, and the table of where their time went."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from .._base import check
from .._base.jax import jax
from .._base.refuse import refuse
from .._reports.profile import JobProfile, Measured, profile_of
from .._reports.trace import by_origin, programs_of, read_events
from ..errors import ArgumentError, ModeError
from ..runtime.gate import NoRoomError, Results, StaleExecutableError
from ..runtime.process import process
from ..runtime.waiting import wait_interruptibly
from .building import BuiltJob

FEEDING, WAITING, GAPS, DELIVERING = "feeding", "waiting for data", "dispatch and gaps", "delivering"
_MOST_STEPS = 100_000
_WARM_UP = 2


def profile(built: BuiltJob, args: Sequence[Any], steps: Any) -> JobProfile:
    """Runs steps one after another, two of them before the trace begins, and puts their time into a table."""
    count, problem = check.integer(steps, low=1, high=_MOST_STEPS)
    if problem:
        refuse(ArgumentError, f"steps {problem}")
    run = _Steps(built, args)
    run.begin()
    for _ in range(_WARM_UP):
        run.step()
    with tempfile.TemporaryDirectory(prefix="oneflow-profile-") as directory:
        with _traced(directory, built.graph.name):
            run.begin()
            for _ in range(count):
                run.step()
        trace = {str(file.relative_to(directory)): file.read_bytes() for file in Path(directory).rglob("*") if file.is_file()}
        executable = run.executable
        plan = built.plan if executable is None else executable.unfused
        names = {node.name for node in plan.order}
        texts = [] if executable is None else [compiled.as_text() for _, compiled in executable.compiled]
        programs = programs_of(texts, names, set(built.graph.variables))
        (space,) = (file for file in trace if file.endswith(".xplane.pb"))
        seconds, counts = by_origin(read_events(str(Path(directory) / space), programs), programs)
    outside = dict(run.seconds)
    outside[GAPS] = max(outside[GAPS] - sum(seconds.values()), 0.0)
    arrangement = None if executable is None else executable.plan.arrangement
    return profile_of(
        plan,
        plan.fused_kernels if executable is None else executable.plan.fused_kernels,
        Measured(count, sum(run.seconds.values()), seconds, counts, outside, trace),
        () if arrangement is None else arrangement.computed_together,
    )


@contextmanager
def _traced(directory: str, job_name: str) -> Iterator[None]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # would slow down what is measured
    try:
        jax.profiler.start_trace(directory, profiler_options=options)
    except RuntimeError as error:
        refuse(ModeError, f"job {job_name!r} cannot be profiled: {str(error).splitlines()[0]}",
               hint="end the profile that is running: jax.profiler.stop_trace()")  # fmt: skip
    try:
        yield
    finally:
        jax.profiler.stop_trace()


class _Steps:
    """Makes calls one after another, as a synchronous call does, and notes what each part took."""

    def __init__(self, built: BuiltJob, args: Sequence[Any]):
        self._built = built
        self._variants = built.variants.with_named_kernels()
        self._args = args
        self.executable: Any = None
        self.seconds: dict[str, float] = {}
        self._end = 0.0  # of the step before

    def begin(self) -> None:
        """Begins to measure."""
        self.seconds = dict.fromkeys((FEEDING, WAITING, GAPS, DELIVERING), 0.0)
        self._end = perf_counter()

    def step(self) -> None:
        """One call."""
        built, times = self._built, [self._end]  # so that all time is counted
        arrays = built.feeds(self._args)
        times.append(perf_counter())
        if built.pipeline is None:
            times.append(times[-1])
            results = self._run(arrays)
        else:
            with built.pipeline.lock:
                taken = built.pipeline.take(arrays)
                times.append(perf_counter())
                computed = self._run(taken.feeds) if built.variants_of_step is not None else ((), (), ())
                built.pipeline.advance(taken)
                results = taken.merge(computed)
        times.append(perf_counter())
        built.delivery.convert(results[0])
        times.append(perf_counter())
        for i, what in enumerate((FEEDING, WAITING, GAPS, DELIVERING)):
            self.seconds[what] += times[i + 1] - times[i]
        self._end = times[-1]

    def _run(self, feeds: tuple[Any, ...]) -> Results:
        while True:
            try:
                self.executable = self._variants.get(feeds)
                results: Results = self.executable.launcher.launch(feeds)
                break
            except NoRoomError as full:
                if full.arrays is not None:
                    wait_interruptibly(full.arrays)
            except StaleExecutableError:
                continue
        jax.block_until_ready(results)
        process.finished(results)
        return results
