"""Definitions of ops: a function over arrays, and the facts about it that cannot be derived from the function."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .repetition import Repetition

Autocast = Literal["never", "between", "always"]
LstmPart = Literal["logistic", "hyperbolic", "product", "sum", "shift", "joined"]


@dataclass(frozen=True, slots=True)
class Native:
    """Another lowering of an op, by the native part, for CPUs.

    Attributes:
      lower: ``lower(*arrays, **attrs)``, in place of the op's ``define`` where ``unsupported_reason`` is None. The gradient
        is its vjp.
      unsupported_reason: ``unsupported_reason(arrays, attrs)`` says why it cannot compute a call; None where it can.
        ``arrays`` have shape and dtype.
      describe: ``describe(arrays, attrs)`` names the kernel that computes a call.
      sharded: what each device computes of arrays that are sharded over several; ``lower`` is then given ``sharded=True``.
        "" where it does not take such arrays.
      narrows: it computes float32 arrays in bfloat16 if ``lower`` is given ``narrow=True``; it may then keep arrays in float32
        where that costs less (weights, and their gradients).
      follows: in mixed precision it reads its float32 inputs in bfloat16 where they come from an op that computes in bfloat16.
      narrowed_inputs: ``narrowed_inputs(attrs)`` says how many of the inputs, from the first on, are read in bfloat16 then; None
        for all.
      any_layout: it takes arrays with the channels at axis 1 as well as with channels last, so that none is transposed for it.
    """

    lower: Callable[..., Any]
    unsupported_reason: Callable[[Sequence[Any], Mapping[str, Any]], str | None]
    describe: Callable[[Sequence[Any], Mapping[str, Any]], str]
    sharded: str = "sharded over the batch"
    narrows: bool = True
    follows: bool = False
    narrowed_inputs: Callable[[Mapping[str, Any]], int] | None = None
    any_layout: bool = False


@dataclass(frozen=True, slots=True)
class FusedRule:
    """An update rule that the native part computes in one pass over a variable x, its slots and its gradient g.

    "sgd": x <- x - rate * g - decay * x.
    "momentum": m <- beta1 * m - rate * g; x <- x + m - decay * x.
    "adam": m <- beta1 * m + gain1 * g; v <- beta2 * v + gain2 * g^2; x <- x - rate * m / (root * sqrt(v) + epsilon) - decay * x.

    Attributes:
      kind: "sgd", "momentum" or "adam".
      slots: the suffixes of the slots m and v.
      constants: (beta1,) of "momentum"; (beta1, gain1, beta2, gain2, epsilon) of "adam".
    """

    kind: str
    slots: tuple[str, ...]
    constants: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class IntegerProduct:
    """A product or convolution of data and weights, as int8 inference and fused products compute it (``compiler/int8.py``,
    ``compiler/fusion.py``).

    Attributes:
      data_perm: the permutation that brings data to (N, ..., C); None where it is in that order.
      weight_perm: the permutation that brings weights to (O, ..., I).
      strides, dilations, padding: per spatial axis; empty for a matrix product.
      groups: of channels.
    """

    data_perm: tuple[int, ...] | None
    weight_perm: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    groups: int = 1


@dataclass(frozen=True, slots=True)
class IntegerGrid:
    """The grid that an op rounds its first input to, whose scale and zero point are its other inputs.

    ``affine``: unsigned with a zero point, otherwise symmetric around 0. ``exponent``: the scale is the exponent of a power of 2.
    """

    bits: int
    affine: bool
    exponent: bool


Details = IntegerProduct | IntegerGrid | tuple[Any, Any] | str | bool


@dataclass(frozen=True, slots=True, eq=False)
class Int8:
    """The part that an op has in int8 inference, and where the ops behind a product are fused into it.

    Attributes:
      role: "product": of data (input 0) and weights (input 1). "channelwise": per channel an affine function of input 0, the
        other inputs being constant. "rectify" (max(x, 0)), "gate" (x times the normal distribution's function), "bound"
        (min(max(x, low), high); not in int8), "residual" (a sum of two): can be computed behind a product. "largest": takes the
        largest of some elements of its input, in integers too. "grid": rounds input 0 to a grid. "statistics": measures input 0.
      details: ``details(attrs, shapes)`` returns the IntegerProduct of a product, or a sentence that says why it has none, or the
        IntegerGrid of a "grid", or (low, high) of a "bound", or whether "statistics" are kept ones, which input 0 does not
        change. ``shapes`` are those of its inputs.
    """

    role: Literal["product", "channelwise", "rectify", "gate", "bound", "residual", "largest", "grid", "statistics"]
    details: Callable[[Mapping[str, Any], Sequence[tuple[int, ...]]], Details] | None = None


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """What an op with certain attributes computes where it is a step of attention (``compiler/attention.py``).

    Attributes:
      kind: "product": of the matrices in inputs 0 and 1, times ``factor``. "multiple": ``factor`` times its input. "sum": of
        input 0 and ``factor`` (1 or -1) times input 1. "triangle": ``factor`` times its input where the column is at most the
        row + ``diagonal``, elsewhere ``fill``. "weights": exponentials along ``axis``, divided by their sum. "axes": its input,
        whose axes are permuted by ``perm``. "packed product": of queries and keys in one array with the values, which are
        output 1; ``size`` is that of a head.
      transposed: which of the two matrices of a product are transposed first.
    """

    kind: Literal["product", "packed product", "multiple", "sum", "triangle", "weights", "axes"]
    factor: float = 1.0
    transposed: tuple[bool, bool] = (False, False)
    diagonal: int = 0
    fill: float = 0.0
    axis: int = -1
    perm: tuple[int, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """What an op with certain attributes computes that normalizes with the statistics of a batch (``compiler/batch_norm.py``).

    Its inputs are x, then gamma if ``scale``, beta if ``center``, the moving mean and the moving variance. Its outputs are the
    result, both new moving statistics, and two vectors that nothing but its gradient reads.

    Attributes:
      axis: of the channels.
      epsilon: is added to the variance.
      momentum: moving statistics become momentum * old + (1 - momentum) * new.
    """

    axis: int
    epsilon: float
    momentum: float
    scale: bool
    center: bool


@dataclass(frozen=True, slots=True, eq=False)
class HostRule:
    """How an op runs on the host, over NumPy values, before the step.

    There the value of a Blob is an ndarray; of a Blob of tensor buffers or records, a list with one element for each, in
    row-major order; of a tensor list, a tuple of ndarrays.

    Attributes:
      run: ``run(*values, **attrs)`` returns the output, or a tuple of outputs if the op has ``multiple_results``. For a
        reader, ``run(seed, **attrs)`` returns an object with ``next()`` (the outputs of the next batch, as a tuple),
        ``mark()`` (cheap; returns a function that returns the position as JSON-able data), ``restore(state)`` and ``close()``.
        A reader whose ``next`` raised is in an undefined state: another one is made and restored.
      reader: ``run`` makes a reader, which is asked for one batch per call, in order.
      per_sample: sample i of each output depends on sample i of the inputs alone, so that parts of a batch can run in
        parallel.
      random: ``random(seed, call, count, **attrs)`` returns an array with a row of random numbers for each sample of a call;
        ``run`` gets the rows of its samples as the keyword ``draws``. ``seed`` is the attribute of that name, or is derived
        from the session's seed and the node's name; the attribute itself is passed to neither function.
      counter: ``counter(attrs)`` names the variable that counts the batches of a reader, or None. Where a value is loaded into
        it, the reader goes on behind that many batches: it is given the state ``{"batches": n}``.
      only: the op runs on the host alone. Other ops run there only if a host op needs their output.
    """

    run: Callable[..., Any]
    reader: bool = False
    per_sample: bool = False
    random: Callable[..., Any] | None = None
    counter: Callable[[Mapping[str, Any]], str | None] = lambda attrs: None
    only: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class OpDef:
    """One kind of node. The compiler relies on these fields alone and never looks at the name.

    Attributes:
      name: the op's type, e.g. ``conv2d``.
      define: ``define(*arrays, **attrs)`` returns the output array, or a tuple of outputs if ``multiple_results``. It is the
        lowering; its abstract evaluation is the shape rule and its vjp the gradient.
      grad: ``grad(inputs, outputs, cotangents, **attrs)`` returns one cotangent (None for zero) per input, if the gradient
        differs from the vjp of ``define``. A native lowering has its own. ``inputs``, ``outputs`` and ``cotangents`` are tuples.
      nondifferentiable: positions of inputs that never receive a gradient (labels, indices, masks); True for all of them.
      multiple_results: ``define`` returns a tuple of outputs.
      random: ``define`` takes a further keyword ``key``, a JAX random key that differs from call to call.
      batch_inputs: positions of the inputs whose sample i (index i on axis 0) affects only sample i of the outputs, while the
        other inputs affect all samples; several positions if operands broadcast, none if samples mix.
      channels_last: ``channels_last(attrs, rank)`` returns the attributes with which the op computes the same on arrays whose
        axis 1 was moved to the end, or None if there are none. ``as_is`` if none depends on axes.
      elementwise: element i of its output depends on element i of each input alone, after broadcasting. Implies
        ``channels_last=as_is``.
      heavy: expensive enough to run on slices of the batch (see ``compiler/batch_slices.py``).
      native: its lowering by the native part, if it has one.
      host: how it runs on the host, for readers, decoders and image ops (see ``compiler/host_plan.py``).
      callback: it runs Python code of the user in the middle of a step (see ``graph/callback.py``).
      autocast: whether it computes in 16 bits in a job with automatic mixed precision: "always", "between" (only between ops
        that do) or "never".
      newer_autocast: the same in jobs of 0.6, where that release's lists differ.
      autocast_first_only: only the first input and output are cast; statistics, scale and offset stay float32.
      repeats: how it begins or ends a part of a job that runs several times per call.
      keeps_values: its output holds the elements of its first input, in order, possibly with another shape or dtype.
      labels: (i, j) for a loss whose input i holds class labels, for the classes along the last axis of input j.
      gathers_rows: ``gathers_rows(attrs)`` says whether it reads only the rows of its first input that its second one names.
      zeros: its outputs are zeros where "all" or "any" of its inputs are. "any" means a product, whose gradient to one input is
        zero where another one is.
      flat_at_zero: its derivative at 0 is 0.
      seeks_output: ``grad`` looks for its output among its inputs, so that the output must not be rounded by itself.
      of_user: a program has registered it; its lowering may do what others do not, such as to call Python code.
      int8: its part in int8 inference and in fused products, if it has one.
      attention: ``attention(attrs)`` says which step of attention it may be; None for none.
      batch_norm: ``batch_norm(attrs)`` says what it computes, if it normalizes with the statistics of a batch.
      adds_up: ``adds_up(attrs, shapes)`` says whether the gradient to input 1 is the sum of those of pieces that input 0 and the
        output are cut into along axis 0. ``shapes`` are those of its inputs.
      region: ``region(attrs, shape)`` returns what its output holds of its first input, which has that shape: (start, stop)
        for each axis, in order and without gaps; None if that is not a block.
      lstm: its part in a step of an LSTM, if it may have one (``compiler/lstm_cell.py``): the logistic function, the hyperbolic
        tangent, a product or a sum of two arrays, a sum with the attribute ``number`` ("shift"), or arrays joined along the
        attribute ``axis``.
      stacks: it joins its inputs along a new axis, its attribute ``axis``.
      lays_out: it brings its first input to the layout of its attribute ``distribute``, and its gradient to that of
        ``gradient_distribute``.
      takes_mesh: ``define`` takes a further keyword ``mesh``, the mesh of the node's placement; None for one device.
      undivided: ``undivided(attrs, inputs, outputs, devices)`` says which axes of its Blobs are not split over several devices.
        XLA ends the process where it cannot divide a computation.
    """

    name: str
    define: Callable[..., Any]
    grad: Callable[..., tuple[Any, ...]] | None = None
    nondifferentiable: frozenset[int] | bool = frozenset()
    multiple_results: bool = False
    random: bool = False
    batch_inputs: tuple[int, ...] = ()
    channels_last: Callable[[Mapping[str, Any], int], Mapping[str, Any] | None] | None = None
    elementwise: bool = False
    heavy: bool = False
    native: Native | None = None
    host: HostRule | None = None
    callback: bool = False
    autocast: Autocast = "never"
    newer_autocast: Autocast | None = None
    autocast_first_only: bool = False
    repeats: Repetition | None = None
    keeps_values: bool = False
    labels: tuple[int, int] | None = None
    gathers_rows: Callable[[Mapping[str, Any]], bool] | None = None
    zeros: Literal["all", "any"] | None = None
    flat_at_zero: bool = False
    seeks_output: bool = False
    of_user: bool = False
    lays_out: bool = False
    takes_mesh: bool = False
    undivided: Callable[[Mapping[str, Any], Sequence[Any], Sequence[Any], int], Container[int]] | None = None
    int8: Int8 | None = None
    attention: Callable[[Mapping[str, Any]], AttentionStep | None] | None = None
    batch_norm: Callable[[Mapping[str, Any]], BatchNorm] | None = None
    adds_up: Callable[[Mapping[str, Any], Sequence[tuple[int, ...]]], bool] | None = None
    region: Callable[[Mapping[str, Any], tuple[int, ...]], tuple[tuple[int, int], ...] | None] | None = None
    lstm: LstmPart | None = None
    stacks: bool = False

    def __post_init__(self) -> None:
        if self.elementwise:
            object.__setattr__(self, "channels_last", as_is)

    @property
    def on_host(self) -> bool:
        """Whether it runs on the host alone."""
        return self.host is not None and self.host.only

    @property
    def draws(self) -> bool:
        """Whether its outputs are others each time it runs: batches of a reader, or random numbers."""
        return self.random or (self.host is not None and (self.host.reader or self.host.random is not None))

    def is_nondifferentiable(self, position: int) -> bool:
        """Whether no gradient flows to the input at ``position``."""
        return self.nondifferentiable if isinstance(self.nondifferentiable, bool) else position in self.nondifferentiable

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def as_is(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """``channels_last`` of ops whose attributes do not depend on axes."""
    return attrs


def with_moved_axis(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """``channels_last`` of ops whose only attribute that depends on axes is ``axis``."""
    return {**attrs, "axis": moved_axis(attrs["axis"], rank)}


def moved_axis(axis: int, rank: int) -> int:
    """Where an axis is after axis 1 was moved to the end."""
    return axis if axis < 1 else rank - 1 if axis == 1 else axis - 1


def moved_entries(entries: Sequence[Any]) -> tuple[Any, ...]:
    """What belongs to each axis, in the order of the axes after axis 1 was moved to the end."""
    return (entries[0], *entries[2:], entries[1])
