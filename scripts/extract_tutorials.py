"""Copies the complete programs out of the tutorials, byte by byte, into tests/tutorials/.

The files are committed; this script documents where they came from and can check that nobody edited them:

    python scripts/extract_tutorials.py TUTORIALS_DIR [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "tests" / "tutorials"

# Names of the programs in the order of the page: each training script stands before the evaluation that loads its model.
PAGES = {
    "t1": (
        "1-async-get-flow.function.md",
        ["01_sync_single.py", "02_sync_batch.py", "03_async_single.py", "04_async_batch.py"],
    ),
    "t2": ("2-lenet-mnist-quick-start.md", ["01_lenet_train.py", "02_lenet_eval.py", "03_lenet_test.py"]),
    "t5": (
        "5-async-get-global_function-with-programs.md",
        ["01_sync_single.py", "02_sync_batch.py", "03_async_single.py", "04_async_batch.py"],
    ),
}


def fenced_programs(page: str) -> Iterator[str]:
    """The ```python blocks that have a main part; the others are fragments."""
    block: list[str] | None = None
    for line in page.splitlines(keepends=True):
        if block is None and line.strip() == "```python":
            block = []
        elif block is not None and line.strip() == "```":
            program, block = "".join(block), None
            if "import oneflow as flow" in program and "__main__" in program:
                yield program
        elif block is not None:
            block.append(line)


def unfenced_programs(page: str) -> Iterator[str]:
    """Page 5 lost its fences: a program runs from the line that names its file to the next line of prose.

    Prose is what has a character outside ASCII.
    """
    lines = page.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith("代码下载:"):
            end = next(i for i in range(number + 1, len(lines)) if not lines[i].isascii())
            yield "".join(lines[number + 1 : end]).strip("\n") + "\n"


def programs(tutorials: Path) -> Iterator[tuple[Path, bytes]]:
    """Every program with the path it is kept at."""
    for folder, (page_name, names) in PAGES.items():
        page = (tutorials / page_name).read_text(encoding="utf-8")
        found = list(fenced_programs(page)) or list(unfenced_programs(page))
        if len(found) != len(names):
            raise SystemExit(f"{page_name}: expected {len(names)} programs, found {len(found)}")
        for name, program in zip(names, found, strict=True):
            yield TARGET / folder / name, program.encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tutorials", type=Path, help="the folder with the tutorials' pages")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a committed program differs")
    arguments = parser.parse_args()
    differing = 0
    for path, program in programs(arguments.tutorials):
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(program)
        elif not path.exists() or path.read_bytes() != program:
            differing += 1
            print(f"{path} differs from its tutorial")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
