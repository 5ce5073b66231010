"""The reader of token streams."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import check
from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.refuse import shown
from .._variables.initializers import zeros_initializer
from ..data.gpt import IndexedTokens, SampleStream, TokenBatches, part_of
from ..errors import ArgumentError, DtypeError
from ..graph.graph import current
from ..graph.node import Blob
from ._arrays import label
from ._emit import fail
from ._host import emit_host, host_op, want_bool, want_int
from ._readers import want_path
from .array import assign
from .binary import add
from .distribution import layout_entries, one_layout
from .variable import get_variable


@host_op("megatron_gpt_mmap_data_loader", reader=True, counter=lambda attrs: attrs["counter"])
def _token_reader(
    session_seed: int, *, path: str, seq_length: int, num_samples: int, batch_size: int, to: np.dtype,
    order_seed: int | None, sizes: tuple[float, ...], which: int, counter: str | None,
) -> TokenBatches:  # fmt: skip
    tokens = IndexedTokens(path)
    documents = part_of(len(tokens.lengths), sizes, which)
    stream = SampleStream(tokens, documents, seq_length, num_samples, order_seed)
    return TokenBatches(stream, batch_size, to, resumes=counter is not None)


def megatron_gpt_mmap_data_loader(
    data_file_prefix: str,
    seq_length: int,
    num_samples: int,
    batch_size: int,
    dtype: dtype = dtypes.int64,
    shuffle: bool = True,
    random_seed: int | None = None,
    split_sizes: Sequence[int | float] | None = None,
    split_index: int | None = None,
    parallel_distribution: Any = None,
    start_from_saved_progress: bool = False,
    name: str | None = None,
    nd_sbp: Any = None,
) -> Blob:
    """The next samples of a token stream, at each call; the training data of a GPT.

    The files are those of Megatron's indexed data sets. A sample has seq_length + 1 tokens; its last is the first of the next.

    Args:
      data_file_prefix: path of ``<prefix>.idx`` and ``<prefix>.bin``.
      seq_length: tokens of a sample, less one.
      num_samples: the number that the program will use; determines the number of epochs.
      batch_size: samples per call.
      dtype: int32 or int64.
      shuffle: documents and samples in random orders.
      random_seed: of these orders; None takes the time.
      split_sizes: proportions in which documents are split into parts, such as (949, 50, 1); None: one part.
      split_index: the part that is read; None: the first.
      parallel_distribution, nd_sbp: the layout, one entry for each axis of the placement's hierarchy; [] and None mean that
        batches are split along axis 0. It has no effect but in the counter's name.
      start_from_saved_progress: counts batches in a variable, and continues behind the count of the loaded checkpoint.
      name: name of the op; made unique when omitted.
    Returns: Blob (batch_size, seq_length + 1).
    Raises: ArgumentError, DtypeError; DataError at the call that needs missing or damaged data, or too many samples.
    Example: >>> tokens = flow.data.megatron_gpt_mmap_data_loader("corpus", 1024, 10000, 8, split_sizes=(949, 50, 1))
    """
    what = label("megatron_gpt_mmap_data_loader", name)
    path = want_path(what, "data_file_prefix", data_file_prefix)
    if not isinstance(dtype, dtypes.dtype) or dtype not in (dtypes.int32, dtypes.int64):
        fail(DtypeError, what, f"dtype must be flow.int32 or flow.int64, got {shown(dtype)}")
    sizes, which = _want_split(what, split_sizes, split_index)
    seed = int(time.time()) if random_seed is None else want_int(what, "random_seed", random_seed, least=0)
    length, count, size = (
        want_int(what, argument, value)
        for argument, value in (("seq_length", seq_length), ("num_samples", num_samples), ("batch_size", batch_size))
    )
    layout = "S0"
    given = one_layout(what, parallel_distribution, nd_sbp)
    if given is not None and not (isinstance(given, (list, tuple, str)) and not given):
        entries = layout_entries(what, "nd_sbp", given, 2)
        layout = "_".join("B" if entry.axis is None else f"S{entry.axis}" for entry in entries)
    parts = "_".join(map(str, sizes))
    counter = f"{name or 'gpt_data_loader'}-iteration-sq{length}-sa{count}-bs{size}-sd{seed}-sp{parts}-spi{which}-{layout}"
    resumes = want_bool(what, "start_from_saved_progress", start_from_saved_progress)
    graph = current(what)
    tokens = emit_host(
        _token_reader, outputs=[((size, length + 1), dtype)], name=name, prefix="MegatronGPTMMapDataLoader",
        path=path, seq_length=length, num_samples=count, batch_size=size, to=dtype.numpy_dtype,
        order_seed=seed if want_bool(what, "shuffle", shuffle) else None, sizes=sizes, which=which,
        counter=graph.scope.namespace + counter if resumes else None,
    )[0]  # fmt: skip
    if resumes:
        batches = get_variable(counter, (1,), dtypes.int64, zeros_initializer(), trainable=False)
        assign(batches, add(batches, graph.accumulation_steps))
    return tokens


def _want_split(what: str, split_sizes: Any, split_index: Any) -> tuple[tuple[float, ...], int]:
    """The proportions of the parts, and the index of one of them."""
    sizes = (1,) if split_sizes is None else tuple(split_sizes) if isinstance(split_sizes, (list, tuple)) else ()
    if not sizes or any(check.number(s, low=0)[1] for s in sizes) or sum(sizes) <= 0:
        fail(ArgumentError, what, f"split_sizes must be a list of numbers >= 0, got {shown(split_sizes)}")
    which = 0 if split_index is None else want_int(what, "split_index", split_index, least=0)
    if which >= len(sizes):
        fail(ArgumentError, what, f"split_index={which} is outside the {len(sizes)} parts of split_sizes")
    return sizes, which


MegatronGPTMMapDataLoader = megatron_gpt_mmap_data_loader
