"""Makes ``saving.py``, the op tables and the models of examples/models importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), *(str(ROOT / "tests" / name) for name in ("onnx", "ops"))]
sys.path.insert(0, str(ROOT / "examples" / "models"))
