"""The data sets of this folder's tests, and how the campaigns damage them, can be imported."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]
