"""This process's part in a run of several: it reports to the others what it does, and ends when one of them is lost.

Every process runs the whole script. The watch knows what JAX cannot: in which call each process is. A process that waits in a
collective while another has ended, stands still, or is in another call would wait for ever.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ..._base import jax_versions
from ..._base.source import is_library
from ...config._environment import Environment
from ...errors import ProcessError
from . import addresses, jax_runtime
from .hub import Hub
from .member import Member, MissingError
from .messages import Message
from .rendezvous import Place
from .watch import HEARTBEAT_SECONDS, Watch

_BETWEEN_BEATS = 0.2  # seconds, where work begins and ends often
_ANNOUNCE_SECONDS = 0.5  # within which the main thread usually raises by itself
_GRACE_SECONDS = 8.0  # for a process that computes on its own while another is lost, to come to its next call
_FLUSH_SECONDS = 1.0
_LONG_STEP_SECONDS = 2.0  # from then on a process tells the others where its threads are
_MOST_THREADS = 8  # that it tells of
_LAST_SECONDS = 10.0  # that the first process waits for the others to have read why the run ends


class Run:
    """Joins the run when it is made; from then on its threads watch."""

    def __init__(self, place: Place):
        self.place = place
        self.lost = ""  # why this process cannot go on
        self._lost_at = 0.0
        self._told = False  # the main thread has raised it
        self._announced = False
        self._ended = False
        self._process = os.getpid()
        self._changed = threading.Condition()  # guards what is below, and is notified when something was heard
        self._watch = Watch(
            place.rank,
            place.count,
            place.name_of,
            float(Environment.stall_timeout),
            time.monotonic(),
            float(Environment.step_timeout),
        )
        self._gathered: dict[int, dict[int, tuple[str, Any]]] = {}
        self._busy: list[str] = []
        self._sending = threading.Lock()  # heartbeats go out in the order in which they were made
        self._last_beat = 0.0
        self._look_now = threading.Event()
        self._told_step = -1  # the call that takes too long and has been told of
        self._is_starting = True  # JAX waits for the others, and cannot be interrupted
        self._bound: list[str] = []  # where JAX's coordinator listens, in the first process
        self._member = self._join()
        self._member.listen(self._receive, self._hub_is_gone)
        threading.Thread(target=self._watch_others, name="oneflow-watch", daemon=True).start()
        self._start_jax()
        self._is_starting = False
        jax_versions.postpone_exit_hook()  # it waits for the others without looking at them

    # --- the beginning

    def _join(self) -> Member:
        place, patience = self.place, float(Environment.start_timeout)

        def choose_coordinator() -> str:
            port = Environment.data_port if Environment.data_port > 0 else addresses.free_port(place.bound_host)
            self._bound.append(addresses.join(place.bound_host, port))
            return addresses.join(place.host, place.data_port or port)

        if place.rank == 0:
            assert place.server is not None
            Hub(place.server, place.count, place.key, choose_coordinator, patience).start()
        try:
            return Member(place.own_host, place.own_port, place.rank, place.count, place.key, patience)
        except MissingError as error:
            missing = ", ".join(place.name_of(rank) for rank in error.ranks)
            strangers = f"; {error.strangers} connections of others were turned away" if error.strangers else ""
            raise ProcessError(
                f"{len(error.ranks)} of the {place.count} processes of this run did not come within {patience:g} s: "
                f"{missing}{strangers}\n"
                f"  try        start the same script on every machine; flow.env.start_timeout(seconds) waits longer"
            ) from None
        finally:
            if place.rank > 0 and place.server is not None:
                place.server.close()  # all have found their addresses, or the run does not begin

    def _start_jax(self) -> None:
        place, coordinator, bind_to, interface = self.place, self._member.coordinator, None, self._member.own_host
        if self._bound:
            bind_to = self._bound[0]
        # the first machine may not reach itself by the address that the others use
        if self._bound or place.beside:
            coordinator = addresses.join(place.own_host, addresses.split(bind_to or coordinator)[1] or 0)
            if place.listens_everywhere:
                interface = next(iter(addresses.own_addresses()), "")
        try:
            jax_runtime.initialize(place, coordinator, bind_to, interface)
        except ProcessError as error:
            self._ended = True
            self._say_end("failed", str(error).splitlines()[0])
            self._wait_for_readers()
            raise

    # --- what the others say

    def _receive(self, message: Message) -> None:
        with self._changed:
            if why := self._watch.hear(message, time.monotonic()):
                self._lose(why)
            if message["kind"] == "gather":
                self._gathered.setdefault(message["number"], {})[message["from"]] = message["tag"], message["value"]
            self._changed.notify_all()
        if message["kind"] in ("gone", "end") or why:
            self._look_now.set()

    def _hub_is_gone(self) -> None:
        with self._changed:
            if self._ended or not self._watch.hub_is_gone():
                return
            if not self.lost:
                self._lose(self._watch.look(time.monotonic()) or "the connections of the run have ended")
        # JAX's coordinator is gone, too, and JAX aborts a process that has lost it, within milliseconds and without a reason
        self._leave()

    # --- what this one says

    def entered(self, call: str) -> None:
        """A call is about to be handed to the devices. Raises ProcessError where a process was lost."""
        self._raise_if_lost()
        with self._changed:
            now = time.monotonic()
            if not self._watch.calls.is_inside:
                self._watch.waiting_since = now
            self._watch.calls.begin(call, now)

    def returned(self) -> None:
        """The results of a call are there."""
        with self._changed:
            self._watch.waiting_since = now = time.monotonic()
            self._watch.calls.end(now)

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Inside, this process makes progress that nobody sees: it compiles, or writes a file."""
        with self._changed:
            self._busy.append(what)
        self._beat(_BETWEEN_BEATS)
        try:
            yield
        finally:
            with self._changed:
                self._busy.remove(what)
            self._beat(_BETWEEN_BEATS)

    def gather(self, tag: str, value: Any) -> list[Any]:
        """The JSON-able values of all processes, in their order. All must call it, with the same tag.

        Raises:
          ProcessError: a process was lost, or stands still elsewhere.
        """
        self._raise_if_lost()
        with self._changed:
            watch = self._watch
            watch.gathers += 1
            number = watch.gathers
            watch.gather_tag, watch.waiting_since = tag, time.monotonic()
        self._member.send("gather", number=number, tag=tag, value=value)
        with self._changed:
            while True:
                found = self._gathered.get(number, {})
                for rank, (theirs, _) in found.items():
                    if theirs != tag:
                        self._lose(f"the programs differ: this one is at {tag}, {self.place.name_of(rank)} at {theirs}")
                self._raise_if_lost()
                if len(found) == self.place.count:
                    break
                self._changed.wait(0.5)
            watch.gather_tag = ""
            del self._gathered[number]
        return [found[rank][1] for rank in range(self.place.count)]

    def _beat(self, unless_within: float = 0.0) -> None:
        """Reports to the others what this process does, unless that was done shortly before: the watch reports soon."""
        with self._sending:
            now = time.monotonic()
            if now - self._last_beat < unless_within:
                return
            self._last_beat = now
            with self._changed:
                calls = self._watch.calls
                waits = calls.is_inside and now - self._watch.waiting_since > _LONG_STEP_SECONDS
                beat = {
                    "calls": calls.begun, "returned": calls.returned, "busy": self._busy[-1] if self._busy else "",
                    "doing": _where_threads_are() if waits else "", "recent": calls.take_untold(),
                }  # fmt: skip
            self._member.send("beat", **beat)

    def _say_end(self, how: str, why: str) -> None:
        self._member.send("end", how=how, why=why, calls=self._watch.calls.begun)
        self._member.flush(_FLUSH_SECONDS)

    # --- the watch

    def _watch_others(self) -> None:
        try:
            while not self._ended:
                self._beat()
                self._look()
                self._look_now.wait(HEARTBEAT_SECONDS if not self.lost else 0.1)
                self._look_now.clear()
        except Exception as error:  # nobody would notice any more where another process is lost
            traceback.print_exc()
            with self._changed:
                self._lose(f"its watch failed: {type(error).__name__}: {error}")
            self._leave()

    def _look(self) -> None:
        with self._changed:
            if not self.lost and (why := self._watch.look(time.monotonic())):
                self._lose(why)
            self._tell_of_long_step()
            self._changed.notify_all()
            stuck = self._is_starting or (self._watch.calls.is_inside and not self._watch.gather_tag)
        if not self.lost or self._ended:
            return
        waited = time.monotonic() - self._lost_at
        if (stuck and not self._told) or waited > _GRACE_SECONDS:  # told: the main thread is printing it, or has caught it
            self._leave()
        elif waited > _ANNOUNCE_SECONDS and not self._told and not self._announced:
            self._announced = True
            _say(f"{self._message()}\n  then       its next call will raise this, or it ends in {_GRACE_SECONDS:.0f} s")

    def _tell_of_long_step(self) -> None:
        """Nobody is behind, and yet nothing moves: a thread that does not need the step tells where each process is in it."""
        if self.lost or self._told_step == self._watch.calls.returned:
            return
        if not (found := self._watch.long_step(time.monotonic())):
            return
        self._told_step = self._watch.calls.returned
        if Environment.end_on_step_timeout:
            self._lose(found)
        elif self.place.rank == 0:
            hint = "flow.env.end_on_step_timeout(True) ends the run then; flow.env.step_timeout(seconds) allows more"
            _say(f"{found}\n  try        {hint}", "warning")

    def _lose(self, why: str) -> None:
        if not self.lost:
            self._lost_at = time.monotonic()
            self.lost = why

    def _raise_if_lost(self) -> None:
        if self.lost:
            self._told = True
            raise ProcessError(self._message())

    def explain(self) -> None:
        """Raises ProcessError in the place of the collective's error, as soon as the watch knows which process was lost."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost, _GRACE_SECONDS)
        if self.lost:
            self._told = True
            raise ProcessError(self._message()) from None

    def _message(self) -> str:
        place = self.place
        return f"{place.name_of(place.rank)} of {place.count} cannot go on: {self.lost}{_users_line()}"

    def _leave(self) -> None:
        """Ends this process, whatever its main thread waits for."""
        self._ended = True
        if not self._told and not self._announced:
            _say(self._message())
        if not self._watch.peers[0].left:
            self._say_end("lost", self.lost)
            self._wait_for_readers()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1)

    def _wait_for_readers(self) -> None:
        """The first process goes last, where that does not take for ever: it relays, and JAX aborts the others without it."""
        if self.place.rank == 0:
            deadline = time.monotonic() + _LAST_SECONDS
            while (now := time.monotonic()) < deadline and not all(p.left or now - p.heard > 5 for p in self._watch.others):
                time.sleep(0.05)

    # --- the end

    def at_exit(self) -> None:
        """Tells the others how the program has ended. The first process waits for them."""
        if os.getpid() != self._process:
            return  # a forked child
        failure = getattr(sys, "last_value", None)
        if failure is None and not self.lost:
            self._finish_together()
            ends = [peer.end for peer in self._watch.peers]
            if "lost" in ends and "failed" not in ends and "gone" not in ends:
                self._ended = True  # others miss this one, whose program has ended, with a status of its own
                self._wait_for_readers()
                jax_versions.leave_distributed_run()
                return
        if self.lost:
            self._leave()
        if failure is not None:
            self._ended = True
            self._say_end("failed", f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}")
            self._wait_for_readers()
            jax_versions.leave_distributed_run()

    def _finish_together(self) -> None:
        """Says that the program has ended. The first process, which JAX needs in the others, leaves last."""
        self._beat()  # which names the last calls: all have to have made the same
        self._say_end("finished", "")
        if self.place.rank > 0:
            self._ended = True
            return
        began = time.monotonic()
        with self._changed:
            while not self.lost:
                now = time.monotonic()
                if self._watch.all_have_left(now):
                    self._ended = True
                    return
                if why := self._watch.stands_still(began, now):
                    self._lose(why)
                self._changed.wait(0.5)

    def abandon(self) -> None:
        """In a forked child: gives up its copies of the connections, which are its parent's."""
        self._ended = True
        jax_versions.leave_distributed_run()
        self._member.close()
        if self.place.server is not None:
            self.place.server.close()


def _say(text: str, kind: str = "ProcessError") -> None:
    """Writes to standard error, whatever Python's own stream is now."""
    with contextlib.suppress(OSError):
        os.write(2, f"oneflow: {kind}: {text}\n".encode("utf-8", "backslashreplace"))


def _users_line() -> str:
    """Where the main thread is, in the user's files."""
    frame = _users_frame(sys._current_frames().get(threading.main_thread().ident or 0))
    return f"\n  your line  {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _where_threads_are() -> str:
    """The lines of the user's that threads of this process are at, the main thread's first."""
    frames, main = sys._current_frames(), threading.main_thread().ident or 0
    found = {frames.get(main): "waits at"}
    found.update((frame, "runs") for ident, frame in frames.items() if ident != main)
    lines = [(what, line) for frame, what in found.items() if (line := _users_frame(frame)) is not None]
    shown = [f"{what} {f.f_code.co_filename}:{f.f_lineno} (in {f.f_code.co_name})" for what, f in lines[:_MOST_THREADS]]
    return "; ".join(shown) or "waits for its device"


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost of the frames that is in a file of the user's."""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_users(filename: str) -> bool:
    standard = os.path.dirname(threading.__file__)
    return not (
        is_library(filename) or filename.startswith((standard, "<frozen")) or f"{os.sep}site-packages{os.sep}" in filename
    )
