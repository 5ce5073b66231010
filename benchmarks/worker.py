"""One contender in a process of its own: reads commands from standard input, one JSON object a line, and answers likewise.

{"do": "start", "module": ..., "options": {...}}   imports, builds, makes one step; answers with the seconds of each
{"do": "firsts", "steps": n}                       makes steps and answers with the first results, to be compared
{"do": "run", "steps": n}                          answers with wall and CPU seconds
{"do": "preprocess", "passes": n, "times": n}      answers with the seconds of preparing one batch
{"do": "memory"}                                   answers with peak and current memory in bytes
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from typing import Any


def resident_bytes(process: int | str = "self") -> int:
    """Memory of a process now; 0 where the system does not report it."""
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


class Phases:
    """Seconds that JAX reports for tracing, lowering and XLA's compile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._listening = False

    def listen(self) -> None:
        if self._listening or "jax" not in sys.modules:
            return
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(self._note)
        self._listening = True

    def _note(self, event: str, seconds: float, **_: Any) -> None:
        name = event.rsplit("/", 1)[-1]
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, {}
        return taken


class Worker:
    def __init__(self) -> None:
        self._run: Any = None
        self._losses: Any = None
        self._phases = Phases()

    def start(self, module: str, options: dict[str, Any]) -> dict[str, Any]:
        begin, cpu = time.perf_counter(), time.process_time()
        contender = importlib.import_module(module)
        imported = time.perf_counter()
        if "pytorch" not in module and "tensorflow" not in module:
            import jax

            if "oneflow" not in sys.modules:  # which starts XLA itself, behind settings that depend on the jobs
                jax.devices()  # starting XLA is neither import nor build
        self._phases.listen()
        started = time.perf_counter()
        self._run, self._losses = contender.make(**options)
        self._run(1)
        end = time.perf_counter()
        return {
            "import": imported - begin, "backend": started - imported, "build": end - started, "total": end - begin,
            "cpu": time.process_time() - cpu, "phases": self._phases.take(),
        }  # fmt: skip

    def run(self, steps: int) -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        self._run(steps)
        return {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    def firsts(self, steps: int) -> dict[str, Any]:
        """The first results, after so many steps more."""
        self._run(steps)
        return {"firsts": self._losses.first}

    def preprocess(self, passes: int, times: int) -> dict[str, Any]:
        from .data import source

        batch = source(passes)
        batch(0)
        begin = time.perf_counter()
        for i in range(times):
            batch(i)
        return {"seconds": (time.perf_counter() - begin) / times}

    def memory(self) -> dict[str, Any]:
        unit = 1 if sys.platform == "darwin" else 1024
        loss = getattr(self._losses, "last", None)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return {"peak": peak, "now": resident_bytes(), "loss": loss, "p99": getattr(self._losses, "p99", None)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a contender prints must not mix with the answers
    if "BENCHMARK_DATA" in os.environ:
        from .data import batches

        batches()  # neither NumPy's import nor reading data is counted
    worker = Worker()
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(worker, command.pop("do"))(**command)
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
