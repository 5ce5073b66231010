"""``python -m benchmarks.overlap [MICRO_BATCHES ...]``: how long the stages of a GPT's pipeline compute at the same time.

Of XLA's trace of four steps on two virtual CPU devices: the time in which instructions of each stage run, and of both.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import oneflow.compatible.single_client as flow

sys.path.append(str(Path(__file__).parents[1] / "examples" / "models"))
SIZES = "--num-layers 4 --hidden-size 128 --seq-length 64 --global-batch-size 16 --train-iters 40 --pipeline 2"
Spans = list[tuple[float, float]]


def joined(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same time as spans that do not overlap, in order."""
    found: Spans = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


def measure(micro_batches: int, folder: Path) -> list[Spans]:
    """When each stage's instructions ran, in microseconds."""
    import megatron_gpt

    flow.clear_default_session()
    corpus = ["--dataset", str(folder / "tokens")]
    megatron_gpt.write_dataset(corpus[1], [line for line in Path(__file__).read_bytes().splitlines() if line])
    options = [*SIZES.split(), *corpus, "--num-accumulation-steps", str(micro_batches)]
    args = megatron_gpt.parser().parse_args(options)
    megatron_gpt.configure(args)
    job: Any = megatron_gpt.make_train_job(args)
    job().get()
    job.profile(steps=4).save(str(folder / "trace.json.gz"))
    program = job.executables[-1][1].function
    place = {f"jit_{f.name}": str(program.segments[f.segment].placement) for f in program.functions if f.segment is not None}
    ran: dict[str, Spans] = defaultdict(list)
    with gzip.open(folder / "trace.json.gz") as file:
        for event in json.load(file)["traceEvents"]:
            module = (event.get("args") or {}).get("hlo_module")
            if event.get("ph") == "X" and module in place:
                ran[place[module]].append((event["ts"], event["ts"] + event["dur"]))
    return [joined(ran[name]) for name in sorted(ran)]


def main() -> int:
    for micro_batches in map(int, sys.argv[1:] or ("1", "4", "8")):
        with tempfile.TemporaryDirectory() as folder:
            stages = measure(micro_batches, Path(folder))
        both = sum(map(length, stages)) - length(joined(span for spans in stages for span in spans))
        busy = ", ".join(f"stage {i} {length(spans) / 1e3:.0f} ms" for i, spans in enumerate(stages, 1))
        print(f"{micro_batches} micro-batches: {busy}, both at once {max(both, 0.0) / 1e3:.0f} ms", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
