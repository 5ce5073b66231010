"""The data sets of this folder's tests can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
