"""The processes of a run: who they are, what they agree upon, and a watch that ends all of them where one is lost.

Every process runs the whole script. The watch knows what JAX cannot: in which call each process is. A process that waits in a
collective while another has ended, stands still, or is in another call would wait for ever.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ... import errors
from ..._base.jax import jax
from ..._base.source import is_library
from ...config._environment import Environment
from ...errors import ProcessError
from . import hub, rendezvous

_BEAT_SECONDS = 1.0
_SILENT_SECONDS = 25.0  # of the watch's own thread; longer than anything that keeps Python's lock
_BUSY_SECONDS = 3600.0  # of compiling, or of writing a checkpoint
_GRACE_SECONDS = 8.0  # for a process that computes on its own while another is lost, to come to its next call
_JAX_SECONDS = 60  # JAX's own heartbeats, which abort the process: the second line
_KEPT_CALLS = 256

_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Peer:
    """What is known of one process."""

    calls: int = 0
    gathers: int = 0
    busy: str = ""
    end: str = ""  # "finished", "failed", "lost" (another process) or "gone"
    why: str = ""
    left: bool = False  # its connection is closed
    heard: float = field(default_factory=time.monotonic)
    moved: float = field(default_factory=time.monotonic)


class Run:
    """This process's part in a run of several."""

    def __init__(self, place: rendezvous.Place):
        self.place = place
        self.lost = ""
        self._lost_at = 0.0
        self._told = False
        self._peers = [_Peer() for _ in range(place.count)]
        self._gathered: dict[int, dict[int, tuple[str, Any]]] = {}
        self._gathers = 0
        self._changed = threading.Condition()
        self._calls = 0
        self._returned = 0
        self._waiting_since = time.monotonic()
        self._recent: OrderedDict[int, str] = OrderedDict()
        self._unsent: deque[tuple[int, str]] = deque(maxlen=_KEPT_CALLS)
        self._busy = ""
        self._waits_for = ""  # the gather that this process is in
        self._ended = False
        self._member = self._join()

    # --- the beginning

    def _join(self) -> hub.Member:
        place, patience = self.place, float(Environment.start_timeout)
        if place.server is not None and place.index == 0:
            coordinator = f"{place.host}:{hub.free_port(place.server.getsockname()[0])}"
            hub.Hub(place.server, place.count, {"coordinator": coordinator}, patience).start()
        try:
            member = hub.Member(place.host, place.port, place.index, place.count, patience)
        except hub.MissingError as error:
            missing = ", ".join(place.name_of(i) for i in error.args[0])
            raise ProcessError(
                f"{len(error.args[0])} of the {place.count} processes of this run did not come within {patience:g} s: {missing}\n"
                f"  try        start the same script on every machine; flow.env.start_timeout(seconds) waits longer"
            ) from None
        self._start_jax(member.welcome["coordinator"])
        member.listen(self._receive, self._hub_is_gone)
        self._member = member
        threading.Thread(target=self._watch, name="oneflow-watch", daemon=True).start()
        atexit.register(self._at_exit)  # runs before JAX's own hook, which waits for the others without looking at them
        return member

    def _start_jax(self, coordinator: str) -> None:
        place = self.place
        config: Any = jax.config  # its settings are not typed
        config.update("jax_cpu_collectives_implementation", "gloo")
        config.update("jax_enable_preemption_service", False)  # it keeps SIGTERM from ending the process
        config.update("jax_enable_recoverability", True)  # a process whose program has ended may leave before the others
        first = place.index == 0
        try:
            with _without_warnings() if first else contextlib.nullcontext():  # about recoverability
                jax.distributed.initialize(
                    coordinator, place.count, place.index, self._own_gpus(), cluster_detection_method="deactivate",
                    initialization_timeout=int(Environment.start_timeout), heartbeat_timeout_seconds=_JAX_SECONDS,
                    shutdown_timeout_seconds=30, coordinator_bind_address=coordinator if first else None,
                )  # fmt: skip
        except RuntimeError as error:
            raise ProcessError(
                f"JAX cannot begin a run of {place.count} processes: {str(error).splitlines()[0]}\n"
                f"  try        call flow.env.init() before anything else uses JAX"
            ) from error

    def _own_gpus(self) -> list[int] | None:
        """Of a machine with several processes, each has its own."""
        from ...config import Resource

        place, each = self.place, Resource.gpu_device_num or 1
        found = any(os.path.exists(f"/dev/{name}") for name in ("nvidia0", "kfd"))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = visible is not None and len(visible.split(",")) <= place.local_index * each  # the cluster has chosen already
        if place.local_count == 1 or not found or chosen:
            return None
        return [place.local_index * each + i for i in range(each)]

    # --- what the others say

    def _receive(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        with self._changed:
            if "gone" in message:
                peer = self._peers[message["gone"]]
                peer.end, peer.left = peer.end or "gone", True
            else:
                peer = self._peers[message["from"]]
                peer.heard = now
                if "gather" in message:
                    peer.gathers, peer.moved = message["gather"], now
                    self._gathered.setdefault(peer.gathers, {})[message["from"]] = message["tag"], message["value"]
                elif "end" in message:
                    peer.end, peer.why, peer.calls = message["end"], message["why"], message["calls"]
                else:
                    if (message["calls"], message["busy"]) != (peer.calls, peer.busy):
                        peer.moved = now
                    peer.calls, peer.busy = message["calls"], message["busy"]
                    self._compare(message["from"], message["recent"])
            self._changed.notify_all()

    def _compare(self, index: int, recent: list[tuple[int, str]]) -> None:
        for number, call in recent:
            own = self._recent.get(number)
            if own is not None and own != call:
                self._lose(
                    f"the programs differ: call {number} is {own} here and {call} in {self.place.name_of(index)}; "
                    f"every process must make the same calls in the same order"
                )

    def _hub_is_gone(self) -> None:
        with self._changed:
            if self._peers[0].end != "finished" and not self._ended:
                self._peers[0].end = self._peers[0].end or "gone"
            self._changed.notify_all()
        if not self._ended:
            self._look()

    # --- what this one says

    def entered(self, call: str) -> None:
        """A call is about to be handed to the devices. Raises ProcessError where a process was lost."""
        self._raise_if_lost()
        if self._returned >= self._calls:
            self._waiting_since = time.monotonic()
        number = self._calls + 1
        self._recent[number] = call
        self._unsent.append((number, call))
        if len(self._recent) > _KEPT_CALLS:
            self._recent.popitem(last=False)
        self._calls = number

    def returned(self) -> None:
        """The results of a call are there."""
        self._returned = min(self._returned + 1, self._calls)
        self._waiting_since = time.monotonic()

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Inside, this process makes progress that nobody sees: it compiles, or writes a file."""
        before, self._busy = self._busy, what
        self._beat()
        try:
            yield
        finally:
            self._busy = before
            self._beat()

    def gather(self, tag: str, value: Any) -> list[Any]:
        """The JSON-able values of all processes, in their order. All must call it, with the same tag.

        Raises:
          ProcessError: a process was lost, or stands still elsewhere.
        """
        self._raise_if_lost()
        with self._changed:
            self._gathers += 1
            number = self._gathers
            self._waits_for, self._waiting_since = tag, time.monotonic()
        self._member.send({"from": self.place.index, "gather": number, "tag": tag, "value": value})
        with self._changed:
            while True:
                found = self._gathered.get(number, {})
                for index, (theirs, _) in found.items():
                    if theirs != tag:
                        self._lose(f"the programs differ: this one is at {tag}, {self.place.name_of(index)} at {theirs}")
                self._raise_if_lost()
                if len(found) == self.place.count:
                    break
                self._changed.wait(0.5)
            self._waits_for = ""
            del self._gathered[number]
        return [found[i][1] for i in range(self.place.count)]

    def _beat(self) -> None:
        recent = [self._unsent.popleft() for _ in range(len(self._unsent))]
        self._member.send({"from": self.place.index, "calls": self._calls, "busy": self._busy, "recent": recent})

    # --- the watch

    def _watch(self) -> None:
        while not self._ended:
            self._beat()
            self._look()
            time.sleep(_BEAT_SECONDS)

    def _look(self) -> None:
        with self._changed:
            if not self.lost:
                for index, peer in enumerate(self._peers):
                    if index != self.place.index and (why := self._trouble(index, peer)):
                        self._lose(why)
                        break
            self._changed.notify_all()
        if self.lost and not self._ended:
            stuck = self._calls > self._returned and not self._waits_for
            if stuck or time.monotonic() - self._lost_at > _GRACE_SECONDS:
                self._leave()

    def _trouble(self, index: int, peer: _Peer) -> str:
        name, now, patience = self.place.name_of(index), time.monotonic(), float(Environment.stall_timeout)
        if peer.end == "gone":
            return f"{name} is gone without a word: it was killed, or it crashed"
        if peer.end == "failed":
            return f"{name} ended with an error: {peer.why}"
        if peer.end == "lost":
            return f"{name} gave up: {peer.why}"
        here = self._where()
        if not here:
            return ""
        if peer.end == "finished":
            behind = peer.calls < self._calls or (bool(self._waits_for) and peer.gathers < self._gathers)
            return f"the program of {name} ended after {peer.calls} calls, and this one {here}" if behind else ""
        if now - peer.heard > _SILENT_SECONDS:
            return f"{name} has not been heard of for {now - peer.heard:.0f} s: it was stopped, or its machine is gone"
        behind = peer.calls < self._calls or (bool(self._waits_for) and peer.gathers < self._gathers)
        limit = _BUSY_SECONDS if peer.busy else patience
        still = now - max(peer.moved, self._waiting_since)
        if behind and still > limit:
            return f"{name} has stood still for {now - peer.moved:.0f} s after {peer.calls} calls, and this one {here}"
        return ""

    def _where(self) -> str:
        """What this process waits for; empty where it computes on its own."""
        if self._waits_for:
            return f"waits for it in {self._waits_for}"
        if self._calls > self._returned:
            return f"waits for it in call {self._calls}, {self._recent.get(self._calls, '')}"
        return ""

    def _lose(self, why: str) -> None:
        if not self.lost:
            self.lost = why
            self._lost_at = time.monotonic()

    def _raise_if_lost(self) -> None:
        if self.lost:
            self._told = True
            raise ProcessError(self._message())

    def explain(self, error: Exception) -> None:
        """Raises ProcessError in the place of a collective's error, as soon as the watch knows which process was lost."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost, _GRACE_SECONDS)
        if self.lost:
            self._told = True
            raise ProcessError(self._message()) from error

    def _message(self) -> str:
        place = self.place
        return f"{place.name_of(place.index)} of {place.count} cannot go on: {self.lost}"

    def _leave(self) -> None:
        """Ends this process, whatever its main thread waits for."""
        self._ended = True
        if not self._told:
            line = _users_line()
            os.write(2, f"oneflow: ProcessError: {self._message()}\n{line}".encode())
        self._say_end("lost", self.lost)
        self._wait_for_readers()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1)

    def _say_end(self, how: str, why: str) -> None:
        self._member.send({"from": self.place.index, "end": how, "why": why, "calls": self._calls})

    def _wait_for_readers(self) -> None:
        """The first process goes last, where that does not take for ever: it relays, and JAX aborts the others without it."""
        if self.place.index == 0:
            deadline = time.monotonic() + _GRACE_SECONDS + 2
            while (now := time.monotonic()) < deadline and not all(p.left or now - p.heard > 5 for p in self._peers[1:]):
                time.sleep(0.05)

    # --- the end

    def _at_exit(self) -> None:
        failure = getattr(sys, "last_value", None)
        if failure is None and not self.lost:
            self._finish_together()
            if any(peer.end == "lost" for peer in self._peers) and not any(p.end in ("failed", "gone") for p in self._peers):
                self._ended = True  # others miss this one, whose program has ended, with a status of its own
                self._wait_for_readers()
                self._forget_jax()
                return
        if self.lost:
            self._leave()
        if failure is not None:
            self._ended = True
            self._say_end("failed", f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}")
            self._wait_for_readers()
            self._forget_jax()

    def _finish_together(self) -> None:
        """Says that the program has ended. The first process, which JAX needs in the others, leaves last."""
        self._say_end("finished", "")
        if self.place.index > 0:
            self._ended = True
            return
        began = time.monotonic()
        with self._changed:
            while not self.lost:
                others = [p for i, p in enumerate(self._peers) if i != self.place.index]
                patience, now = float(Environment.stall_timeout), time.monotonic()
                if all(p.end == "finished" and (p.left or now - p.heard > patience) for p in others):
                    self._ended = True
                    return
                for index, peer in enumerate(self._peers):
                    if not peer.end and not peer.busy and now - max(began, peer.moved) > patience:
                        name = self.place.name_of(index)
                        self._lose(f"{name} has stood still for {now - peer.moved:.0f} s, and this one has come to its end")
                self._changed.wait(0.5)

    def _forget_jax(self) -> None:
        """Keeps JAX from waiting, at exit, for processes that will not come, and from aborting this one then."""
        from jax._src.distributed import global_state

        for part in (global_state.client, global_state.service):
            if part is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # its destructor would wait, too
        global_state.client = global_state.service = global_state.preemption_sync_manager = None


def _users_line() -> str:
    """Where the main thread is, in the user's files."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    standard = os.path.dirname(threading.__file__)
    while frame is not None and (is_library(name := frame.f_code.co_filename) or name.startswith(standard)):
        frame = frame.f_back
    return f"  your line  {frame.f_code.co_filename}:{frame.f_lineno}\n" if frame is not None else ""


_run: Run | None = None
_started = False
_lock = threading.RLock()


def start() -> None:
    """Meets the other processes of the run, where there are any; does nothing the second time.

    Raises:
      ArgumentError: no address of ``flow.env.machine`` is this machine's.
      ProcessError: the port is in use, the first process does not answer, or some do not come.
    """
    global _run, _started
    with _lock:
        if not _started:
            place = rendezvous.find()
            _run = None if place is None else Run(place)
            _started = True
            if _run is not None and _run.place.index > 0 and not Environment.all_output and rendezvous.LAUNCHED not in os.environ:
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the launcher sees to it otherwise


def _place() -> rendezvous.Place | None:
    return _run.place if _run is not None else None if _started else rendezvous.from_launcher()


def count() -> int:
    """How many processes the run has; 1 before ``start``, except under the launcher."""
    place = _place()
    return 1 if place is None else place.count


def index() -> int:
    """The number of this process, which is its machine in placements; 0 before ``start``, except under the launcher."""
    place = _place()
    return 0 if place is None else place.index


def local_index() -> int:
    """The number of this process among those on its machine."""
    place = _place()
    return 0 if place is None else place.local_index


def is_first() -> bool:
    """Whether this process writes the files and shows what is printed."""
    return index() == 0


def gather(tag: str, value: Any) -> list[Any]:
    """The JSON-able values of all processes, in their order. All must call it, with the same tag."""
    return [value] if _run is None else _run.gather(tag, value)


def broadcast_from_rank_zero(tag: str, value: Any) -> Any:
    """The first process's value, in all."""
    return gather(tag, value)[0]


def barrier(name: str) -> None:
    """Waits until all processes are here."""
    gather(name, None)


def check_same(name: str, lines: list[str]) -> None:
    """Compares what the processes have built, line by line.

    Raises:
      ProcessError: they differ; it shows the first line that does.
    """
    if _run is None:
        return
    for other, theirs in enumerate(gather(f"comparing {name}", lines)):
        if theirs != lines:
            pairs = [*zip(lines, theirs, strict=False), *zip(lines[len(theirs) :], ["nothing more"] * len(lines), strict=False)]
            pairs += [("nothing more", line) for line in theirs[len(lines) :]]
            mine, its = next((a, b) for a, b in pairs if a != b)
            raise ProcessError(
                f"the programs of process {index()} and process {other} differ in {name}\n"
                f"  here       {mine}\n"
                f"  there      {its}\n"
                f"  try        start the same script, with the same arguments and files, in every process"
            )


def entered(call: str) -> None:
    """A call is about to be handed to the devices."""
    if _run is not None:
        _run.entered(call)


def returned() -> None:
    """The results of a call are there."""
    if _run is not None:
        _run.returned()


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Inside, an error of a collective becomes one that names the process that was lost, where one was."""
    try:
        yield
    except Exception as error:
        if _run is not None:
            _run.explain(error)
        raise


def quiet() -> contextlib.AbstractContextManager[None]:
    """Inside, what C++ code writes to standard output goes to standard error: Gloo tells there who has met."""
    return contextlib.nullcontext() if _run is None else _redirected(1, 2)


@contextlib.contextmanager
def _redirected(descriptor: int, target: int) -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Inside, C++ code writes no warnings (nor anything else) to standard error."""
    with open(os.devnull, "wb") as nowhere, _redirected(2, nowhere.fileno()):
        yield


def on_rank_zero(tag: str, work: Callable[[], _Value]) -> _Value | None:
    """Has the first process do what is to be done once. Gives its value there, None in the others, which wait.

    Raises, in all processes, what ``work`` raises.
    """
    if _run is None:
        return work()
    value, error = None, None
    if is_first():
        try:
            with _run.busy(tag):
                value = work()
        except Exception as found:
            error = found
    told = broadcast_from_rank_zero(tag, None if error is None else [type(error).__name__, str(error)])
    if error is not None:
        raise error
    if told is not None:
        kind = getattr(errors, told[0], None)
        raise kind(told[1]) if kind is not None else ProcessError(f"{tag} failed in the first process: {': '.join(told)}")
    return value


def busy(what: str) -> contextlib.AbstractContextManager[None]:
    """Inside, this process makes progress that nobody sees: it compiles, or writes a file."""
    return contextlib.nullcontext() if _run is None else _run.busy(what)
