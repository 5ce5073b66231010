"""Writes docs/settings.md, and what type checkers see of FunctionConfig, from the library's own tables of settings.

A test checks that both are up to date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whether or not it is installed
from oneflow.config._function_config import _MEMORY_LISTS  # noqa: E402
from oneflow.config._function_options import FUNCTION_OPTIONS  # noqa: E402
from oneflow.config._options import REQUIRED, Option, table  # noqa: E402
from oneflow.config._settings import Resource  # noqa: E402

PAGE = ROOT / "docs" / "settings.md"
STUB = ROOT / "oneflow" / "config" / "_function_settings.pyi"
HEAD = '''"""The settings of FunctionConfig as methods, for type checkers and editors. Written by scripts/write_settings.py."""

from typing import Any, Literal

from .._base.dtype import dtype
from ..graph.scopes import PlacementScope, View

'''


PROGRAM = """\
```python
import oneflow as flow

flow.config.read_ahead_batches(8)  # for the session
settings = flow.FunctionConfig()  # for one job
settings.default_logical_view(flow.scope.consistent_view())

try:
    flow.config.read_ahead_batch(8)
except flow.errors.ConfigError as error:
    print(error)
```

```output
flow.config has no setting 'read_ahead_batch'
  close ... read_ahead_batches...
...
```
"""


def page() -> str:
    """The page as it should be."""
    return "\n".join([
        "# Settings",
        "",
        "At the end of this page you know which settings there are, and which of them have an effect.",
        "",
        "Written by `scripts/write_settings.py` from the tables in `oneflow/config/`.",
        "",
        PROGRAM,
        "## `flow.config`",
        "",
        "For the session to come: set outside jobs and before the first call.",
        "",
        table(Resource.options),
        "",
        "## `flow.FunctionConfig`",
        "",
        "For one job: `flow.global_function(\"train\", function_config)`. The job keeps a copy.",
        "",
        table(FUNCTION_OPTIONS),
        "",
    ])  # fmt: skip


def stub() -> str:
    """The stub as it should be."""
    rows = [(name, option) for option in FUNCTION_OPTIONS for name in (option.name, *option.aliases)]
    groups = list(dict.fromkeys(name.partition(".")[0] for name, _ in rows if "." in name))
    methods = {group: [_method(*row) for row in rows if row[0].startswith(f"{group}.")] for group in groups}
    classes = [f"class _{group.title()}:\n" + "".join(methods[group]) for group in groups]
    own = "".join(f"    {group}: _{group.title()}\n" for group in groups)
    own += "".join(f"    {name}: Any\n" for name in _MEMORY_LISTS)
    own += "".join(_method(*r) for r in rows if "." not in r[0])
    return HEAD + "\n".join([*classes, f"class FunctionSettings:\n{own}"])


def _method(name: str, option: Option) -> str:
    default = "" if option.implied is REQUIRED else f" = {option.implied!r}"
    arguments = f"self, {option.argument}: {_type(option)}{default}"
    lines = wrap(f"{option.effect.rstrip('.')}. Default: {option.default!r}.", 116)
    text = "\n        ".join([*lines, ""] if len(lines) > 1 else lines)
    return f'    def {name.rpartition(".")[2]}({arguments}) -> None:\n        """{text}"""\n'


def _type(option: Option) -> str:
    if option.choices:
        return f"Literal[{', '.join(map(json.dumps, option.choices))}]"
    generic = {dict: "dict[str, Any]", list: "list[Any]"}
    return " | ".join(generic.get(t, t.__name__) for t in option.types)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")
