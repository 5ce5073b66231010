"""OFRecords: the messages, part files, and finding features in many records at once."""

from __future__ import annotations

import math
import os
import re
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oneflow.core.record import record_pb2 as pb
from oneflow.data import wire
from oneflow.data.decoders import decode_bytes, decode_raw, numbers
from oneflow.data.parts import PartFile, PartWriter, part_name, part_paths, read_part, write_parts
from oneflow.data.records import Records
from oneflow.errors import ArgumentError, DataError, FeatureError, PartNotFoundError, RecordError

LISTS = {
    "float_list": (pb.FloatList, np.float32, st.floats(width=32, allow_nan=False)),
    "double_list": (pb.DoubleList, np.float64, st.floats(allow_nan=False)),
    "int32_list": (pb.Int32List, np.int32, st.integers(-(2**31), 2**31 - 1)),
    "int64_list": (pb.Int64List, np.int64, st.integers(-(2**63), 2**63 - 1)),
    "bytes_list": (pb.BytesList, np.uint8, st.binary(max_size=300)),
}


def feature(kind: str, values: list) -> pb.Feature:
    return pb.Feature(**{kind: LISTS[kind][0](value=values)})


def record(**features: tuple[str, list]) -> pb.OFRecord:
    return pb.OFRecord(feature={name: feature(*value) for name, value in features.items()})


@st.composite
def features(draw, names=st.text(min_size=0, max_size=12)):
    kinds = st.sampled_from(sorted(LISTS))
    return {
        name: (kind, draw(st.lists(LISTS[kind][2], max_size=5)))
        for name, kind in draw(st.dictionaries(names, kinds, max_size=8)).items()
    }


def as_protobuf_sees_it(records: list[bytes], name: str) -> list[tuple[str | None, list]]:
    seen = []
    for data in records:
        message = pb.OFRecord.FromString(data)
        kind = message.feature[name].WhichOneof("kind") if name in message.feature else None
        seen.append((kind, list(getattr(message.feature[name], kind).value) if kind else []))
    return seen


def as_we_see_it(batch: Records, name: str) -> list[tuple[str | None, list]]:
    found, seen = batch.find(name, missing=True), []
    for i in range(len(batch)):
        kind = wire.KINDS[int(found.kind[i])] if found.kind[i] else None
        values: list = []
        if kind == "bytes_list":
            spans = wire.bytes_spans(found.data, int(found.start[i]), int(found.length[i]))
            values = [found.data[a : a + n].tobytes() for a, n in spans] if spans is not None else ["?"]
        elif kind:
            size = len(as_protobuf_sees_it([batch[i]], name)[0][1])
            dtype = LISTS[kind][1]
            values = decode_raw(batch[i : i + 1], name, (size,), dtype)[0].tolist()
        seen.append((kind, values))
    return seen


# --- the messages


def test_messages_are_wire_compatible() -> None:
    """Bytes written down by hand, from the format's description."""
    made = record(a=("float_list", [1.0]))
    expected = b"\x0a\x0d" + b"\x0a\x01a" + b"\x12\x08" + b"\x12\x06" + b"\x0a\x04" + struct.pack("<f", 1.0)
    assert made.SerializeToString() == expected
    assert record(b=("int32_list", [-1])).SerializeToString().endswith(b"\x22\x0c\x0a\x0a" + b"\xff" * 9 + b"\x01")
    again = pb.OFRecord.FromString(expected)
    assert list(again.feature["a"].float_list.value) == [1.0] and again == made
    assert [f.name for f in pb.Feature.DESCRIPTOR.oneofs_by_name["kind"].fields] == [
        "bytes_list", "float_list", "double_list", "int32_list", "int64_list",
    ]  # fmt: skip


def test_other_modules_of_core() -> None:
    from oneflow.core.common import data_type_pb2
    from oneflow.core.job import initializer_conf_pb2, regularizer_conf_pb2
    from oneflow.core.operator import op_conf_pb2

    assert (op_conf_pb2.kNone, op_conf_pb2.kTanH, op_conf_pb2.kSigmoid, op_conf_pb2.kRelu) == (0, 1, 2, 3)
    assert (data_type_pb2.kFloat, data_type_pb2.kTensorBuffer) == (2, 10)
    assert (initializer_conf_pb2.kAverage, initializer_conf_pb2.kTruncatedNormal) == (2, 2)
    conf = initializer_conf_pb2.InitializerConf()
    conf.random_normal_conf.mean = 1
    assert conf.WhichOneof("type") == "random_normal_conf"
    assert regularizer_conf_pb2.RegularizerConf().ByteSize() == 0
    assert op_conf_pb2.OperatorConf(name="x", device_tag="gpu").name == "x"
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = op_conf_pb2.Nonsense


# --- features of many records, against the protobuf library


@settings(max_examples=40, deadline=None)
@given(st.lists(features(), min_size=1, max_size=6))
def test_scanner_agrees_with_protobuf(made) -> None:
    data = [m.SerializeToString() for m in (record(**f) for f in made)]
    batch = Records.of(data)
    for name in {n for f in made for n in f} | {"absent"}:
        assert as_we_see_it(batch, name) == as_protobuf_sees_it(data, name)


@settings(max_examples=60, deadline=None)
@given(st.lists(features(names=st.sampled_from("abc")), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_unusual_spellings_agree_with_protobuf(made, random) -> None:
    """Joined messages (fields repeat), unknown fields, unpacked lists: all legal."""
    data = []
    for f in made:
        one = record(**f).SerializeToString()
        extras = [
            b"",
            record(a=("int64_list", [7])).SerializeToString(),
            b"\x10\x05",  # field 2, unknown
            b"\x0a\x0b\x0a\x01b\x12\x06\x22\x04\x08\x05\x08\x06",  # b: int32_list 5, 6, not packed
            b"\x0a\x13\x0a\x01c\x12\x0e\x12\x06\x0a\x04\0\0\x80?\x12\x04\x0a\x00\x0a\x00",  # c: two float lists, merged
        ]
        data.append(one + random.choice(extras))
    batch = Records.of(data)
    for name in "abc":
        assert as_we_see_it(batch, name) == as_protobuf_sees_it(data, name)


@given(features(), st.data())
def test_records_that_differ_in_their_values_alone(made, data) -> None:
    """Records of one layout are located together; which ones those are, and where, agrees with going through each."""
    plain = bytearray(record(**made).SerializeToString())
    for _ in range(data.draw(st.integers(0, 2)) if plain else 0):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    copies = [bytearray(plain) for _ in range(data.draw(st.integers(2, 4)))]
    for copy in copies if plain else []:
        for _ in range(data.draw(st.integers(0, 2))):
            copy[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    batch = Records.of([bytes(copy) for copy in copies])
    block = batch._block
    together = wire._scan_alike(block.data, block.starts, block.lengths)
    each = wire._scan_any(block.data, block.starts, block.lengths, 8)
    if all(copy == copies[0] for copy in copies) and plain and not each.irregular:
        assert together is not None
    if together is not None:
        assert not each.irregular
        for key in each.pieces.keys() | together.pieces.keys():
            a, b = together.column(key), each.column(key)
            assert (a.kind == b.kind).all()
            assert all((x[a.kind > 0] == y[a.kind > 0]).all() for x, y in ((a.start, b.start), (a.length, b.length)))


@pytest.mark.parametrize(
    "entry", [b"\x0a\x01a\x12\x00\x12\x05\x0a\x03\x0a\x01z", b"\x0a\x01a\x12\x00\x0a\x01b"], ids=["value again", "key again"]
)
def test_copies_of_unusual_spellings_agree_with_protobuf(entry: bytes) -> None:
    data = [b"\x0a" + bytes([len(entry)]) + entry] * 3
    for name in "ab":
        assert as_we_see_it(Records.of(data), name) == as_protobuf_sees_it(data, name)


def test_copies_of_a_record_whose_value_is_longer_than_it_says() -> None:
    value = b"\x22\x05\x0a\x03\x01\x02\x03"
    entry = b"\x0a\x01a\x12" + bytes([len(value) - 4]) + value
    with pytest.raises(RecordError):
        decode_raw(Records.of([b"\x0a" + bytes([len(entry)]) + entry] * 3), "a", (3,), np.int32)


@pytest.mark.parametrize("kind", ["float_list", "int32_list", "bytes_list"])
def test_decoded_arrays_are_the_callers_own(kind: str) -> None:
    dtype = LISTS[kind][1]
    batch = Records.of([record(x=(kind, [bytes([i] * 8)] if kind == "bytes_list" else [i] * 8)) for i in range(6)])
    before = decode_raw(batch[2:5], "x", (2, 4), dtype)
    assert before[:, 0, 0].tolist() == [2, 3, 4] and before.flags.c_contiguous and before.flags.writeable
    before[:] = 77
    assert decode_raw(batch[2:5], "x", (8,), dtype)[:, 7].tolist() == [2, 3, 4]


def test_records_with_other_features_and_orders() -> None:
    names = [f"feature_{i}_of_many" for i in range(40)]
    rng = np.random.default_rng(0)
    data = [
        record(**{n: ("int64_list", [int(rng.integers(1 << 40))]) for n in rng.permutation(names)[: rng.integers(1, 40)]})
        for _ in range(150)
    ]
    batch = Records.of(data)
    for name in names:
        found = batch.find(name, missing=True)
        there = np.array([name in r.feature for r in data])
        assert (found.kind.astype(bool) == there).all()
        chosen = Records.of([r for r in data if name in r.feature])
        values = decode_raw(chosen, name, (), np.int64)
        assert values.tolist() == [r.feature[name].int64_list.value[0] for r in data if name in r.feature]


@pytest.mark.parametrize("bits", range(1, 65))
def test_integers_of_every_size(bits: int) -> None:
    values = [(1 << (bits - 1)) - 1, 1 << (bits - 1) if bits < 64 else -(1 << 63), -(1 << (bits - 1)), 0]
    batch = Records.of([record(x=("int64_list", values)), record(x=("int64_list", values[::-1]))])
    assert decode_raw(batch, "x", (4,), np.int64).tolist() == [values, values[::-1]]
    for v in values:
        assert decode_raw(Records.of([record(x=("int64_list", [v]))]), "x", (), np.int64).tolist() == [v]


@pytest.mark.parametrize("count", [1, 40, 30_000])
@pytest.mark.parametrize("high", [1 << 7, 1 << 8, 1 << 14, 1 << 21])
def test_integers_of_few_bytes(high: int, count: int) -> None:
    values = np.random.default_rng(0).integers(0, high, (3, count)).astype(np.int64)
    values[:, 0] = [high - 1, 0, 127]
    batch = Records.of([record(x=("int64_list", row.tolist()), y=("int32_list", [7])) for row in values])
    np.testing.assert_array_equal(decode_raw(batch, "x", (count,), np.int64), values)
    np.testing.assert_array_equal(decode_raw(batch, "x", (count,), np.float32), values.astype(np.float32))


# lists of short numbers, below 256 or not; and bytes that are no list: cut off in a number, or one of more than ten bytes
_pixels = st.sampled_from([b"\x00", b"\x01", b"\x7f", b"\x80\x01", b"\xff\x01"])
_numbers = st.sampled_from([b"\x80\x00", b"\x80\x02", b"\xff\x7f", b"\xff\xff\x03", b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x7f"])
_wrong = st.sampled_from([b"\x80", b"\xff" * 10, b"\x80" * 10 + b"\x01"])
_payloads = st.lists(st.one_of(_pixels, _pixels | _numbers, _pixels | _numbers | _wrong, st.binary(max_size=3)), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.lists(_pixels, max_size=12), _payloads).map(b"".join), min_size=1, max_size=5), st.sampled_from([4, 5])
)
def test_varints_agree_with_protobuf(payloads: list[bytes], kind: int) -> None:
    data = np.frombuffer(b"\xff".join([b"", *payloads, bytes(wire.PAD)]), np.uint8)
    length = np.array([len(p) for p in payloads])
    flat, counts, good = wire.varints(data, np.cumsum(length + 1) - length, length, kind)
    message, expected = {wire.INT32: pb.Int32List, wire.INT64: pb.Int64List}[kind], []
    for i, payload in enumerate(payloads):
        rest = re.sub(rb"[\x80-\xff]{0,9}[\x00-\x7f]", b"", payload)  # without its well-formed numbers
        if rest or re.search(rb"[\x80-\xff]{10}", payload):
            assert not good[i] and counts[i] == 0
            continue
        values = list(message.FromString(b"\x0a" + bytes([len(payload) & 0x7F | 0x80, len(payload) >> 7]) + payload).value)
        assert good[i] and counts[i] == len(values)
        expected += values
    assert flat.tolist() == expected


@pytest.mark.parametrize("sizes", [(5, 5, 5), (700, 700, 700), (700, 900, 701), (4, 700, 0)])
def test_bytes_of_equal_and_other_lengths(sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    payloads = [random.integers(0, 256, size).astype(np.uint8) for size in sizes]
    batch = Records.of([record(x=("bytes_list", [p.tobytes()]), y=("int32_list", [1])) for p in payloads])
    for wanted, dtype in ((np.zeros((3, 5), np.float32), np.float32), (np.zeros((3, 5), np.uint8), np.uint8)):
        for row, payload in zip(wanted, payloads, strict=True):
            row[: len(payload)] = payload[:5].view(np.int8)
        np.testing.assert_array_equal(decode_raw(batch, "x", (5,), dtype), wanted)


def test_bytes_lists_of_none_and_of_several_values() -> None:
    for values in ([], [b"abc", b"def"]):
        batch = Records.of([record(x=("bytes_list", [b"abc"])), record(x=("bytes_list", values))])
        with pytest.raises(FeatureError, match="one value of bytes" if values else "no value|one value"):
            decode_raw(batch, "x", (3,), np.uint8)


def test_views_share_what_was_found() -> None:
    batch = Records.of([record(x=("int64_list", [i])) for i in range(50)])
    assert decode_raw(batch[10:20][2:5], "x", (), np.int64).tolist() == [12, 13, 14]
    assert batch[10:20]._block is batch._block
    joined = Records.concat([batch[40:], batch[:3], batch[5:5]])
    assert decode_raw(joined, "x", (), np.int64).tolist() == [*range(40, 50), 0, 1, 2]
    assert joined.where(11).record == 1 and len(joined) == 13
    assert batch[:0].features() == [] and batch[:1].features() == ["x"]


# --- the raw decoder


def test_raw_decoder_casts() -> None:
    batch = Records.of([record(x=("double_list", [1.75, -2.5, 3.0])), record(x=("double_list", [0.0, 9.0, -1.0]))])
    for dtype in (np.float32, np.float64, np.int8, np.int32, np.int64):
        expected = np.array([[1.75, -2.5, 3.0], [0.0, 9.0, -1.0]]).astype(dtype)
        got = decode_raw(batch, "x", (3,), dtype)
        assert got.dtype == dtype and (got == expected).all()
    assert decode_raw(batch, "x", (3, 1), np.float32).shape == (2, 3, 1)
    with pytest.raises(ArgumentError, match="not float16"):
        decode_raw(batch, "x", (3,), np.float16)


def test_no_records() -> None:
    for batch in (Records.of([]), Records.of([record(x=("float_list", [1.0]))])[:0]):
        assert decode_raw(batch, "x", (3,), np.float32).shape == (0, 3) and decode_bytes(batch, "x") == []


def test_raw_decoder_of_bytes() -> None:
    batch = Records.of([record(x=("bytes_list", [bytes([1, 200, 255])])), record(x=("bytes_list", [b"\x05"]))])
    assert decode_raw(batch, "x", (3,), np.uint8).tolist() == [[1, 200, 255], [5, 0, 0]]
    assert decode_raw(batch, "x", (2,), np.int32).tolist() == [[1, -56], [5, 0]]  # bytes are read as signed
    assert decode_raw(batch, "x", (), np.float32).tolist() == [1, 5]


@pytest.mark.parametrize("flags", [{"dim1_varying_length": True}, {"auto_zero_padding": True}])
@pytest.mark.parametrize("kind", ["float_list", "int64_list"])
def test_raw_decoder_fills_with_zeros(flags, kind) -> None:
    batch = Records.of([record(x=(kind, [1, 2])), record(x=(kind, [])), record(x=(kind, [7, 8, 9]))])
    assert decode_raw(batch, "x", (3,), np.int32, **flags).tolist() == [[1, 2, 0], [0, 0, 0], [7, 8, 9]]
    with pytest.raises(FeatureError, match="expected   2 elements at most\n  found      3"):
        decode_raw(batch, "x", (2,), np.int32, **flags)


def test_records_of_several_kinds_in_one_batch() -> None:
    kinds = ["float_list", "double_list", "int32_list", "int64_list", "float_list"]
    batch = Records.of([record(x=(k, [i, i + 1])) for i, k in enumerate(kinds)] + [record(x=("bytes_list", [b"\x08\x09"]))])
    assert decode_raw(batch, "x", (2,), np.int64).tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [8, 9]]


def test_what_a_feature_error_says(tmp_path: Path) -> None:
    records = [record(dense=("float_list", [1, 2, 3]), label=("int32_list", [i])) for i in range(5)]
    records[3] = record(dense=("float_list", [1, 2]), lable=("int32_list", [3]), more=("bytes_list", [b"a", b"b"]))
    write_parts(tmp_path, records)
    (batch,) = read_part(tmp_path / "part-0")
    offset = sum(r.ByteSize() + 8 for r in records[:3])
    with pytest.raises(FeatureError) as caught:
        decode_raw(batch, "label", (), np.int32)
    assert str(caught.value).splitlines() == [
        "Field label not found in a record",
        f"  file       {tmp_path / 'part-0'}",
        f"  record     3, at byte {offset}",
        "  feature    'label'",
        "  found      dense, lable, more",
        "  try        did you mean 'lable'?",
    ]
    where = (caught.value.file, caught.value.record, caught.value.offset, caught.value.feature)
    assert where == (str(tmp_path / "part-0"), 3, offset, "label")
    with pytest.raises(
        FeatureError, match="record     3, .*\n.*\n  expected   3 elements\n  found      2, in a float_list"
    ) as caught:
        decode_raw(batch, "dense", (3,), np.float32)
    with pytest.raises(FeatureError, match=r"(?s)another type.*record     0, at byte 0.*found      a float_list"):
        decode_bytes(batch, "dense")
    with pytest.raises(FeatureError, match="(?s)must hold one value.*found      2 values"):
        decode_bytes(batch[3:4], "more")
    assert decode_raw(batch[:3], "label", (), np.int32).tolist() == [0, 1, 2]  # its neighbours are not harmed
    with pytest.raises(FeatureError, match="has no value of any type"):
        decode_raw(Records.of([pb.OFRecord(feature={"x": pb.Feature()})]), "x", (), np.int32)


def test_names_of_features_that_are_no_text() -> None:
    whole = pb.OFRecord(feature={"ab": feature("int32_list", [1]), "cd": feature("int32_list", [2])}).SerializeToString()
    with pytest.raises(FeatureError, match=r"found +ab, c\\x80"):
        decode_raw(Records.of([whole.replace(b"cd", b"c\x80")]), "e", (), np.int32)


def test_bytes_decoder() -> None:
    batch = Records.of([record(x=("bytes_list", [b"a" * n])) for n in (0, 1, 127, 128, 20000)])
    values = decode_bytes(batch, "x")
    assert [v.tobytes() for v in values] == [b"a" * n for n in (0, 1, 127, 128, 20000)]
    assert values[1].dtype == np.uint8 and not values[1].flags.writeable


# --- part files


def test_names_of_parts(tmp_path: Path) -> None:
    assert [part_name(i) for i in (0, 1, 10)] == ["part-0", "part-1", "part-10"]
    assert [part_name(i, "p_", 5) for i in (0, 123, 1234567)] == ["p_00000", "p_00123", "p_1234567"]
    write_parts(tmp_path, [record(x=("int64_list", [i])) for i in range(10)], parts=4, suffix_length=5)
    (tmp_path / "notes.txt").write_text("ignored")
    paths = part_paths(tmp_path, 4, suffix_length=5)
    assert [len(r) for p in paths for r in read_part(p)] == [3, 3, 2, 2]
    with pytest.raises(PartNotFoundError, match="(?s)part 4 of 5 is missing.*4 parts, part-00000 to part-00003.*data_part_num=4"):
        part_paths(tmp_path, 5, suffix_length=5)
    with pytest.raises(PartNotFoundError, match="part_name_suffix_length=5"):
        part_paths(tmp_path, 4)
    with pytest.raises(PartNotFoundError, match="there is no directory"):
        part_paths(tmp_path / "nowhere", 4)
    with pytest.raises(PartNotFoundError, match="notes.txt"):
        part_paths(tmp_path, 4, "data-")
    for wrong in (0, -1, True, "4"):
        with pytest.raises(ArgumentError, match="data_part_num"):
            part_paths(tmp_path, wrong)  # type: ignore[arg-type]


def test_a_part_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    with pytest.raises(RuntimeError), PartWriter(path) as part:
        part.write(record(x=("int64_list", [1])))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArgumentError, match="without features"), PartWriter(path) as part:
        part.write(pb.OFRecord())
    with pytest.raises(DataError, match="no record was written"), PartWriter(path):
        pass
    assert list(tmp_path.iterdir()) == []
    with PartWriter(path) as part:
        part.write(record(x=("int64_list", [1])))
    assert path.read_bytes() == struct.pack("<q", part.nbytes - 8) + record(x=("int64_list", [1])).SerializeToString()


@pytest.mark.parametrize("count", [1000, 3000])  # records that fill the disk at the end of the block, and before
def test_a_part_that_the_disk_refuses_is_named_and_removed(tmp_path: Path, count: int) -> None:
    path = tmp_path / "part-0"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(DataError, match="part-0' cannot be written: File too large"), PartWriter(path) as part:
            for _ in range(count):
                part.write(record(x=("bytes_list", [bytes(1000)])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_chunks_of_any_size(tmp_path: Path) -> None:
    records = [record(x=("bytes_list", [bytes(n)])) for n in (5, 3000, 0, 100, 2000, 7)]
    write_parts(tmp_path, records)
    for size in (1, 8, 100, 3000, 1 << 20):
        batches = list(read_part(tmp_path / "part-0", size))
        assert [pb.OFRecord.FromString(r) for b in batches for r in b] == records
        assert [b.where(i).record for b in batches for i in range(len(b))] == list(range(6))


def damaged(tmp_path: Path, data: bytes) -> RecordError:
    path = tmp_path / "part-0"
    path.write_bytes(data)
    with pytest.raises(RecordError) as caught:
        for batch in read_part(path):
            for name in ("x", "y"):
                batch.find(name, missing=True)
    assert caught.value.file == str(path)
    return caught.value


def test_damaged_parts(tmp_path: Path) -> None:
    good = b"".join(struct.pack("<q", r.ByteSize()) + r.SerializeToString() for r in [record(x=("int64_list", [5]))] * 3)
    one = len(good) // 3
    assert "is empty" in str(damaged(tmp_path, b""))
    for length in range(1, len(good)):
        if length % one:
            error = damaged(tmp_path, good[:length])
            assert "ends inside a record" in str(error) and (error.record, error.offset) == (length // one, length // one * one)
    for prefix in (2**63, 2**64 - 1, 0):
        error = damaged(tmp_path, good + struct.pack("<Q", prefix) + b"abc")
        assert "not a positive number" in str(error) and error.record == 3 and str(prefix) in str(error)
    error = damaged(tmp_path, good + struct.pack("<q", 2**62) + b"abc")
    assert "only 3 bytes are left" in str(error) and error.offset == len(good)
    error = damaged(tmp_path, good + struct.pack("<q", 3) + b"abc" + good)
    assert "not a serialised OFRecord" in str(error) and error.record == 3
    assert "verify" in str(error)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_parts_never_do_harm(tmp_path: Path, data) -> None:
    """Values that protobuf agrees with, or an error that names its place; never more memory than the file's size and a chunk."""
    rng = np.random.default_rng(0)
    records = [
        record(x=("int64_list", rng.integers(-5, 1 << 30, 3).tolist()), y=("float_list", [n] * 4), z=("bytes_list", [b"q" * n]))
        for n in range(12)
    ]
    content = bytearray(b"".join(struct.pack("<q", r.ByteSize()) + r.SerializeToString() for r in records))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert", "delete"])):
            case "set":
                content[at] = data.draw(st.integers(0, 255))
            case "cut":
                del content[max(at, 1) :]
            case "insert":
                content[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case "delete":
                del content[at : min(at + 5, len(content) - 1)]
    path = tmp_path / "mutated"
    path.write_bytes(bytes(content))
    try:
        for batch in read_part(path, data.draw(st.sampled_from([16, 200, 1 << 20]))):
            assert len(batch._block.data) <= len(content) + wire.PAD
            for i in range(len(batch)):
                one = batch[i : i + 1]
                try:
                    message = pb.OFRecord.FromString(batch[i])
                except Exception:
                    message = None
                for name, kind, size, dtype in (("x", "int64_list", 3, np.int64), ("y", "float_list", 4, np.float32)):
                    try:
                        values = decode_raw(one, name, (size,), dtype)[0]
                    except RecordError as error:
                        assert error.file == str(path) and error.record == batch.where(i).record
                        continue
                    if message is not None and message.feature[name].WhichOneof("kind") == kind:
                        np.testing.assert_array_equal(values, np.array(getattr(message.feature[name], kind).value, dtype))
                try:
                    decode_bytes(one, "z")
                except RecordError as error:
                    assert error.offset is not None
    except RecordError as error:
        assert error.file == str(path) and error.offset is not None


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    write_parts(tmp_path, [record(x=("bytes_list", [bytes(1000)])) for _ in range(10)])
    path = tmp_path / "part-0"
    with PartFile(path) as part:
        batch, offset = part.chunk(0, 0, 2500)
        with open(path, "r+b") as file:
            file.truncate(2600)
        assert len(batch[0]) == math.ceil(part.size / 10) - 8
        with pytest.raises(RecordError, match="it was truncated meanwhile"):
            part.chunk(offset, 2, 2500)


def test_many_keys_cost_no_more_than_what_they_hold() -> None:
    """Each record has features of its own; one has very many. Memory is of the order of the bytes."""
    import tracemalloc

    data = [record(**{f"key_{i}_{j}": ("int64_list", [i]) for j in range(15)}) for i in range(400)]
    data.append(record(**{f"many_{j}": ("int64_list", [j]) for j in range(5000)}))
    batch = Records.of(data)
    tracemalloc.start()
    found = batch.find("key_300_3", missing=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.flatnonzero(found.kind).tolist() == [300] and peak < 60 * batch.nbytes
    assert decode_raw(batch[300:301], "key_300_3", (), np.int64).tolist() == [300]
    assert decode_raw(batch[400:], "many_4999", (), np.int64).tolist() == [4999]
    assert len(batch[:3].features()) == 45


# --- special files, and lengths that no memory is allocated for


@pytest.mark.timeout(20)
def test_special_files_in_place_of_parts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "part-0")
    (tmp_path / "part-1").mkdir()
    (tmp_path / "part-2").symlink_to("/dev/zero")
    for i, kind in enumerate(("FIFO", "directory", "character device")):
        with pytest.raises(DataError, match=f"cannot open part file .*part-{i}.* is a {kind}"):
            next(read_part(tmp_path / f"part-{i}"))
    with pytest.raises(PartNotFoundError, match="part 0 of 1"):
        part_paths(tmp_path, 1)


def sparse(path: Path, size: int, head: bytes) -> Path:
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def test_a_record_that_is_longer_than_the_limit(tmp_path: Path) -> None:
    """The file does have so many bytes; they take no room on the disk."""
    length = 39 << 30
    path = sparse(tmp_path / "part-0", 8 + length, struct.pack("<q", length))
    for read in (lambda part: part.chunk(0, 0), lambda part: part.one(0, 0)):
        with (
            PartFile(path) as part,
            pytest.raises(RecordError, match=r"limit of 268435456 bytes(.|\n)*max_record_mbyte") as caught,
        ):
            read(part)
        assert (caught.value.file, caught.value.record, caught.value.offset) == (str(path), 0, 0)
    few = write_parts(tmp_path / "few", [record(x=("bytes_list", [bytes(100)]))])[0]
    assert len(next(read_part(few, max_record_bytes=200))) == 1
    with pytest.raises(RecordError, match="limit of 99 bytes"):
        next(read_part(few, max_record_bytes=99))


def test_long_lists_of_integers() -> None:
    """They are read some at a time; the results are the same."""
    rng = np.random.default_rng(0)
    lists = [(rng.integers(-(2**62), 2**62, n) >> rng.integers(0, 60, n)).tolist() for n in (5, 60000, 3, 3, 20000, 1, 40000)]
    for chosen in (lists, lists[1:2], lists[:2], lists[1:3], lists[-2:]):
        batch = Records.of([record(x=("int64_list", values)) for values in chosen])
        flat, counts = numbers(batch, "x", batch.find("x"), wire.INT64)
        assert counts.tolist() == [len(values) for values in chosen]
        assert flat.tolist() == [v for values in chosen for v in values]
    broken = bytearray(record(x=("int64_list", [-1] * 10000)).SerializeToString())
    broken[50_000:50_020] = b"\xff" * 20
    with pytest.raises(RecordError, match="int64_list is damaged"):
        decode_raw(Records.of([bytes(broken)]), "x", (10000,), np.int64)


def test_a_record_of_very_many_features() -> None:
    batch = Records.of([record(**{f"f{i}": ("int64_list", [i]) for i in range(9000)}), record(f8999=("int64_list", [7]))])
    assert decode_raw(batch, "f8999", (), np.int64).tolist() == [8999, 7]
    assert decode_raw(batch[:1], "f17", (), np.int64).tolist() == [17]


def test_lists_that_are_far_too_long_are_not_decoded() -> None:
    batch = Records.of([record(x=("int64_list", [1, 2])), record(x=("int64_list", [1] * (1 << 21)))])
    with pytest.raises(FeatureError, match="2 elements(.|\n)*int64_list of 20971[0-9]+ bytes") as caught:
        decode_raw(batch, "x", (2,), np.int64)
    assert caught.value.record == 1
    assert decode_raw(batch[1:], "x", (1 << 21,), np.int64).sum() == 1 << 21


@given(st.data())
def test_spans_are_gathered_whatever_their_lengths(data: st.DataObject) -> None:
    """Spans of one length, of several, and empty ones, at any places."""
    content = np.frombuffer(bytes(range(256)) * 9 + bytes(wire.PAD), np.uint8)
    same = data.draw(st.booleans())
    length = data.draw(st.integers(0, 1200))
    lengths = [length if same else data.draw(st.integers(0, 1200)) for _ in range(data.draw(st.integers(0, 6)))]
    starts = [data.draw(st.integers(0, 9 * 256 - n)) for n in lengths]
    expected = b"".join(content[a : a + n].tobytes() for a, n in zip(starts, lengths, strict=True))
    spans = np.array(starts, np.int64), np.array(lengths, np.int64)
    assert wire.gathered(content, *spans).tobytes() == expected
    assert wire.gather(content, *spans).tobytes() == expected + bytes(wire.PAD)


def test_records_of_a_slice_are_iterated_alone() -> None:
    messages = [bytes([i]) * (i + 1) for i in range(10)]
    records = Records.of(messages)
    assert list(records) == messages and list(records[3:7]) == messages[3:7] and list(records[4:4]) == []
    assert list(Records.concat([records[8:], records[:2]])) == messages[8:] + messages[:2]


@pytest.mark.parametrize("kind", ["float_list", "double_list"])
def test_floats_outside_the_range_of_an_integer_dtype(kind: str) -> None:
    for dtype, fits, outside in [
        (np.int32, [-2147483648, 2147483520, 300.75, -0.5], [2147483648.0, -2147483904.0, np.nan, np.inf]),
        (np.int64, [-(2.0**63), 2.0**62], [2.0**63, -np.inf, np.nan]),
        (np.uint8, [255.5, -128.5, 0], [256, -129, np.nan]),
    ]:
        for value in fits:
            found = decode_raw(Records.of([record(x=(kind, [value]))] * 2), "x", (), dtype)
            assert found.tolist() == [int(np.int64(value).astype(dtype))] * 2
        for value in outside:
            batch = Records.of([record(x=(kind, [1.0])), record(x=(kind, [value]))])
            with pytest.raises(FeatureError, match=f"outside the range of {np.dtype(dtype)}") as caught:
                decode_raw(batch, "x", (), dtype)
            assert caught.value.record == 1


def test_records_need_not_lie_in_order() -> None:
    data = np.frombuffer(b"abcdef" + bytes(wire.PAD), np.uint8)
    batch = Records(data, np.array([4, 0, 2]), np.array([2, 2, 1]), ["f"], np.zeros((3, 3), np.int64))
    assert batch.tolist() == [b"ef", b"ab", b"c"]
    assert Records.concat([batch[1:], batch]).tolist() == [b"ab", b"c", b"ef", b"ab", b"c"]
