"""``python -m oneflow.serving._convert script.py:job CHECKPOINT FILE [ARGUMENTS]``: a job and its weights as StableHLO.

The server runs it, so that scripts of users have a process and a session of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .._base.command import in_a_shell
from ..cli.scripts import load_job, shell_path
from ..errors import OneFlowError
from ..export import stablehlo
from ._native import is_asked, write_native


def main(arguments: Sequence[str]) -> int:
    """Writes the file, and the weights beside it. Returns the exit status."""
    target, checkpoint, file, *rest = arguments
    checkpoint, file = shell_path(checkpoint), shell_path(file)
    try:
        job = load_job(target, rest)
        stablehlo(job, file, external_data=True, weights=checkpoint)
        if is_asked(file):
            write_native(job, file, checkpoint)
    except OneFlowError as error:
        print(in_a_shell(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
