"""``python -m benchmarks.pinned MODEL MODE BATCH [ROUNDS] [mixed] [LABEL ...]``: contenders on one core, in turns.

For a busy machine: contenders have one thread each and are pinned to the last core that they may use, and what is compared is the
CPU time per step. Prints its median and least over the rounds, the elapsed time's least, and the ratio of CPU times to ours,
round by round. "mixed" is mixed precision. LABELs name the contenders that take part, all by default.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from .cases.models import AGREE, agreed, contenders
from .process import Contender, Process
from .race import calibrated, in_turns

SECONDS = 1.0  # a turn


def pinned(found: list[Contender]) -> list[Contender]:
    """The same with one thread each."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")}
    return [replace(each, environment={**each.environment, **threads}) for each in found]


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__)
        return 2
    model, mode, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    labels = sys.argv[5:]
    mixed = labels[:1] == ["mixed"]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    taking_part = [c for c in contenders(model, mode, batch, False) if c.python != ""]
    if labels[mixed:]:
        taking_part = [c for c in taking_part if c.label in labels]
    if mixed:
        taking_part = [replace(c, options={**c.options, "precision": "bfloat16"}) for c in taking_part]
    with ExitStack() as stack:
        running = {c.label: stack.enter_context(Process(c, None)) for c in pinned(taking_part)}
        for process in running.values():
            process.start()
        agreed(running, (0.02, 0.05) if mixed else AGREE)
        steps = {label: calibrated(process, SECONDS) for label, process in running.items()}
        turns = [in_turns(running, steps, number) for number in range(rounds)]
    first = next(iter(running))
    print(f"{model}, {mode}{', mixed precision' if mixed else ''}, batch of {batch}; milliseconds per step, {rounds} rounds")
    for label, count in steps.items():
        cpu, wall = ([turn.answers[label][what] / count * 1e3 for turn in turns] for what in ("cpu", "seconds"))
        ours = [turn.answers[first]["cpu"] / steps[first] * 1e3 for turn in turns]
        ratio = median(theirs / mine for theirs, mine in zip(cpu, ours, strict=True))
        print(f"{label:28} CPU {median(cpu):9.3f} (best {min(cpu):9.3f})   elapsed {min(wall):9.3f}   {ratio:.2f} of {first}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
