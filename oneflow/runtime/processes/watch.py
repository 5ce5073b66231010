"""The known state of the other processes of a run, and when one of them counts as lost. No thread, no socket."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from .messages import Message

HEARTBEAT_SECONDS = 1.0
SILENT_SECONDS = 25.0  # without a heartbeat; longer than anything that keeps Python's lock
BUSY_SECONDS = 3600.0  # of compiling, or of writing a checkpoint
_PAUSED_SECONDS = 3.0  # between two looks: this process itself was stopped
_KEPT_CALLS = 256
_KEPT_TIMES = 64  # of the steps of one job
_KEPT_JOBS = 256
_MEDIANS = 20  # how many times the median of earlier steps one may take
_LONGEST_CALL = 500  # characters of a call's name


@dataclass(slots=True)
class Peer:
    """The known state of one process. Times are those of this process's clock."""

    heard: float
    moved: float  # when it last made visible progress
    calls: int = 0
    returned: int = 0
    gather_tag: str = ""  # of its last one
    doing: str = ""  # where its threads are, once a step takes long
    gathers: int = 0
    busy: str = ""
    end: str = ""  # one of messages.ENDS, or "gone": its connection closed without a word
    why: str = ""
    left: bool = False  # its connection is closed


class Calls:
    """The calls of this process: how many were begun and have returned, and what the last ones were."""

    def __init__(self) -> None:
        self.begun = 0
        self.returned = 0
        self._in_flight: deque[tuple[str, float]] = deque()  # name, and when it was begun
        self._last_end = 0.0
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._names: OrderedDict[int, str] = OrderedDict()
        self._untold: OrderedDict[int, str] = OrderedDict()

    def begin(self, name: str, now: float) -> None:
        """Notes that a call of the job has begun."""
        self.begun += 1
        self._in_flight.append((name, now))
        for kept in (self._names, self._untold):
            kept[self.begun] = name[:_LONGEST_CALL]
            if len(kept) > _KEPT_CALLS:
                kept.popitem(last=False)

    def end(self, now: float) -> None:
        """Notes that the oldest call has returned, and its time."""
        if not self._in_flight:
            return
        self.returned += 1
        name, begun = self._in_flight.popleft()
        self._times.setdefault(name, deque(maxlen=_KEPT_TIMES)).append(now - max(begun, self._last_end))
        if len(self._times) > _KEPT_JOBS:
            self._times.popitem(last=False)
        self._last_end = now

    @property
    def oldest(self) -> str:
        """The name of the call whose results are waited for."""
        return self._in_flight[0][0]

    def usual_seconds(self) -> float:
        """The median of what earlier calls of the same job took; 0 where there were none."""
        import statistics  # only a run of several processes needs it

        times = self._times.get(self.oldest)
        return statistics.median(times) if times else 0.0

    @property
    def is_inside(self) -> bool:
        """Whether a call has begun and not returned."""
        return self.begun > self.returned

    def name(self, number: int) -> str | None:
        """The job of the call of that number; None where it is no longer kept."""
        return self._names.get(number)

    def take_untold(self) -> list[tuple[int, str]]:
        """The calls since the last heartbeat."""
        untold = list(self._untold.items())
        self._untold.clear()
        return untold


class Watch:
    """Judges the other processes. The caller holds a lock."""

    def __init__(
        self, rank: int, count: int, name_of: Callable[[int], str], patience: float, now: float, step_patience: float = 300.0
    ):
        self._rank = rank
        self._name_of = name_of
        self._patience = patience
        self._step_patience = step_patience
        self._looked = now
        self.peers = [Peer(now, now) for _ in range(count)]
        self.calls = Calls()
        self.gathers = 0
        self.gather_tag = ""  # of the gather that this process waits in
        self.waiting_since = now

    @property
    def others(self) -> list[Peer]:
        """All processes but this one."""
        return [peer for rank, peer in enumerate(self.peers) if rank != self._rank]

    # --- what they say

    def hear(self, message: Message, now: float) -> str:
        """Takes a message in. Returns why the run cannot go on, where the message shows it; else an empty string."""
        peer = self.peers[message["from"]]
        if message["kind"] == "gone":
            peer.end, peer.left = peer.end or "gone", True
            return ""
        peer.heard = now
        if message["kind"] == "gather":
            peer.gathers, peer.moved = message["number"], now
            peer.gather_tag = _printable(message["tag"])
        elif message["kind"] == "end":
            peer.end, peer.why, peer.calls = message["how"], _printable(message["why"]), message["calls"]
        elif message["kind"] == "beat":
            progress = message["calls"], message["returned"], message["busy"]
            if progress != (peer.calls, peer.returned, peer.busy):
                peer.moved = now
            peer.calls, peer.returned, peer.busy = progress
            peer.doing = _printable(message["doing"])
            return self._difference(message["from"], message["recent"])
        return ""

    def hub_is_gone(self) -> bool:
        """Whether the first process, which had the hub, ended before its time."""
        first = self.peers[0]
        first.end, first.left = first.end or "gone", True
        return first.end != "finished"

    def _difference(self, rank: int, recent: list[tuple[int, str]]) -> str:
        for number, call in recent:
            own = self.calls.name(number)
            if own is not None and own != call:
                return (
                    f"the programs differ: call {number} is {own} here and {_printable(call)} in {self._name_of(rank)}; "
                    f"every process must make the same calls in the same order"
                )
        return ""

    # --- what that means

    def look(self, now: float) -> str:
        """Why this process cannot go on; an empty string where it can."""
        if (paused := now - self._looked) > _PAUSED_SECONDS:  # stopped, or kept from running: what they said is still unread
            for peer in self.peers:
                peer.heard += paused
                peer.moved += paused
            self.waiting_since += paused
        self._looked = now
        for rank, peer in enumerate(self.peers):
            if rank != self._rank and (why := self._trouble(self._name_of(rank), peer, now)):
                return why
        return ""

    def _trouble(self, name: str, peer: Peer, now: float) -> str:
        if peer.end == "gone":
            return f"{name} is gone without a word: it was killed, or it crashed"
        if peer.end == "failed":
            return f"{name} ended with an error: {peer.why}"
        if peer.end == "lost":
            return f"{name} gave up: {peer.why}"
        here = self.waits_for()
        if not here:
            return ""
        behind = peer.calls < self.calls.begun or (bool(self.gather_tag) and peer.gathers < self.gathers)
        if peer.end == "finished":
            return f"the program of {name} ended after {peer.calls} calls, and this one {here}" if behind else ""
        if (silent := now - peer.heard) > SILENT_SECONDS:
            return f"{name} has not been heard of for {silent:.0f} s: it was stopped, or its machine is gone"
        still = now - max(peer.moved, self.waiting_since)
        if behind and still > (BUSY_SECONDS if peer.busy else self._patience):
            other = f" (it waits for this one in {peer.gather_tag})" if peer.gathers > self.gathers else ""
            return f"{name} has stood still for {now - peer.moved:.0f} s after {peer.calls} calls{other}, and this one {here}"
        return ""

    def long_step(self, now: float) -> str:
        """What each process does in a step that all are in, and that takes too long; an empty string where none does.

        ``look`` cannot call that the fault of one of them: none is behind the others.
        """
        calls = self.calls
        if not calls.is_inside or self.gather_tag:
            return ""
        others = [peer for peer in self.others if peer.end != "finished"]  # its program had no part in this call, and has ended
        if any(p.end or p.busy or (p.calls, p.returned) != (calls.begun, calls.returned) for p in others):
            return ""
        usual = calls.usual_seconds()
        still = now - max([self.waiting_since, *(peer.moved for peer in others)])
        if still <= max(self._step_patience, _MEDIANS * usual):
            return ""
        before = f", which took {usual:.3g} s before" if usual else ""
        number = calls.returned + 1
        lines = [f"all processes have been in call {number}, {calls.oldest}, for {still:.0f} s{before}"]
        for rank, peer in enumerate(self.peers):
            doing = "has come to the end of its program" if peer.end else peer.doing or "has not said what it does"
            lines.append(f"  {self._name_of(rank):<11}{doing}")
        return "\n".join(lines)

    def waits_for(self) -> str:
        """The operation that this process waits for; empty while it computes on its own."""
        if self.gather_tag:
            return f"waits for it in {self.gather_tag}"
        if self.calls.is_inside:
            return f"waits for it in call {self.calls.begun}, {self.calls.name(self.calls.begun)}"
        return ""

    # --- at the end of the program

    def all_have_left(self, now: float) -> bool:
        """Whether the programs of all others have ended, and their connections, too, as far as they still can."""
        return all(p.end == "finished" and (p.left or now - p.heard > self._patience) for p in self.others)

    def stands_still(self, since: float, now: float) -> str:
        """The process that neither ends nor makes progress, in words; an empty string if there is none."""
        for rank, peer in enumerate(self.peers):
            if rank != self._rank and not peer.end and not peer.busy and now - max(since, peer.moved) > self._patience:
                return f"{self._name_of(rank)} has stood still for {now - peer.moved:.0f} s, and this one has come to its end"
        return ""


def _printable(text: str) -> str:
    """The text with escapes that every terminal and file takes: file names may hold bytes that are not text."""
    return text.encode("utf-8", "backslashreplace").decode()
