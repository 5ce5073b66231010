"""OneRec: the reader of framed, checksummed examples, and the decoder of their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.refuse import shown
from ..data.onerec import OneRecSource, decode_onerec
from ..data.records import Records
from ..errors import ArgumentError
from ..graph.node import Blob
from ._arrays import label
from ._emit import fail, want
from ._host import emit_host, host_op, want_bool, want_buffer, want_dtype, want_int, want_one_axis, want_sizes, want_str
from ._readers import Instances, max_record_bytes, want_counts, want_path, want_seed

Array = Any
_DTYPES = (dtypes.int8, dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64)


class Payloads(list[np.ndarray]):
    """The bytes of examples; ``records`` knows the file and the place of each."""

    def __init__(self, records: Records):
        super().__init__(np.frombuffer(record, np.int8) for record in records)
        self.records = records
        self.where = records.where


@host_op("OneRecReader", reader=True)
def _onerec_reader(seed: int, *, files: tuple[str, ...], counts: tuple[int, ...], **options: Any) -> Instances:
    shards, limit = len(counts), max_record_bytes()
    sources = [OneRecSource(files, shard=i, shards=shards, seed=seed, max_record_bytes=limit, **options) for i in range(shards)]
    return Instances(sources, lambda source, i: source.take(counts[i]), lambda parts: (Payloads(Records.concat(parts)),))


def onerec_reader(
    files: Sequence[str],
    batch_size: int = 1,
    random_shuffle: bool = False,
    shuffle_mode: str = "instance",
    shuffle_buffer_size: int = 1024,
    shuffle_after_epoch: bool = False,
    verify_example: bool = True,
    name: str | None = None,
    *,
    random_seed: int | None = None,
) -> Blob:
    """The next examples of OneRec files, at each call; endless.

    Args:
      files: their paths; at least as many as devices, each of which reads its share.
      batch_size: examples per call; a multiple of the number of devices.
      random_shuffle: examples are drawn at random from a buffer.
      shuffle_mode: "instance", or "batch": the buffer holds whole batches.
      shuffle_buffer_size: size of that buffer.
      shuffle_after_epoch: the list of files is shuffled before the first epoch and after each.
      verify_example: checks that each example is well-formed.
      name: name of the op; made unique when omitted.
      random_seed: of the shuffling; None draws on the session's seed and the op's name.
    Returns: tensor buffers (batch_size,) of bytes, for ``flow.data.OneRecDecoder``.
    Raises: ArgumentError; DataError at the call that needs what is missing or damaged.
    Example: >>> examples = flow.data.onerec_reader(["a.onerec", "b.onerec"], batch_size=16)
    """
    what = label("onerec_reader", name)
    if not isinstance(files, (list, tuple)) or not files:
        fail(ArgumentError, what, f"files must be a list or tuple of paths, got {shown(files)}")
    counts = want_counts(what, batch_size)
    if len(files) < len(counts):
        fail(ArgumentError, what, f"there must be at least as many files as devices, {len(counts)}, got {len(files)}")
    return emit_host(
        _onerec_reader, outputs=[((sum(counts),), dtypes.tensor_buffer)], name=name, prefix="OneRecReader",
        seed=want_seed(what, random_seed),
        files=tuple(want_path(what, f"files[{i}]", f) for i, f in enumerate(files)), counts=counts,
        random_shuffle=want_bool(what, "random_shuffle", random_shuffle),
        shuffle_mode=want.choice(what, "shuffle_mode", shuffle_mode, ("instance", "batch")),
        buffer_size=want_int(what, "shuffle_buffer_size", shuffle_buffer_size),
        shuffle_after_epoch=want_bool(what, "shuffle_after_epoch", shuffle_after_epoch),
        verify=want_bool(what, "verify_example", verify_example),
    )[0]  # fmt: skip


@host_op("onerec_decoder")
def _onerec(
    payloads: Sequence[Array], *, key: str, shape: tuple[int, ...], dtype: np.dtype, dynamic: bool, **options: Any
) -> Array:  # fmt: skip
    return decode_onerec(getattr(payloads, "records", payloads), key, dtype, shape, is_dynamic=dynamic, **options)


def OneRecDecoder(
    input_blob: Blob,
    key: str,
    dtype: dtype,
    shape: Sequence[int],
    is_dynamic: bool = False,
    reshape: Sequence[int] | None = None,
    batch_padding: Sequence[int] | None = None,
    name: str | None = None,
) -> Blob:
    """The numbers of one feature of OneRec examples.

    Args:
      input_blob: tensor buffers (N,) of bytes, made by ``flow.data.onerec_reader``.
      key: name of the feature.
      dtype: int8, int32, int64, float32 or float64.
      shape: of a sample.
      is_dynamic: whether the sizes of the result may be smaller than ``shape``.
      reshape: of the same rank; one entry may be -1.
      batch_padding: of the same rank, only the first entry may be non-zero: -1 pads to the largest of the batch, k > 0 to k.
        The first size of an example may be smaller than that of ``shape`` then.
      name: name of the op; made unique when omitted.
    Returns: Blob of ``(N,) + shape``; its size varies where ``is_dynamic``.
    Raises: DtypeError, ArgumentError; DataError at the call whose examples do not fit.
    Example: >>> labels = flow.data.OneRecDecoder(examples, "label", flow.int32, shape=(1,))
    """
    what = label("onerec_decoder", name)
    blob = want_one_axis(what, "input_blob", want_buffer(what, "input_blob", input_blob, "flow.data.onerec_reader"))
    kind, sizes = want_dtype(what, "dtype", dtype, _DTYPES), want_sizes(what, "shape", shape)
    if reshape is not None and (len(want_sizes(what, "reshape", reshape, least=-1)) != len(sizes) or list(reshape).count(-1) > 1):
        fail(ArgumentError, what, f"reshape must have {len(sizes)} entries, at most one of them -1, got {shown(reshape)}")
    if batch_padding is not None:
        padding = want_sizes(what, "batch_padding", batch_padding, least=-1)
        if len(padding) != len(sizes) or any(padding[1:]):
            wanted = f"must have {len(sizes)} entries, all but the first 0"
            fail(ArgumentError, what, f"batch_padding {wanted}, got {shown(batch_padding)}")
        if padding and padding[0] > sizes[0]:
            fail(ArgumentError, what, f"batch_padding pads to {padding[0]} rows, more than shape {sizes} allows")
    dynamic = want_bool(what, "is_dynamic", is_dynamic)
    return emit_host(
        _onerec, blob, outputs=[((*blob.shape, *sizes), kind)], name=name, prefix="OneRecDecoder", is_dynamic=dynamic,
        key=want_str(what, "key", key), shape=sizes, dtype=kind.numpy_dtype, dynamic=dynamic,
        reshape=None if reshape is None else tuple(map(int, reshape)),
        batch_padding=None if batch_padding is None else tuple(map(int, batch_padding)),
    )[0]  # fmt: skip


onerec_decoder = OneRecDecoder
