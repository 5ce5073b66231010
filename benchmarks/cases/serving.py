"""Servers under 32 clients: ours with and without batching, and FastAPI with PyTorch written plainly."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..effort import Effort
from ..process import ROOT
from ..report import Check, Section
from ..serving.served import LENGTHS
from ..stats import Ratio, Spread

OURS, SINGLE, XLA, PLAIN = "ours", "ours, no batching", "ours, StableHLO exports (XLA)", "FastAPI and PyTorch, written plainly"
CLIENTS = 32
TITLES = {
    **{f"bert_tiny_{n}": f"Serving BERT-tiny, {n} tokens, 32 clients" for n in LENGTHS}, "lenet": "Serving LeNet, 32 clients",
}  # fmt: skip
BOUNDS = {"bert_tiny_64": 3.0, "lenet": 2.0}  # on the throughput of batching relative to that without
AGREE = 1e-3  # relative, of the mean absolute result
NOTE = ("Requests of one row, KServe's protocol with binary data, over loopback; the clients share the machine with the "
        "server. CPU is the server process's, per request: it depends less on who else uses the machine.")  # fmt: skip

Answer = Mapping[str, float]


@contextmanager
def served(*command: str) -> Iterator[tuple[str, int]]:
    """A server's address and process number."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("serving at ").strip(), process.pid
    finally:
        process.terminate()
        process.wait(60)


def asked(url: str, model: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.serving.load", url, model, str(CLIENTS), str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def measure(effort: Effort, data: Path) -> list[Section]:
    rounds, seconds = (7, 3.0) if effort.name == "full" else (3, 1.0)
    single = ("--no-batching", "--batches-in-flight", "2")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        subprocess.run([sys.executable, "-m", "benchmarks.serving.export", folder], cwd=ROOT, check=True, capture_output=True)
        saved, exported = str(Path(folder) / "saved"), str(Path(folder) / "stablehlo")
        running = {
            OURS: stack.enter_context(served("oneflow.serving", saved, "--port", "0")),
            SINGLE: stack.enter_context(served("oneflow.serving", saved, "--port", "0", *single)),
            XLA: stack.enter_context(served("oneflow.serving", exported, "--port", "0")),
        }
        missing = [name for name in ("torch", "fastapi") if importlib.util.find_spec(name) is None]
        if not missing:
            running[PLAIN] = stack.enter_context(served("benchmarks.serving.fastapi_torch"))
        made = [_measured(model, running, rounds, seconds) for model in TITLES]
    for section in made:
        section.failures = {PLAIN: f"{' and '.join(missing)} not installed"} if missing else {}
    return made


def _measured(model: str, running: Mapping[str, tuple[str, int]], rounds: int, seconds: float) -> Section:
    answers: dict[str, list[dict[str, Any]]] = {label: [] for label in running}
    for number in range(rounds):
        order = list(running)
        random.Random(number).shuffle(order)
        for label in order:
            url, pid = running[label]
            before = cpu_seconds(pid)
            answer = asked(url, model, seconds)
            used = cpu_seconds(pid) - before
            answer["cpu"] = used / answer["requests"]
            answers[label].append(answer)
    reference = answers[OURS][0]["mean"]
    for label, found in answers.items():
        if any(abs(a["mean"] - reference) > AGREE * abs(reference) for a in found):
            raise SystemExit(f"{label} computes something else than {OURS}: {[a['mean'] for a in found]} against {reference}")
    section = Section(TITLES[model], NOTE, ["", "requests/s", "p50 ms", "p99 ms", "CPU ms"], raw=answers)
    for label, found in answers.items():
        spreads = [Spread.of([a[key] for a in found]) for key in ("rate", "p50", "p99", "cpu")]
        section.rows.append([label, f"{spreads[0].median:.0f}", *(f"{s.median * 1e3:.2f}" for s in spreads[1:])])

    def ratio(key: str, above: str, below: str) -> Ratio:
        return Ratio.paired([a[key] for a in answers[above]], [a[key] for a in answers[below]])

    for label, bound in ((SINGLE, BOUNDS.get(model)), (XLA, None), (PLAIN, 1.0)):
        if label in answers:
            section.checks += [
                Check(f"throughput of ours / {label}", ratio("rate", OURS, label), bound),
                Check(f"p99 of ours / {label}", ratio("p99", OURS, label), bound and 1.0, at_least=False),
                Check(f"CPU per request of {label} / ours", ratio("cpu", label, OURS)),
            ]
    return section
