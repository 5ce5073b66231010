"""``python -m oneflow``: the command ``oneflow``."""

import sys

from .cli import main

sys.exit(main())
