"""The other processes of the run, as the rest of the library sees them: how many there are, and what all agree upon.

The functions are methods of one object, which is this process's only state about the others. What makes this process part of a
run (sockets, the watch) is imported when it is asked for, not by ``import oneflow``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ... import errors
from ..._base.refuse import refuse
from ...config._environment import LAUNCHED, Environment
from ...errors import ForkError, ProcessError

if TYPE_CHECKING:
    from .run import Run

_Value = TypeVar("_Value")
_LONGEST_LINE = 2_000  # of a job, as an error shows it
_MOST_LINES = 100_000


class Processes:
    """The run that this process belongs to, as far as it knows; nothing, for a run of one process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._started = False
        self._is_forked = False
        self._acquainted: set[Any] = set()

    # --- who one is

    def start(self) -> None:
        """Meets the other processes of the run, where there are any; does nothing the second time.

        Raises:
          ArgumentError: no address of ``flow.env.machine`` is this machine's, or the processes share no secret.
          ProcessError: the port is in use, the first process does not answer, some do not come, or it is not said where they are.
          ForkError: this process was forked from one that had done so.
        """
        with self._lock:
            if self._started:
                return
            if self._is_forked:
                rule = "this process was forked from one of a run of several, and cannot take part in the run"
                hint = 'multiprocessing.get_context("spawn"), or what it does before the first call of a job'
                refuse(ForkError, rule, hint=hint)
            from . import jax_runtime, rendezvous

            jax_runtime.refuse_if_initialized()
            place = rendezvous.find()
            if place is not None:
                from .run import Run  # with its threads: a run of one process has none

                self._run = Run(place)
            self._started = True
            if place is not None and place.rank > 0 and not Environment.all_output and LAUNCHED not in os.environ:
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the launcher sees to it otherwise

    def count(self) -> int:
        """How many processes the run has; before ``start`` what the environment says, which is 1 where it says nothing."""
        return self._who()[1]

    def index(self) -> int:
        """The rank of this process, which is its machine in placements; before ``start`` what the environment says, or 0."""
        return self._who()[0]

    def local_index(self) -> int:
        """The number of this process among those on its machine."""
        return self._who()[2]

    def is_first(self) -> bool:
        """Whether this process writes the files and shows what is printed."""
        return self.index() == 0

    def _who(self) -> tuple[int, int, int]:
        if self._run is not None:
            place = self._run.place
            return place.rank, place.count, place.local_rank
        if self._started:
            return 0, 1, 0
        from . import rendezvous

        return rendezvous.preview()

    # --- what all agree upon

    def gather(self, tag: str, value: Any) -> list[Any]:
        """The JSON-able values of all processes, in their order. All must call it, with the same tag."""
        return [value] if self._run is None else self._run.gather(tag, value)

    def broadcast_from_rank_zero(self, tag: str, value: Any) -> Any:
        """The first process's value, in all."""
        return self.gather(tag, value)[0]

    def barrier(self, name: str) -> None:
        """Waits until all processes are here."""
        self.gather(name, None)

    def on_rank_zero(self, tag: str, work: Callable[[], _Value]) -> _Value | None:
        """Calls a function in the first process, while the others wait. Returns its value there, None in the others.

        Raises, in all processes, what ``work`` raises.
        """
        if self._run is None:
            return work()
        value, error = None, None
        if self.is_first():
            try:
                with self._run.busy(tag):
                    value = work()
            except Exception as found:
                error = found
        told = self.broadcast_from_rank_zero(tag, None if error is None else [type(error).__name__, str(error)])
        if error is not None:
            raise error
        if told is not None:
            kind = getattr(errors, told[0], None)
            raise kind(told[1]) if kind is not None else ProcessError(f"{tag} failed in the first process: {': '.join(told)}")
        return value

    def check_same(self, name: str, lines: list[str]) -> None:
        """Compares what the processes have built, line by line.

        Raises:
          ProcessError: they differ; it shows the first line that does.
        """
        tag = f"comparing {name}"
        if len(set(self.gather(tag, _digest("\n".join(lines))))) == 1:
            return
        every = self.gather(f"{tag}, line by line", [_digest(line)[:16] for line in lines[:_MOST_LINES]])
        first = next(n for n in range(_MOST_LINES + 1) if len({tuple(own[n : n + 1]) for own in every}) > 1 or n == _MOST_LINES)
        shown = lines[first][:_LONGEST_LINE] if first < len(lines) else "nothing more"
        found = self.gather(f"{tag}, line {first}", shown)
        other = next((rank for rank, theirs in enumerate(found) if theirs != shown), None)
        if other is None:  # three or more processes, and this one is like the first ones
            other = next(rank for rank, theirs in enumerate(every) if theirs != every[self.index()])
        raise ProcessError(
            f"the programs of process {self.index()} and process {other} differ in {name}\n"
            f"  here       {shown}\n"
            f"  there      {found[other]}\n"
            f"  try        start the same script, with the same arguments and files, in every process"
        )

    # --- the watch

    def entered(self, call: str) -> None:
        """A call is about to be handed to the devices."""
        if self._run is not None:
            self._run.entered(call)

    def returned(self) -> None:
        """The results of a call are there."""
        if self._run is not None:
            self._run.returned()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Inside, an error of a collective becomes one that names the process that was lost, where one was."""
        try:
            yield
        except ProcessError:
            raise
        except Exception:
            if self._run is not None:
                self._run.explain()
            raise

    def busy(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Inside, this process makes progress that nobody sees: it compiles, or writes a file."""
        return contextlib.nullcontext() if self._run is None else self._run.busy(what)

    # --- the end

    def leave(self) -> None:
        """The program is at its end: tells the others, and waits for them where they need this process."""
        if self._run is not None:
            self._run.at_exit()

    # --- output

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Inside, what C++ code writes to standard output goes to standard error: Gloo reports there which processes have met."""
        if self._run is None:
            return contextlib.nullcontext()
        from . import jax_runtime

        return jax_runtime.redirected(1, 2)

    def first_meeting(self, devices: Any) -> bool:
        """Whether a collective over these devices (any hashable value) is their first: Gloo writes to standard output then."""
        if self._run is None or devices in self._acquainted:
            return False
        self._acquainted.add(devices)
        return True

    # --- forks

    def reset_after_fork(self) -> None:
        """In a forked child: gives up what belongs to its parent. The child is alone, and cannot join a run of several."""
        run, self._run = self._run, None
        self._lock = threading.RLock()  # its owner may be a thread that the child does not have
        self._acquainted = set()
        if run is not None:
            self._is_forked, self._started = True, False
            run.abandon()


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


own = Processes()  # the only one; the functions of this module are its methods
start = own.start
count, index, local_index, is_first = own.count, own.index, own.local_index, own.is_first
gather, broadcast_from_rank_zero, barrier = own.gather, own.broadcast_from_rank_zero, own.barrier
on_rank_zero, check_same = own.on_rank_zero, own.check_same
entered, returned, explained, busy = own.entered, own.returned, own.explained, own.busy
quiet, first_meeting = own.quiet, own.first_meeting
leave, reset_after_fork = own.leave, own.reset_after_fork
