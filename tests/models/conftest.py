"""The models of examples/models and the references of this folder are found by name."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "examples" / "models")]
