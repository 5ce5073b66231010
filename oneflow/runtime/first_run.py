"""The first run of a step: it finds out whether there is memory enough, and changes nothing where it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._base.jax import jax
from ..compiler.plan import Plan
from ..errors import CompileError, CustomOpError, ExecutionError, NonFiniteError, ProcessError
from ..graph import callback
from ..graph.graph import Graph
from . import processes
from .debugging import NAMES, nan_among_causes
from .gate import Results
from .step_state import StepState


def run(
    step: Callable[[Sequence[Any]], Results],
    state: StepState,
    plan: Plan,
    feeds: Sequence[Any],
    *,
    finds_nonfinite: bool,
    is_delivered_later: bool,
) -> Results:
    """Runs the ``step`` of a plan and waits for it. Called with the dispatch lock held.

    Args:
      finds_nonfinite: look for NaNs and infinities in what it made.
      is_delivered_later: the call is over when its results are delivered, not now.
    Raises:
      ExecutionError: it failed on the device. As all other errors, after the state was put back: a step that fails has what was
        donated to it destroyed.
    """
    restore = [state.restoring(cell) for cell in state.written]
    callback.take()
    try:
        with processes.quiet(), processes.explained():
            results = step(feeds)
            jax.block_until_ready((results, state.values(state.written)))
        problem = callback.take()
        if problem is not None:
            raise _of_job(plan.graph, *problem)
        if finds_nonfinite:
            _look_for_nonfinite(state, plan, results, [value() for value in restore], feeds)
        if not is_delivered_later:
            processes.returned()
    except Exception as error:
        processes.returned()
        for cell, value in zip(state.written, restore, strict=True):
            cell.value = value()
        is_ours = isinstance(error, (CustomOpError, NonFiniteError, ProcessError))
        raise (error if is_ours else _failed(plan.graph, error)) from (error.__cause__ or error)
    return results


def _of_job(graph: Graph, error: Exception, code: Any) -> Exception:
    """An error of Python code inside a step, with the ops of the job that have it as their definition or gradient."""
    nodes = [node for node in graph.nodes if code is node.op.define or code is node.op.grad]
    if not nodes:
        return error
    rows = [str(error), f"  the job    {graph.name!r}"]
    which = "the op   " if len(nodes) == 1 else "one of   "
    for node in nodes:
        rows.append(f"  {which}  {node.name!r} of {', '.join(blob.describe() for blob in node.inputs) or 'no inputs'}")
        rows.append(f"  your line  {node.source}   {node.source.text}")
    made = type(error)("\n".join(rows))
    made.__cause__ = error.__cause__
    return made


def _look_for_nonfinite(state: StepState, plan: Plan, results: Results, before: Sequence[Any], feeds: Sequence[Any]) -> None:
    from . import nonfinite  # few programs ask for it

    if nonfinite.is_finite((state.values(state.written), results)):
        return
    found, is_finite = nonfinite.find(plan, state.storages, before, state.read_values(), feeds)
    if found is not None and found.reaches_results:
        raise NonFiniteError(f"{found}\n  its state  as it was before this call", found)
    if is_finite:
        graph = plan.graph
        raise NonFiniteError(
            f"a step of job {graph.name!r} computed NaNs or infinities, which it does not when it is run op by op: numbers "
            f"near the limits of a dtype are rounded otherwise in the compiled step\n"
            f"{row_of(graph)}\n"
            f"  its state  as it was before this call\n"
            f"  try        scale the loss or the inputs down, or compute in float32 or float64"
        )


def _failed(graph: Graph, error: Exception) -> ExecutionError:
    if (found := nan_among_causes(error)) is not None:
        return ExecutionError(_nan_text(graph, error, found))
    first, *rest = str(error).splitlines() or [type(error).__name__]
    rows = [f"a step of job {graph.name!r} failed on the device: {first[:500]}"]
    if "Traceback (most recent call last)" in first:  # of Python that an op over JAX arrays calls back
        rows[0] = f"a step of job {graph.name!r} failed: Python that it calls raised {_raised(rest)}"
    rows += [row_of(graph), "  its state  as it was before this call"]
    if "RESOURCE_EXHAUSTED" in first:
        rows.append("  try        smaller shapes; job.summary() shows the working memory that the compiled job needs")
    return ExecutionError("\n".join(rows))


def _raised(traceback: Sequence[str]) -> str:
    """The error at the end of a traceback's text, which has no lines of source, and where it was raised."""
    lines = [line.strip() for line in traceback]
    last = max((i for i, line in enumerate(lines) if line.startswith('File "')), default=-1)
    error = " ".join(lines[last + 1 :])[:300]
    return f"{error} ({lines[last]})" if last >= 0 else error


def _nan_text(graph: Graph, error: Exception, found: BaseException) -> str:
    if isinstance(error, CompileError):  # JAX has run the step once more, op by op, and an op was found
        first, *rest = str(error).replace("cannot be compiled", f"has a result that {NAMES} stops at").splitlines()
    else:
        first = f"a step of job {graph.name!r} computed what {NAMES} stops at: {' '.join(map(str, found.args))}"
        rest = [row_of(graph)]
    return "\n".join([first, *rest, "  its state  as it was before this call"])


def row_of(graph: Graph) -> str:
    """The row of an error that says where the job is."""
    return f"  the job    {graph.source}   {graph.source.text if graph.source else ''}"
