"""When another process counts as lost: what was heard, and when, without processes or clocks."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from oneflow.runtime.processes.run import Run
from oneflow.runtime.processes.watch import Watch


def _watch(count: int = 2, patience: float = 40.0) -> Watch:
    return Watch(0, count, lambda rank: f"process {rank}", patience, 0.0)


def _beat(rank: int, calls: int, busy: str = "", recent: Any = (), returned: int = 0, doing: str = "") -> dict[str, Any]:
    beat = {"kind": "beat", "from": rank, "calls": calls, "returned": returned, "busy": busy, "doing": doing}
    return {**beat, "recent": recent}


def _look(watch: Watch, until: float, hears: Any = None, begin: float = 0.0) -> tuple[str, float]:
    """Looks once a second; what it finds, and when."""
    for now in range(int(begin), int(until) + 1):
        if hears is not None:
            watch.hear(hears, now)
        if why := watch.look(now):
            return why, now
    return "", until


def test_silence_counts_while_this_process_waits() -> None:
    watch = _watch()
    assert _look(watch, 100) == ("", 100)  # it computes on its own
    watch.calls.begin("job 'a'", 0.0)
    assert watch.look(101) == "process 1 has not been heard of for 101 s: it was stopped, or its machine is gone"
    watch = _watch()
    watch.calls.begin("job 'a'", 0.0)
    why, when = _look(watch, 100)
    assert "not been heard of for 26 s" in why and when == 26


def test_a_process_that_stands_still_while_this_one_waits_in_a_call() -> None:
    watch = _watch(patience=40)
    watch.calls.begin("job 'a'", 0.0)
    why, when = _look(watch, 100, _beat(1, 0))
    assert why == "process 1 has stood still for 41 s after 0 calls, and this one waits for it in call 1, job 'a'" and when == 41
    watch = _watch(patience=40)
    watch.calls.begin("job 'a'", 0.0)
    assert _look(watch, 1000, _beat(1, 1)) == ("", 1000)  # it is in the same call: a step may take as long as it likes
    watch = _watch(patience=40)
    watch.calls.begin("job 'a'", 0.0)
    assert _look(watch, 3000, _beat(1, 0, "compiling")) == ("", 3000)
    why, when = _look(watch, 4000, _beat(1, 0, "compiling"), 3001)
    assert "stood still" in why and when == 3601


def test_a_process_that_stands_still_while_this_one_gathers() -> None:
    watch = _watch(patience=5)
    watch.gathers, watch.gather_tag = 1, "a save"
    why, when = _look(watch, 100, _beat(1, 0))
    assert "stood still" in why and "waits for it in a save" in why and when == 6
    watch.hear({"kind": "gather", "from": 1, "number": 1, "tag": "a save", "value": None}, when)
    assert watch.look(when) == ""


def test_processes_that_wait_for_each_other_in_different_places() -> None:
    watch = _watch(patience=40)
    watch.calls.begin("job 'a'", 0.0)
    watch.hear({"kind": "gather", "from": 1, "number": 1, "tag": "a save", "value": None}, 0.0)
    why, _ = _look(watch, 100, _beat(1, 0))
    assert "after 0 calls (it waits for this one in a save), and this one waits for it in call 1, job 'a'" in why


@pytest.mark.parametrize("paused", [26.0, 1000.0])
def test_a_pause_of_this_process_is_nobodys_silence(paused: float) -> None:
    """Stopped and continued, it finds what the others said meanwhile still unread."""
    watch = _watch()
    watch.calls.begin("job 'a'", 0.0)
    for now in range(10):
        watch.hear(_beat(1, 0), now)
        assert watch.look(now) == ""
    assert watch.look(10 + paused) == ""
    assert _look(watch, 30 + paused, begin=11 + paused) == ("", 30 + paused)
    assert "not been heard of" in _look(watch, 50 + paused, begin=31 + paused)[0]


def test_ends() -> None:
    for message, text in [
        ({"kind": "gone", "from": 1}, "process 1 is gone without a word: it was killed, or it crashed"),
        (
            {"kind": "end", "from": 1, "how": "failed", "why": "ValueError: x\ud800", "calls": 2},
            r"ended with an error: ValueError: x\ud800",
        ),
        (
            {"kind": "end", "from": 1, "how": "lost", "why": "process 2 is gone", "calls": 2},
            "process 1 gave up: process 2 is gone",
        ),
    ]:
        watch = _watch(3)
        assert watch.hear(message, 1.0) == "" and text in watch.look(1.0)
    watch = _watch()
    watch.hear({"kind": "end", "from": 1, "how": "finished", "why": "", "calls": 1}, 1.0)
    watch.calls.begin("job 'a'", 0.0)
    assert watch.look(1.0) == ""  # the last call is still running
    watch.calls.begin("job 'a'", 0.0)
    assert watch.look(1.0) == "the program of process 1 ended after 1 calls, and this one waits for it in call 2, job 'a'"


def test_programs_that_differ() -> None:
    watch = _watch()
    watch.calls.begin("job 'a'", 0.0)
    assert watch.hear(_beat(1, 1, recent=[[1, "job 'a'"]]), 1.0) == ""
    why = watch.hear(_beat(1, 2, recent=[[1, "job 'b'"], [2, "job 'c'"]]), 1.0)
    assert why.startswith("the programs differ: call 1 is job 'a' here and job 'b' in process 1;")


def test_only_the_last_calls_are_kept() -> None:
    watch = _watch()
    for number in range(1000):
        watch.calls.begin(f"job {number} " + "x" * 10_000, 0.0)
    untold = watch.calls.take_untold()
    assert len(untold) == 256 and untold[-1][0] == 1000 and len(untold[-1][1]) == 500
    assert watch.calls.take_untold() == [] and watch.calls.name(744) is None and watch.calls.name(745) is not None


def test_the_end_of_the_program() -> None:
    watch = _watch(3, patience=5)
    finished = {"kind": "end", "from": 1, "how": "finished", "why": "", "calls": 0}
    watch.hear(finished, 1.0)
    watch.hear({**finished, "from": 2}, 1.0)
    assert not watch.all_have_left(2.0)
    watch.hear({"kind": "gone", "from": 1}, 2.0)
    assert not watch.all_have_left(2.0) and watch.all_have_left(7.0)  # the machine of process 2 is gone, its program was over
    watch = _watch(2, patience=5)
    assert watch.stands_still(0.0, 4.0) == ""
    assert watch.stands_still(0.0, 6.0) == "process 1 has stood still for 6 s, and this one has come to its end"
    watch.hear(_beat(1, 0, "a save"), 6.0)
    assert watch.stands_still(0.0, 100.0) == ""


# --- a step that all are in


def _in_step(calls: int = 4, seconds: float = 1.0) -> tuple[Watch, float]:
    """A watch of three processes that are in their call ``calls``; earlier ones took that many seconds."""
    watch, now = Watch(0, 3, lambda rank: f"process {rank}", 40.0, 0.0, step_patience=30.0), 0.0
    for _ in range(calls - 1):
        watch.calls.begin("job 'a'", now)
        now += seconds
        watch.calls.end(now)
    watch.waiting_since = now
    watch.calls.begin("job 'a'", now)
    for rank in range(3):
        watch.hear(_beat(rank, calls, returned=calls - 1, doing=f"waits at train.py:{rank}"), now)
    return watch, now


def test_a_step_that_all_are_in_for_too_long_is_told_with_what_each_does() -> None:
    watch, begun = _in_step()
    assert watch.long_step(begun + 30.0) == ""
    assert watch.long_step(begun + 31.0).splitlines() == [
        "all processes have been in call 4, job 'a', for 31 s, which took 1 s before",
        "  process 0  waits at train.py:0",
        "  process 1  waits at train.py:1",
        "  process 2  waits at train.py:2",
    ]
    watch.calls.end(begun + 32.0)
    assert watch.long_step(begun + 1000.0) == ""


def test_twenty_times_the_median_of_earlier_steps_is_allowed() -> None:
    watch, begun = _in_step(calls=10, seconds=5.0)
    assert watch.long_step(begun + 99.0) == "" and watch.long_step(begun + 101.0) != ""
    watch, begun = _in_step(calls=1)
    assert watch.long_step(begun + 31.0).splitlines()[0] == "all processes have been in call 1, job 'a', for 31 s"


@pytest.mark.parametrize("other", [
    {"calls": 3, "returned": 3}, {"calls": 4, "returned": 4}, {"calls": 5, "returned": 3},
    {"calls": 4, "returned": 3, "busy": "a save"},
])  # fmt: skip
def test_where_one_is_elsewhere_no_step_hangs(other: dict[str, Any]) -> None:
    watch, begun = _in_step()
    watch.hear(_beat(2, **other), begun)
    assert watch.long_step(begun + 31.0) == ""


def test_a_step_may_hang_while_programs_that_had_no_part_in_it_have_ended() -> None:
    watch, begun = _in_step()
    watch.hear({"kind": "end", "from": 2, "how": "finished", "why": "", "calls": 4}, begun)
    assert watch.long_step(begun + 30.0) == ""
    assert watch.long_step(begun + 31.0).splitlines()[2:] == [
        "  process 1  waits at train.py:1",
        "  process 2  has come to the end of its program",
    ]


def test_progress_of_another_process_begins_the_time_anew() -> None:
    watch, begun = _in_step()
    watch.hear(_beat(1, 4, busy="compiling", returned=3), begun + 20.0)
    watch.hear(_beat(1, 4, returned=3), begun + 25.0)
    assert watch.long_step(begun + 54.0) == "" and watch.long_step(begun + 56.0) != ""


@pytest.mark.parametrize("told", [True, False])
def test_a_process_that_is_printing_its_error_is_not_ended_meanwhile(told: bool) -> None:
    run, left = Run.__new__(Run), []
    run._changed, run._watch = threading.Condition(), _watch()
    run._watch.calls.begin("job 'a'", 0.0)
    run.lost, run._lost_at, run._told = "process 1 is gone", time.monotonic(), told
    run._ended = run._is_starting = run._announced = False
    run._leave = lambda: left.append(1)  # type: ignore[method-assign]
    run._look()
    assert bool(left) != told
