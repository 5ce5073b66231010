"""What a job is declared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _signature as tp
from .._base.generation import V0_3, Generation
from .._base.source import Source
from ..config import FunctionConfig

if TYPE_CHECKING:
    from ..compiler.int8_kernels import Grid


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """The declaration of a job: the decorator's arguments and the function's signature."""

    name: str
    train: bool
    function: Callable[..., Any]
    config: FunctionConfig
    parameters: tuple[tp.Parameter, ...]
    returns: tp.ReturnSpec
    source: Source
    generation: Generation = V0_3
    grids: Mapping[str, Grid] | None = None  # of a job in int8: those of its values, by logical Blob name
    users_name: str = ""  # of an internal job: the name of the user's job, for errors of what it is fed

    @property
    def train_settings(self) -> dict[str, Any]:
        """The settings ``config.train.*``, without that prefix."""
        return {k.removeprefix("train."): v for k, v in self.config.values.items() if k.startswith("train.")}
