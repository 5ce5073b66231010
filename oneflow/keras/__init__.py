"""``flow.keras``: spellings of the first releases."""

from __future__ import annotations

from . import activations as activations
from . import maths as maths
