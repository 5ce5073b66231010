"""``oneflow.compatible.single_client``: where v0.5 and v0.6 keep job functions. Here it is the package ``oneflow`` itself.

Every path below it (``oneflow.compatible.single_client.typing``) gives the module that ``oneflow`` has under that path,
never a second copy: functions, types and the session are the same under both spellings.
"""

import sys as _sys

from . import _imports

_imports.install()
single_client = _sys.modules[__name__.partition(".")[0]]
