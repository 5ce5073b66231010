"""Threads for work that does not keep Python's lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from oneflow._base import threads
from oneflow._base.threads import AutoResetEvent, end_if_abandoned, on_threads

PROGRAM = """
import os, random, signal, threading, time
from oneflow._base.threads import on_threads

for _ in range(1000):
    timer = threading.Timer(0.0008 * random.random(), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        assert on_threads(abs, range(8)) == list(range(8))
        timer.join()
        time.sleep(0.0005)
    except KeyboardInterrupt:
        pass
for _ in range(1000):  # a thread may be at its very beginning or end
    left = [t for t in threading.enumerate() if t.name == "oneflow-helper"]
    if not left:
        break
    time.sleep(0.01)
assert not left, left
"""


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "most_threads", lambda: 4)


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill does not interrupt the main thread there")
@pytest.mark.timeout(120)
def test_an_interrupt_while_threads_start_hangs_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert "Error" not in ended.stderr, ended.stderr


@pytest.mark.usefixtures("four")
def test_four_threads_work_at_the_same_time() -> None:
    together = threading.Barrier(4)

    def meet(number: int) -> tuple[int, int]:
        together.wait(30)
        return number, threading.get_ident()

    found = on_threads(meet, range(4))
    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert len({ident for _, ident in found}) == 4
    assert threading.get_ident() in {ident for _, ident in found}


@pytest.mark.usefixtures("four")
def test_the_error_of_the_first_item_is_raised_and_later_ones_are_not_begun() -> None:
    begun: set[int] = set()
    all_there = threading.Barrier(4)

    def fail(number: int) -> None:
        begun.add(number)
        all_there.wait(30)
        time.sleep(0.01 * (4 - number))  # the first fails last
        raise ValueError(number)

    with pytest.raises(ValueError, match="^0$"):
        on_threads(fail, range(40))
    assert begun == {0, 1, 2, 3}


@pytest.mark.usefixtures("four")
def test_an_interrupt_goes_before_an_error_and_waits_for_the_others() -> None:
    running = threading.Barrier(4)
    ended: list[int] = []
    caller = threading.get_ident()

    def work(number: int) -> None:
        running.wait(30)
        if threading.get_ident() == caller:
            raise KeyboardInterrupt
        time.sleep(0.05)
        ended.append(number)
        raise ValueError(number)

    with pytest.raises(KeyboardInterrupt):
        on_threads(work, range(9))
    assert len(ended) == 3


@pytest.mark.usefixtures("four")
def test_an_interrupt_while_the_caller_waits_leaves_none_running() -> None:
    caller = threading.get_ident()

    def work(_: int) -> None:
        if threading.get_ident() != caller:
            time.sleep(1.0)  # the caller has nothing more to do

    interrupt = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        on_threads(work, range(4))
    interrupt.join()
    assert not [thread for thread in threading.enumerate() if thread.name == "oneflow-helper"]


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("caller_waits", [True, False])
def test_long_work_ends_after_an_interrupt(caller_waits: bool) -> None:
    caller = threading.get_ident()

    def work(_: int) -> None:
        end = time.monotonic() + (0.1 if caller_waits and threading.get_ident() == caller else 30)
        while time.monotonic() < end:
            end_if_abandoned()
            time.sleep(0.01)

    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        on_threads(work, range(4))
    assert time.monotonic() - begin < 20
    interrupt.join()
    end_if_abandoned()  # outside of such work: nothing


@pytest.mark.usefixtures("four")
def test_an_error_does_not_end_work_on_items_before() -> None:
    together = threading.Barrier(2)

    def work(number: int) -> None:
        together.wait(30)
        if number == 1:
            raise KeyError(number)
        time.sleep(0.2)
        end_if_abandoned()
        raise ValueError(number)

    with pytest.raises(ValueError, match="^0$"):
        on_threads(work, range(2))


@pytest.mark.usefixtures("four")
def test_threads_start_no_further_threads() -> None:
    def inner(_: int) -> set[int]:
        return set(on_threads(lambda _: threading.get_ident(), range(8)))

    assert all(len(idents) == 1 for idents in on_threads(inner, range(8)))
    assert len(set(on_threads(lambda _: (time.sleep(0.05), threading.get_ident())[1], range(4)))) > 1  # this one may again


@pytest.mark.usefixtures("four")
def test_without_further_threads_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert on_threads(abs, range(-3, 3)) == [3, 2, 1, 0, 1, 2]


def test_an_event_that_is_set_at_any_moment_ends_one_wait():
    event, began = AutoResetEvent(), time.monotonic()
    event.set()
    event.set()
    event.wait()
    event.wait(0.2)  # nothing is left of the second
    assert time.monotonic() - began > 0.19

    there_and_back = 20_000
    back = AutoResetEvent()

    def answer() -> None:
        for _ in range(there_and_back):
            event.wait()
            back.set()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    for _ in range(there_and_back):
        event.set()
        back.wait()
    thread.join(60)
    assert not thread.is_alive()


def test_a_wait_whose_time_passes_at_any_moment_ends():
    """Of very short waits of SimpleQueue about one in 4,000 never ended; the thread of callbacks was found in one."""
    event = AutoResetEvent()

    def work() -> None:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            for timeout in (0, 1e-9, 1e-7, 1e-6, 2e-4):
                event.set()
                event.wait()
                event.wait(timeout)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
