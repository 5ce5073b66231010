"""A call of a job whose call is prepared: the few lines that each of them runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._base import native

if TYPE_CHECKING:
    from ..runtime.calling import Call


class Prepared:
    """The base of jobs. Where the native part has its extension module, its type of this name, which runs no Python code of its
    own for a prepared call.
    """

    _call: Call | None  # of a job that one executable serves, once it is there

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = self._call
        if call is not None and not kwargs:
            try:
                return call(args)
            except BaseException as error:
                if not self._failed(error):
                    raise
        try:
            return self._call_checked(args, kwargs)
        except BaseException as error:
            self._failed(error)
            raise

    if TYPE_CHECKING:  # of the job

        def _call_checked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            """Any other call, or one that has to be prepared anew."""

        def _failed(self, error: BaseException) -> bool:
            """Told the error of a call: gives it the traceback that users see. Returns whether the call has to be made again."""


_extension = native.fast_path()
if not TYPE_CHECKING and _extension is not None:
    Prepared = _extension.Prepared
