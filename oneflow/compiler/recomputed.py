"""Values that are stored, because XLA would compute them again in many of its loops.

XLA's CPU compiler fuses an elementwise equation into each loop that reads it. Where every step of a recurrence is read by the
next one and by something else, every loop computes all steps before its own, as for an average ``s = a * s + (1 - a) * x[t]``
whose values are all results: for n steps both the program and the time to run it grow with n ** 2.

A value that would be computed in more than ``_LOOPS`` loops passes through a computation of its own, which XLA calls and fuses
with nothing: it does nothing, but what it gets is in memory. So does one behind ``_LONGEST`` equations that would become one
loop, which XLA would compile for minutes; and what is joined, where more is joined with it besides: as by densely connected
layers, whose loops would have a branch for each piece. What becomes one loop is told by the rules of XLA's fusion of
instructions, as far as a few properties of an equation can tell.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from .._base import jax_versions
from .._base.jax import jax
from .options import has_small_products
from .plan import Plan

_LOOPS = 5  # that may compute a value
_WORK = 12  # equations from which a value is computed, of about its size: fewer take no longer than to read it
_LONGEST = 400  # equations in a row that become one loop: XLA takes the square of their number to compile it, and more
_MOST = 1 << 20  # numbers; larger values take longer to store

# Of the primitives of JAX, by what XLA makes of them: a loop that is fused into all of its readers,
_VIEWS = frozenset(
    """bitcast_convert_type broadcast_in_dim concatenate convert_element_type copy expand_dims iota pad reduce_precision reshape
    reshard rev sharding_constraint slice split squeeze transpose""".split()
)
_CHEAP = frozenset(
    """abs add add_any and ceil clamp div eq floor ge gt integer_pow is_finite le logistic lt max min mul ne neg not or round
    select_n shift_left shift_right_arithmetic shift_right_logical sign square sub xor""".split()
)
# a loop that is fused into its reader, and where there are several is not,
_ONCE = frozenset(
    """acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2 expm1 gather lgamma log log1p pow
    rem rsqrt sin sinh sqrt tan tanh""".split()
)
# a loop of its own, or, of many numbers, a call of a library, which takes some equations along. Others fuse with nothing.
_REDUCED = frozenset("reduce_max reduce_min reduce_sum".split())
_TAKEN_ALONG = frozenset("mul square integer_pow".split())
_MANY = 1 << 12


def stored_values(closed: Any, plan: Plan, devices: int = 1) -> Any | None:
    """A closed jaxpr of a plan with calls that store values; None where it needs none.

    None, too, where the ``devices`` have uneven pieces of the batch: those XLA would put together in front of each call.
    """
    from jax.extend.core import ClosedJaxpr, Jaxpr

    is_uneven = devices > 1 and any(b.batch_axis >= 0 and b.shape[b.batch_axis] % devices for b in plan.feeds)
    if plan.platform != "cpu" or is_uneven:
        return None
    jaxpr = closed.jaxpr
    stored = _Fusion(jaxpr, has_library=not has_small_products(plan)).stored()
    if not stored:
        return None
    eqns: list[Any] = []
    instead: dict[int, Any] = {}
    for eqn in jaxpr.eqns:
        eqns.append(eqn.replace(invars=[instead.get(id(var), var) for var in eqn.invars]) if instead else eqn)
        for var in (var for var in eqn.outvars if id(var) in stored):
            (call,) = _calls_that_store(var.aval)
            eqns.append(call.replace(invars=[var], source_info=eqn.source_info))
            (instead[id(var)],) = call.outvars
    results = [instead.get(id(var), var) for var in jaxpr.outvars]
    made = Jaxpr(jaxpr.constvars, jaxpr.invars, results, eqns, jaxpr.effects, debug_info=jaxpr.debug_info)
    return ClosedJaxpr(made, closed.consts)


def _calls_that_store(aval: Any) -> list[Any]:
    array = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    found: list[Any] = jax.make_jaxpr(jax_versions.storing(array))(array).eqns
    return found


class _Fusion:
    """What XLA fuses in a jaxpr. ``has_library``: whether a library reduces arrays of many numbers."""

    def __init__(self, jaxpr: Any, has_library: bool):
        self._eqns = jaxpr.eqns
        self._readers: dict[int, list[Any]] = {}
        self._makers: dict[int, Any] = {}
        for eqn in jaxpr.eqns:
            self._makers.update((id(var), eqn) for var in eqn.outvars)
            for var in _read(eqn):
                self._readers.setdefault(id(var), []).append(eqn)
        self._results = {id(var) for var in jaxpr.outvars}
        self._kinds = {id(eqn): _kind(eqn) for eqn in jaxpr.eqns}
        for eqn in jaxpr.eqns if has_library else ():
            self._note_library(eqn)
        self._kept = {id(var) for eqn in jaxpr.eqns for var in eqn.outvars if self._is_kept(eqn, var)}

    def stored(self) -> set[int]:
        """The values (``id`` of their variables) that are to be stored."""
        work = self._work()
        loops: dict[int, frozenset[int]] = {}  # that compute a value
        found: set[int] = set()
        for eqn in reversed(self._eqns):
            kind, own = self._kinds[id(eqn)], frozenset((id(eqn),))
            for var in eqn.outvars:
                inside = own if kind in (None, _REDUCED) or id(var) in self._kept else self._loops(var, own, loops)
                if kind is _ONCE and len(inside) > 1:
                    inside = own
                elif kind is _CHEAP and len(inside) > _LOOPS and work[id(var)] >= _WORK and _is_storable(var.aval):
                    found.add(id(var))
                    inside = own
                loops[id(var)] = inside
        found |= {id(var) for eqn in self._eqns for var in eqn.outvars if self._is_joined_again(eqn, var)}
        return found | self._ends_of_long_loops(found)

    def _is_joined_again(self, eqn: Any, var: Any) -> bool:
        """Whether a value is made of pieces and, besides something else, a larger one is made of it and others."""
        if eqn.primitive.name != "concatenate" or self._is_in_memory(eqn, var) or not _is_storable(var.aval):
            return False
        readers = [reader.primitive.name for reader in self._readers_of(var)]
        return len(readers) > 1 and "concatenate" in readers

    def _ends_of_long_loops(self, stored: Collection[int]) -> set[int]:
        """The values to be stored besides, so that no loop computes more than ``_LONGEST`` equations in a row."""
        found: set[int] = set()
        depth: dict[int, int] = {}
        for eqn in self._eqns:
            deepest = 1 + max((depth.get(id(var), 0) for var in _read(eqn)), default=0)
            for var in eqn.outvars:
                is_long = deepest >= _LONGEST and self._kinds[id(eqn)] is _CHEAP and _is_storable(var.aval, least=1)
                if is_long:
                    found.add(id(var))
                depth[id(var)] = 0 if is_long or id(var) in stored or self._is_in_memory(eqn, var) else deepest
        return found

    def _note_library(self, eqn: Any) -> None:
        """Where an equation is a call of a library: it fuses with nothing, nor does what is taken along."""
        if eqn.primitive.name not in _REDUCED or eqn.invars[0].aval.size < _MANY:
            return
        self._kinds[id(eqn)] = None
        for var in _read(eqn):
            maker = self._makers.get(id(var))
            if maker is not None and maker.primitive.name in _TAKEN_ALONG and self._readers_of(var) == [eqn]:
                self._kinds[id(maker)] = None

    def _readers_of(self, var: Any) -> list[Any]:
        return self._readers.get(id(var), [])

    def _is_kept(self, eqn: Any, var: Any) -> bool:
        """Whether a value is computed once for something that fuses with nothing, and read from memory by all others."""
        return self._is_needed(var) and not _is_unary(eqn, self._makers)

    def _is_needed(self, var: Any) -> bool:
        """Whether a result, or something that fuses with nothing, needs a value in memory."""
        return id(var) in self._results or not all(self._kinds[id(reader)] for reader in self._readers_of(var))

    def _loops(self, var: Any, own: frozenset[int], loops: dict[int, frozenset[int]]) -> frozenset[int]:
        """The loops that compute a value, at most one more than matters; ``loops`` has those of later ones."""
        found = own if self._is_needed(var) else frozenset()
        for reader in self._readers_of(var):
            if len(found) > _LOOPS:
                break
            if reader.primitive.name == "concatenate":  # has a branch for each of its operands
                found |= {id(reader) + place for place, read in enumerate(reader.invars) if read is var}
            elif self._kinds[id(reader)] is not None:
                found = found.union(*(loops[id(out)] for out in reader.outvars))
        return found

    def _work(self) -> dict[int, int]:
        """How many equations compute each value from those in memory, up to ``_WORK``; of arrays not much smaller than it."""
        found: dict[int, int] = {}
        for eqn in self._eqns:
            kind = self._kinds[id(eqn)]
            size = max((var.aval.size for var in eqn.outvars), default=0)
            inputs = [found.get(id(var), 0) for var in _read(eqn) if 2 * var.aval.size >= size]
            count = min(sum(inputs) + (kind is not _VIEWS), _WORK)
            for var in eqn.outvars:
                found[id(var)] = 0 if self._is_in_memory(eqn, var) else count
        return found

    def _is_in_memory(self, eqn: Any, var: Any) -> bool:
        kind = self._kinds[id(eqn)]
        return kind in (None, _REDUCED) or id(var) in self._kept or (kind is _ONCE and len(self._readers_of(var)) > 1)


def _read(eqn: Any) -> list[Any]:
    """The variables that an equation reads."""
    from jax.extend.core import Literal

    return [var for var in eqn.invars if not isinstance(var, Literal)]


def _is_unary(eqn: Any, makers: dict[int, Any]) -> bool:
    """Whether all but one of an equation's operands are spread over its result. XLA computes it again even if it is in memory."""
    rank = max((var.aval.ndim for var in eqn.outvars), default=0)
    spread = [id(var) in makers and makers[id(var)].primitive.name == "broadcast_in_dim" for var in _read(eqn)]
    return sum(not is_spread and var.aval.ndim >= rank for var, is_spread in zip(_read(eqn), spread, strict=True)) <= 1


def _is_storable(aval: Any, least: int = 2) -> bool:
    return least <= aval.size <= _MOST and aval.ndim > 0 and aval.dtype in (np.float32, np.float64)


def _kind(eqn: Any) -> frozenset[str] | None:
    """The set that an equation belongs to; None for one that fuses with nothing."""
    name = eqn.primitive.name
    for names in (_CHEAP, _VIEWS, _ONCE, _REDUCED):
        if name in names:
            return names
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr", eqn.params.get("call")))
    if inner is None or not hasattr(inner, "eqns") or name in ("while", "scan", "cond"):
        return None
    kinds = set()
    for each in inner.eqns:
        kind = _kind(each)
        if kind is None:  # at the first one: a part of a long step has a thousand more
            return None
        kinds.add(kind)
    return next((k for k in (_REDUCED, _ONCE) if k in kinds), _CHEAP)
