"""``oneflow.compatible.single_client``: where v0.5 and v0.6 keep job functions, with the meaning that they have there.

It shares session, Blobs, dtypes, variables and every function that is the same in both releases with ``oneflow``, so that one
process can mix the spellings. Where 0.6 differs, it has a function of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _imports

if _TYPE_CHECKING:
    from . import single_client as single_client

_imports.install()
_on_demand = _apart = {"single_client": ".single_client"}  # it needs ``oneflow``, which is being imported
