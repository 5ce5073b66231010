"""``oneflow launch --nproc 4 script.py args``: starts n processes of one run, ends them together, starts them again."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from ._base.command import Parser, add_rest
from .config._environment import LAUNCHED
from .errors import ArgumentError
from .runtime.exit_status import PREEMPTED
from .runtime.processes import addresses, rendezvous, secret

_GRACE_SECONDS = 12.0  # for the others to report, after one has failed, what they know about it
_KILL_SECONDS = 5.0
_SAVE_SECONDS = 30.0  # after SIGTERM, for processes that save a checkpoint then; SLURM allows as much
_PR_SET_PDEATHSIG = 1
_LAST_PORT = 65535


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog="oneflow launch",
        description="Starts a script in several processes that work together. Each is one machine in placements: "
        '"0:0-1" are the first two devices of the first process.',
        epilog="example: oneflow launch --nproc 2 train.py --steps 100",
    )
    add = made.add_argument
    add("--nproc", "--nproc_per_node", "--nproc-per-node", type=_positive, default=1, metavar="N",
        help="processes on this machine (1)")  # fmt: skip
    add("--nnodes", type=_positive, default=1, metavar="N", help="machines that run this command (1)")
    add("--node_rank", "--node-rank", type=int, default=0, metavar="I", help="which of them this one is (0)")
    add("--master", metavar="HOST:PORT", help="where the first process listens; needed with several machines")
    add("--master_addr", "--master-addr", metavar="HOST", help="as the first half of --master")
    add("--master_port", "--master-port", type=_positive, metavar="PORT", help="as the second half of --master")
    add("--bind", metavar="ADDRESS", help="an address of the first machine to listen at, where others reach it by another one")
    add("--secret-file", "--secret_file", metavar="PATH",
        help="a file with the secret of the run, the same on all machines; on one machine a new secret is made")  # fmt: skip
    add("--insecure", action="store_true", help="several machines share no secret: everybody who reaches the port can take part")
    add("--restarts", "--max_restarts", "--max-restarts", type=_count, default=0, metavar="N",
        help="start all processes again after one has failed, up to N times (0); "
        "ONEFLOW_RESTART_COUNT is how often it was")  # fmt: skip
    add("--all-output", "--all_output", action="store_true", help="show what other processes than the first print, too")
    add("-m", "--module", action="store_true", help="the script is a module's name, as in python -m")
    add("script", help="what each process runs")
    add_rest(made, help="what the script is given")
    return made


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the processes to their end, again where one fails and ``--restarts`` allows it.

    Returns: 0, or the status of the process that failed first in the last attempt, one other than 1 if there is any;
      128 + n where signal n ended it. Processes that were preempted (status 75, see ``flow.checkpoint.save_on_preemption``) are
      not started again.
    """
    made = parser()
    given = made.parse_args(arguments)
    if not 0 <= given.node_rank < given.nnodes:
        made.error(f"--node_rank must be in [0, {given.nnodes}), it is {given.node_rank}")
    stop = _Stop()
    try:
        shared = _shared(given, made.error)
        for restart in range(given.restarts + 1):
            if restart:
                _say(f"starting all processes again (restart {restart} of {given.restarts})")
            attempt = {**shared, rendezvous.RESTART_COUNT: str(restart)}
            status = _Processes(given, _master(given, made.error), attempt, stop).run()
            if status in (0, PREEMPTED) or stop.signal:
                break
    finally:
        stop.close()
    return status


def _master(given: argparse.Namespace, error: Callable[[str], Any]) -> str:
    host, port = given.master_addr, given.master_port
    if given.master is not None:
        try:
            host, port = addresses.split(given.master)
        except ValueError:
            port = None
        if port is None:
            error(f"--master must be host:port, e.g. 10.0.0.1:29500, it is {given.master!r}")
    if given.nnodes > 1 and (host is None or port is None):
        error(f"--nnodes {given.nnodes} needs --master host:port, the same on all machines; the host is that of --node_rank 0")
    if port is not None and port > _LAST_PORT:
        error(f"--master_port must be at most {_LAST_PORT}, it is {port}")
    host = host or "127.0.0.1"
    try:
        return addresses.join(host, port or addresses.free_port(given.bind or host))
    except OSError as problem:
        error(f"--master_addr {host}: {problem.strerror}; give --master host:port, an address of this machine")
        raise


def _shared(given: argparse.Namespace, error: Callable[[str], Any]) -> dict[str, str]:
    """Variables for the environment of all processes: the secret, and where to listen."""
    shared = {
        name: value for name, value in ((rendezvous.BIND_ADDRESS, given.bind), (secret.SECRET_FILE, given.secret_file)) if value
    }
    if given.insecure:
        shared[secret.INSECURE] = "1"
    variables = {**os.environ, **shared}
    if given.secret_file:
        variables.pop(secret.SECRET, None)
    try:
        found = secret.given(variables)
    except ArgumentError as problem:
        error(str(problem).splitlines()[0])
    if found is not None:
        return {**shared, secret.SECRET: found}
    if given.nnodes == 1:
        return {**shared, secret.SECRET: secret.make()}
    master = _master(given, error)
    if not secret.may_be_insecure(variables) and not addresses.is_loopback(addresses.split(master)[0]):
        error(
            f"several machines need a secret that all of them share: --secret-file PATH, {secret.SECRET_FILE}=PATH, "
            f"or {secret.SECRET}=$(openssl rand -hex 32). --insecure lets everybody who reaches {master} take part in the run"
        )
    return shared


class _Stop:
    """The signal that asks the launcher to end, once one has come; and SIGUSR1, which is only passed on."""

    def __init__(self) -> None:
        self.signal = self.passed_on = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)
        if hasattr(signal, "SIGUSR1"):
            signal.signal(signal.SIGUSR1, self._pass_on)
        # in the launcher's group, with nothing to do: what ends it has reached the launcher's own processes, too
        idle = [sys.executable, "-I", "-S", "-c", "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); signal.pause()"]
        nowhere = subprocess.DEVNULL
        self._witness = subprocess.Popen(idle, stdin=nowhere, stdout=nowhere, stderr=nowhere, preexec_fn=_end_with_parent)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.passed_on = number

    def reached_all(self) -> bool:
        """Whether the signal went to the whole process group, as that of Ctrl-C does: passed on, it would be a second one."""
        try:
            return self._witness.wait(0.2) is not None
        except subprocess.TimeoutExpired:
            return False

    def close(self) -> None:
        self._witness.kill()
        self._witness.wait()


class _Processes:
    """The processes of one attempt."""

    def __init__(self, given: argparse.Namespace, master: str, shared: dict[str, str], stop: _Stop):
        self._shared = shared
        self._stop = stop
        self._count = given.nproc * given.nnodes
        self._first = given.nproc * given.node_rank
        command = [sys.executable, *(["-m"] if given.module else []), given.script, *given.arguments]
        self._processes = [self._start(command, given, i, master) for i in range(given.nproc)]

    def _start(self, command: list[str], given: argparse.Namespace, local: int, master: str) -> subprocess.Popen[bytes]:
        rank = self._first + local
        host, port = addresses.split(master)
        environment = {
            **os.environ,
            **self._shared,
            LAUNCHED: f"{rank} {self._count} {master} {local} {given.nproc}",
            # what scripts know from other launchers
            "RANK": str(rank), "WORLD_SIZE": str(self._count), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(given.nproc),
            "MASTER_ADDR": host, "MASTER_PORT": str(port),
        }  # fmt: skip
        shown = None if rank == 0 or given.all_output else subprocess.DEVNULL
        return subprocess.Popen(command, env=environment, stdout=shown, preexec_fn=_end_with_parent)

    def run(self) -> int:
        """Waits for all; where one fails or a signal comes, for a little while, and ends those that are left."""
        stop, told = self._stop, False
        status, deadline = 0, float("inf")
        running = dict(enumerate(self._processes, self._first))
        while running:
            for rank, process in list(running.items()):
                found = process.poll()
                if found is None:
                    continue
                del running[rank]
                if told and stop.signal == signal.SIGTERM and found > 1:
                    status = found  # it has chosen its end, such as after saving a checkpoint
                if found and status in (0, 1) and not stop.signal:
                    # who gives up because another was lost ends with 1, and sometimes before it: other statuses say more
                    _say(f"process {rank} of {self._count} {_described(found)}" + ("" if status else "; the others end, too"))
                    if not status:
                        deadline = time.monotonic() + _GRACE_SECONDS
                    status = found if found > 0 else 128 - found
            if stop.passed_on:
                _signal(running.values(), stop.passed_on)
                stop.passed_on = 0
            if stop.signal and not told:
                patience = _SAVE_SECONDS if stop.signal == signal.SIGTERM else _KILL_SECONDS
                told, status, deadline = True, 128 + stop.signal, time.monotonic() + patience
                if not stop.reached_all():
                    _signal(running.values(), stop.signal)
            if running and time.monotonic() > deadline:
                _say(f"{_named(running)} did not end and had to be stopped")
                _signal(running.values(), signal.SIGTERM)
                _wait(running.values(), _KILL_SECONDS)
                _signal(running.values(), signal.SIGKILL)
                _wait(running.values(), _KILL_SECONDS)
                break
            time.sleep(0.02)
        return status


def _say(text: str) -> None:
    print(f"oneflow.launch: {text}", file=sys.stderr, flush=True)


def _described(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _named(running: dict[int, Any]) -> str:
    numbers = ", ".join(map(str, running))
    return f"process {numbers}" if len(running) == 1 else f"processes {numbers}"


def _signal(processes: Any, number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def _wait(processes: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(p.poll() is None for p in processes):
        time.sleep(0.02)


def _end_with_parent() -> None:
    """In the child: where the launcher is killed, nobody else would end it."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
