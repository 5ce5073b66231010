"""Runs the tutorials' programs on all of MNIST, as a user would, and prints rows for docs/tutorial-results.md.

    python scripts/run_tutorials.py DIRECTORY [t1] [t2] [t5] [--only NAME_PART]

DIRECTORY gets one folder a tutorial. A program whose output is there already is not run again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "tests" / "tutorials"
LENET_EPOCHS = 10  # of the model that page 1 offers for download instead of training it


def run(command: list[str], directory: Path, log: Path) -> str:
    """The program's output, which is kept in ``log`` as it comes."""
    if not log.exists():
        start = time.perf_counter()
        unfinished = log.with_suffix(".unfinished")
        with unfinished.open("w") as out:
            subprocess.run([sys.executable, *command], cwd=directory, check=True, stdout=out)
            out.write(f"{time.perf_counter() - start:.0f} s\n")
        unfinished.rename(log)
    return log.read_text()


def page(name: str, directory: Path, only: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for helper in ("mnist_util.py", "9.png"):
        shutil.copy(ROOT / "examples" / helper, directory)
    for program in sorted((TUTORIALS / name).glob("*.py")):
        if only not in program.name:
            continue
        shutil.copy(program, directory)
        if (name, program.name) == ("t1", "02_sync_batch.py") and not (directory / "make_lenet.log").exists():
            if (directory / "lenet_models_1").exists():
                (directory / "lenet_models_1").rename(directory / "mlp_saved_by_01")  # the page reuses the name
            make = [str(TUTORIALS / "make_lenet.py"), program.name, "600", str(LENET_EPOCHS)]
            run(make, directory, directory / "make_lenet.log")
        lines = run([program.name], directory, directory / f"{program.stem}.log").splitlines()
        print(f"| `{name}/{program.name}` | {lines[-2]} | {lines[-1]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("pages", nargs="*", default=["t1", "t2", "t5"])
    parser.add_argument("--only", default="", help="run only programs whose file name contains this")
    arguments = parser.parse_args()
    for name in arguments.pages:
        page(name, arguments.directory.resolve() / name, arguments.only)


if __name__ == "__main__":
    main()
