"""A job's signature: its inputs, its parameters as they may be annotated, and what its calls return."""

from .inputs import InputDef as InputDef
from .inputs import Parameter as Parameter
from .inputs import map_structure as map_structure
from .parameters import annotations_required as annotations_required
from .parameters import parse_parameters as parse_parameters
from .parameters import require_annotations as require_annotations
from .returns import Matched as Matched
from .returns import ReturnSpec as ReturnSpec
from .returns import match_return as match_return
from .returns import parse_return as parse_return
