"""For a machine with a GPU: runs the tests there, then the benchmarks, and writes the tables into docs/performance-machines.md.

    scripts/on_gpu                                    everything, over an hour
    scripts/on_gpu --skip-tests --models resnet50 bert_small --precisions tf32 bfloat16
    scripts/on_gpu --device cpu --models mlp --rounds 2 --seconds 0.05 --batch 8 --skip-tests --out /tmp/trial.md

It needs the library with the dependencies of its tests (pip install '.[dev]'), JAX with CUDA (pip install 'jax[cuda12]'), and for
the comparison PyTorch with CUDA. ``--device cpu`` tries the script
itself out where there is no GPU; its numbers are the CPU's.

The tests' files run in processes of their own, several side by side, with products of float32 in full precision, since they
compare with references of float32. The benchmarks compare ours, JAX by hand, PyTorch eager and compiled, in float32, TF32 and
bfloat16, on one device. The exit status is 2 without a GPU, 1 where a test failed or a contender did not run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import run_tests_on  # noqa: E402

from benchmarks.cases import accelerator  # noqa: E402
from benchmarks.report import Section, as_markdown, as_text, machine, write_between  # noqa: E402

PAGE = ROOT / "docs" / "performance-machines.md"
BEGIN, END = "<!-- on_gpu: begin -->", "<!-- on_gpu: end -->"
TESTS = ("tests/ops", "tests/layers", "tests/optimizer", "tests/jobs", "tests/compiler", "tests/models", "tests/checkpoint")
NO_GPU = 2


def gpu() -> tuple[str, str]:
    """The name of the first GPU that JAX has, and ""; or "" and what JAX has instead. JAX is asked in a process of its own."""
    asked = "import jax; d = jax.devices(); print(d[0].platform, len(d), d[0].device_kind, sep='|')"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    if done.returncode:
        return "", f"JAX does not start: {done.stderr.strip().splitlines()[-1]}"
    platform, count, kind = done.stdout.strip().splitlines()[-1].split("|")
    return (f"{count} x {kind}", "") if platform == "gpu" else ("", f"JAX has {count} device(s) of the platform {platform!r}")


def tested(paths: Sequence[str], platforms: str, workers: int) -> tuple[list[str], bool]:
    """Runs tests, ``workers`` files at a time, on JAX's ``platforms``. Returns the table's lines, and whether all passed."""
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
    os.environ["ONEFLOW_TEST_PLATFORMS"] = platforms
    parts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:

        def run(numbered: tuple[int, Path]) -> tuple[Path, Counter[str], str]:
            number, file = numbered
            return file, *run_tests_on.run(sys.executable, [file], Path(folder) / f"{number}.xml", [])

        for file, counts, output in pool.map(run, enumerate(run_tests_on.files(list(paths)))):
            print(f"{file}: {dict(counts) or 'no tests'}\n{output}", end="", flush=True)
            name = run_tests_on.part_of(file) if file.is_relative_to(ROOT / "tests") else file.name
            parts.setdefault(name, Counter()).update(counts)
    del os.environ["JAX_DEFAULT_MATMUL_PRECISION"], os.environ["ONEFLOW_TEST_PLATFORMS"]
    names = run_tests_on.OUTCOMES
    lines = ["### Tests", "", f"| part | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    lines += [f"| {part} | {' | '.join(str(counts[name]) for name in names)} |" for part, counts in sorted(parts.items())]
    return lines, not any(counts["failed"] for counts in parts.values())


def written(path: Path, body: str) -> None:
    """Puts the tables between the two marks of a page; a file that is not there is made."""
    if not path.exists():
        path.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    write_between(path, (BEGIN, END), body)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="scripts/on_gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: a trial of this script")
    parser.add_argument("--skip-tests", action="store_true", help="benchmarks only")
    parser.add_argument("--skip-benchmarks", action="store_true", help="tests only")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), metavar="PATH", help=f"files or folders ({' '.join(TESTS)})")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="files of tests at a time")
    parser.add_argument(
        "--models", nargs="+", choices=accelerator.BATCHES, default=list(accelerator.BATCHES), help="all by default"
    )
    parser.add_argument("--precisions", nargs="+", choices=accelerator.PRECISIONS, default=list(accelerator.PRECISIONS))
    parser.add_argument("--batch", type=int, default=0, help="samples per step (256 for ResNet-50, ...)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender (9)")
    parser.add_argument("--seconds", type=float, default=1.0, help="the length of a turn (1)")
    parser.add_argument("--no-torch-compile", action="store_true", help="leave out PyTorch compiled, whose start takes minutes")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page for the tables (docs/performance-machines.md)")
    made = parser.parse_args(arguments)
    if made.batch < 0 or made.rounds < 1 or made.seconds <= 0 or made.workers < 1:
        parser.error("--batch must be at least 0, --rounds and --workers at least 1, --seconds above 0")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = parsed(arguments)
    name, instead = gpu()
    if options.device == "gpu" and not name:
        print(
            f"on_gpu: there is no GPU here: {instead}. Nothing was run.\n"
            "  try        nvidia-smi, to see whether the driver finds the GPU; then pip install 'jax[cuda12]', with "
            "JAX_PLATFORMS unset\n"
            "             --device cpu tries this script out on the CPU", file=sys.stderr,
        )  # fmt: skip
        return NO_GPU
    if options.device == "cpu":
        os.environ["JAX_PLATFORMS"], name = "cpu", "the CPU, as a trial of the script"
    parts, good = [f"On {name}; {'; '.join(machine())}."], True
    if not options.skip_tests:
        lines, good = tested(options.tests, "cuda,cpu" if options.device == "gpu" else "cpu", options.workers)
        parts.append("\n".join(lines))
    if not options.skip_benchmarks:
        sections: list[Section] = accelerator.measure(
            options.device, options.models, options.precisions, options.rounds, options.seconds, options.batch,
            not options.no_torch_compile,
        )  # fmt: skip
        for section in sections:
            print(as_text(section), flush=True)
            good = good and not section.failures
        parts += map(as_markdown, sections)
    written(options.out, "\n\n".join(parts))
    print(f"\nwritten: {options.out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
