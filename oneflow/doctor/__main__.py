"""``oneflow doctor [--json] [--no-speed]``: exit status 0 where all is well, 1 where there is trouble."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from .._base.command import Parser
from .checks import NOTE, TROUBLE, Finding, examine
from .selftest import measure

_MARKS = {NOTE: "note   ", TROUBLE: "TROUBLE"}


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="oneflow doctor", description="Checks the installation and the machine, measures its speed, and says how to fix "
        "each trouble. The exit status is 1 where there is trouble.",
        epilog="example: oneflow doctor --json > doctor.json",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print the findings as JSON")
    made.add_argument("--no-speed", action="store_true", help="skip the speed test, which takes about ten seconds")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the findings. Returns the exit status."""
    options = parser().parse_args(arguments)
    found = examine()
    if not options.no_speed:
        found += measure()
    troubles = [f for f in found if f.state == TROUBLE]
    if options.json:
        print(json.dumps({"findings": [asdict(f) for f in found], "troubles": len(troubles)}, indent=1))
    else:
        _show(found)
        print(f"\n{len(troubles)} trouble(s)" if troubles else "\nall is well")
    return 1 if troubles else 0


def _show(found: list[Finding]) -> None:
    topic, width = "", max(len(f.name) for f in found)
    for finding in found:
        if finding.topic != topic:
            topic = finding.topic
            print(f"\n{topic}")
        print(f"  {_MARKS.get(finding.state, 'ok     ')}  {finding.name:<{width}}  {finding.value}")
        if finding.todo:
            print(f"           {'':<{width}}  -> {finding.todo}")


if __name__ == "__main__":
    sys.exit(main())
