"""The gate of calls with collectives: its invariant, for any order of calls and of their ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneflow.runtime.gate import Gate, NoRoomError


class Array:
    """What a gate asks of a device array."""

    def __init__(self) -> None:
        self.ready = False

    def is_ready(self) -> bool:
        return self.ready


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from(["call", "end", "seen"]), st.integers(0, 9)), max_size=60))
def test_at_most_limit_calls_are_in_flight_and_nothing_keeps_a_place(limit: int, steps: list[tuple[str, int]]) -> None:
    gate, running, dispatched = Gate(limit), [], []
    for what, which in steps:
        if what == "call":
            try:
                gate.check_room()
            except NoRoomError as full:
                assert full.arrays and not all(a.is_ready() for a in full.arrays)  # there is something to wait for
                assert len(gate.in_flight) == limit
                continue
            results = ((Array(),), (), (Array(),))
            gate.note(results)
            running.append(results)
            dispatched.append(results)
        elif what == "end" and running:
            for array in (*(results := running.pop(which % len(running)))[0], *results[2]):
                array.ready = True
        elif what == "seen" and dispatched:
            results = dispatched[which % len(dispatched)]
            if results not in running:
                gate.leave(results)
        assert len(gate.in_flight) <= limit
        assert all(any(entry is results for entry in gate.in_flight) for results in running)
    for results in running:
        for array in (*results[0], *results[2]):
            array.ready = True
    gate.check_room()  # whatever happened before, calls that have ended give their places back
    assert not gate.in_flight


def test_full_gates_say_what_to_wait_for() -> None:
    gate, first = Gate(1), ((Array(),), (), ())
    gate.check_room()
    gate.note(first)
    with pytest.raises(NoRoomError) as caught:
        gate.check_room()
    assert caught.value.arrays == [first[0][0]]
