"""A variable of a session, as users see it."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from .._base import dist, page
from .._base.dtype import dtype as Dtype
from .._base.frames import shows_user_frames
from .._base.refuse import shown
from ..compiler.layout import Storage
from ..errors import ArgumentError
from ..graph.graph import Variable
from ..graph.node import INVALID_AXIS
from ..runtime.session import Session
from .layout import complain


class VariableHandle:
    """A variable of the session: what is known about it, and its current value."""

    __slots__ = ("_session", "_variable")

    def __init__(self, session: Session, variable: Variable):
        self._session = session
        self._variable = variable

    @property
    def session(self) -> Session:
        """The session that has the variable."""
        return self._session

    @property
    def name(self) -> str:
        """The variable's name."""
        return self._variable.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole variable."""
        return self._variable.shape

    @property
    def dtype(self) -> Dtype:
        """Its dtype."""
        return self._variable.dtype

    @property
    def batch_axis(self) -> int:
        """-1: a variable has no batch axis."""
        blob = self._variable.blob
        return INVALID_AXIS if blob is None else blob.batch_axis

    @property
    def split_axis(self) -> int:
        """The axis along which it is split over its devices; -1 where each has all of it."""
        axis = self._storage.layout.splits[0]
        return INVALID_AXIS if axis is None else axis

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_dynamic(self) -> bool:
        """False: the shape of a variable is fixed."""
        return False

    @property
    def is_tensor_list(self) -> bool:
        """False: a variable is one tensor."""
        return False

    @property
    def parallel_conf(self) -> dist.Placement:
        """Where it lives."""
        return self._storage.layout.placement

    @property
    def devices(self) -> list[str]:
        """The devices that have it or a piece of it, as "machine:device"."""
        return [f"{machine}:{device}" for machine, device in self.parallel_conf.devices]

    @property
    def bytes_per_device(self) -> int:
        """The bytes that it takes on each of them."""
        return self._storage.elements_per_device * self.dtype.bytes

    @property
    def _storage(self) -> Storage:
        return self._session.storage_of(self.name)

    @shows_user_frames
    def numpy(self, rank: int | None = None) -> np.ndarray:
        """The current value, after everything submitted, as a fresh array.

        Args:
          rank: None for the whole variable, else the part of that device, in [0, number of devices).
        Raises:
          ArgumentError: there is no device of that rank.
        """
        value = self._session.read([self.name])[self.name]
        count = self.parallel_conf.parallel_num
        if rank is None:
            return value
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < count:
            rule = f"variable {self.name!r} has no part of rank {shown(rank)}: it is on {count} device(s), counted from 0"
            complain(ArgumentError, rule)
        return value if self.split_axis < 0 else np.array_split(value, count, self.split_axis)[int(rank)].copy()

    def numpy_size(self) -> int:
        """The number of devices that have it or a piece of it."""
        return self.parallel_conf.parallel_num

    def numpy_list(self, rank: int | None = None) -> list[np.ndarray]:
        """The parts of all devices, or the one of device ``rank``, in a list."""
        return [self.numpy(r) for r in (range(self.numpy_size()) if rank is None else [rank])]

    def numpy_list_size(self) -> int:
        """The same as ``numpy_size()``."""
        return self.numpy_size()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"the value of variable {self.name!r} is on its devices: an array of it is always a copy")
        return np.asarray(self.numpy(), dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of variable {self.name!r}, which has no axis")
        return self.shape[0]

    def __copy__(self) -> VariableHandle:
        return VariableHandle(self._session, self._variable)

    @shows_user_frames
    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        rule = f"variable {self.name!r} can be neither deep-copied nor pickled: it belongs to its session and process"
        complain(ArgumentError, rule, "copy its value, .numpy(); or flow.checkpoint.save, which keeps the variables")

    def __repr__(self) -> str:
        return f"<variable {self.name!r} {self._variable.describe()}, declared at {self._variable.source}>"

    def _repr_html_(self) -> str:
        rows = [
            ("variable", self.name),
            ("dtype and shape", self._variable.describe()),
            ("elements", f"{self.size:,}"),
            ("trained", "yes" if self._variable.trainable else "no"),
            ("declared at", str(self._variable.source)),
        ]
        if not self._session.closed:
            rows.append(("on", str(self.parallel_conf)))
            value = self.numpy().astype(np.float64)
            if value.size:
                numbers = (f"{what} {number:.4g}" for what, number in _statistics(value))
                rows.append(("value", ", ".join(numbers)))
        return page.table((), rows)


def _statistics(value: np.ndarray) -> list[tuple[str, float]]:
    with np.errstate(all="ignore"):
        return [("mean", value.mean()), ("standard deviation", value.std()), ("min", value.min()), ("max", value.max())]
