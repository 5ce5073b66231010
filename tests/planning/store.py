"""Writes ``data/``: what the compilers said about the job of ``jobs.py``. ``PYTHONPATH=. python tests/planning/store.py``

It needs the extras plan-gpu and plan-tpu.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from jobs import small

from oneflow._targets import process

DATA = Path(__file__).parent / "data"


def main() -> None:
    os.environ["ONEFLOW_CACHE_DIR"] = ""
    ask = process.WorkerProcess.ask
    for target in ("h100:2", "tpu-v5e:1x2"):

        def keep(self, request, program, job, target=target):
            found = ask(self, request, program, job)
            path = DATA / f"{target.replace(':', '_')}.json.gz"
            path.write_bytes(gzip.compress(json.dumps(found).encode(), 9, mtime=0))
            return found

        process.WorkerProcess.ask = keep
        print(small().plan(target=target))


if __name__ == "__main__":
    main()
