"""Writes ``data/``: what the compilers said about the job of ``jobs.py``. ``PYTHONPATH=. python tests/planning/store.py``

It needs the extras plan-gpu and plan-tpu.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from jobs import small

from oneflow._targets import compiling

DATA = Path(__file__).parent / "data"


def main() -> None:
    os.environ["ONEFLOW_CACHE_DIR"] = ""
    ask = compiling.Compiler._ask
    for target in ("h100:2", "tpu-v5e:1x2"):

        def keep(self, request, program, target=target):
            found = ask(self, request, program)
            path = DATA / f"{target.replace(':', '_')}.json.gz"
            path.write_bytes(gzip.compress(json.dumps(found).encode(), 9, mtime=0))
            return found

        compiling.Compiler._ask = keep
        print(small().plan(target=target))


if __name__ == "__main__":
    main()
