"""The jobs of this folder's tests are found by name."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]
