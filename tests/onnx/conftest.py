"""The op tables, the models of examples/models and this folder's helpers are found by name."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "ops"), str(ROOT / "examples" / "models")]
