"""``python -m benchmarks.environments FOLDER``: an environment with TensorFlow, which wants other versions than JAX does."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    folder = Path(sys.argv[1]).resolve()
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "tensorflow-cpu", "numpy"], check=True)
    print(f"export BENCHMARK_TENSORFLOW={python}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
