"""The op tables, the models of examples/models and the helpers of this folder are found by name."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("onnx", "ops", "models")] + [str(ROOT / "examples" / "models")]
