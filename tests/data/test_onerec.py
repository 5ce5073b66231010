"""OneRec files: digests, frames, order, and the tensors in them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oneflow.data import _mt19937
from oneflow.data._xxh64 import xxh64
from oneflow.data.onerec import OneRecSource, _Builder, decode_onerec, encode_example, write_onerec
from oneflow.data.records import Records
from oneflow.errors import ArgumentError, FeatureError, RecordError

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = 11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261


def digest(data: bytes) -> int:
    """XXH64 as its specification describes it, one step after the other."""

    def rotated(x: int, r: int) -> int:
        return (x << r | x >> (64 - r)) & MASK

    def word(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    def mixed(lane: int, value: int) -> int:
        return rotated((lane + value * P2) & MASK, 31) * P1 & MASK

    at, size = 0, len(data)
    if size >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= size:
            lanes = [mixed(lane, word(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        made = sum(rotated(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            made = ((made ^ mixed(0, lane)) * P1 + P4) & MASK
    else:
        made = P5
    made = (made + size) & MASK
    while at + 8 <= size:
        made = (rotated(made ^ mixed(0, word(at, 8)), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= size:
        made = (rotated(made ^ word(at, 4) * P1 & MASK, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        made = rotated(made ^ byte * P5 & MASK, 11) * P1 & MASK
    made = (made ^ made >> 33) * P2 & MASK
    made = (made ^ made >> 29) * P3 & MASK
    return made ^ made >> 32


def test_digests() -> None:
    assert digest(b"") == 0xEF46DB3751D8E999 and digest(b"abc") == 0x44BC2CF5AD770999  # of the reference implementation
    rng = np.random.default_rng(0)
    pieces = [rng.bytes(n) for n in [*range(0, 100), 255, 256, 1000]]
    data = np.frombuffer(b"".join(pieces) + bytes(8), np.uint8)
    lengths = np.array([len(p) for p in pieces])
    assert xxh64(data, np.cumsum(lengths) - lengths, lengths).tolist() == [digest(p) for p in pieces]


def example(i: int) -> bytes:
    return encode_example(
        {"id": np.array([i], np.int64), "x": np.full((2, 3), i / 2, np.float32), "ragged": np.arange(i, dtype=np.int32)}
    )


def ids(records: Records) -> list[int]:
    return decode_onerec(records, "id", np.int64, (1,))[:, 0].tolist()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Four files of 3, 4, 5 and 6 records."""
    made, k = [], 0
    for i in range(4):
        made.append(str(tmp_path / f"{i}.onerec"))
        write_onerec(made[-1], [example(k + j) for j in range(3 + i)])
        k += 3 + i
    return made


def test_frames(files: list[str]) -> None:
    data, payload = Path(files[0]).read_bytes(), example(0)
    padding = -len(payload) % 8
    assert data[:8] == b"^ONEREC$" and struct.unpack("<ii", data[8:16]) == (0, len(payload))
    assert struct.unpack(">Q", data[16:24])[0] == digest(data[:16])
    assert data[24 : 24 + len(payload)] == payload and data[24 + len(payload) :][:padding] == bytes(padding)
    assert struct.unpack(">Q", data[24 + len(payload) + padding :][:8])[0] == digest(payload)


def test_order(files: list[str]) -> None:
    assert ids(OneRecSource(files).take(40)) == [i % 18 for i in range(40)]
    order, of_file = list(range(4)), [range(0, 3), range(3, 7), range(7, 12), range(12, 18)]
    sources = [OneRecSource(files, shard=i, shards=2, shuffle_after_epoch=True) for i in range(2)]
    for epoch in range(3):
        _mt19937.shuffle(order, 524287 + max(epoch - 1, 0))  # once before the first epoch, then by earlier wraps
        for i, source in enumerate(sources):
            mine = [k for f in order[2 * i : 2 * i + 2] for k in of_file[f]]
            assert ids(source.take(len(mine))) == mine


def test_shuffling_by_record_and_by_batch(files: list[str]) -> None:
    whole = OneRecSource(files, random_shuffle=True, shuffle_mode="batch", buffer_size=3, seed=1)
    taken = [ids(whole.take(6)) for _ in range(9)]
    assert all(batch[0] % 6 == 0 and batch == [batch[0] + i for i in range(6)] for batch in taken)  # batches stay together
    assert {batch[0] for batch in taken} == {0, 6, 12}
    state = json.loads(json.dumps(whole.state()))
    expected = [ids(whole.take(6)) for _ in range(5)]
    other = OneRecSource(files, random_shuffle=True, shuffle_mode="batch", buffer_size=3)
    other.restore(state)
    assert [ids(other.take(6)) for _ in range(5)] == expected
    single = ids(OneRecSource(files, random_shuffle=True, buffer_size=8).take(100))
    assert single != [i % 18 for i in range(100)] and set(single) == set(range(18))
    with pytest.raises(ArgumentError, match="shuffle_mode"):
        OneRecSource(files, shuffle_mode="both")


def test_decoder(files: list[str]) -> None:
    batch = OneRecSource(files).take(4)
    assert decode_onerec(batch, "x", np.float32, (2, 3)).tolist() == [[[i / 2] * 3] * 2 for i in range(4)]
    assert decode_onerec(batch, "x", np.float32, (3, 2), reshape=(3, -1)).shape == (4, 3, 2)
    padded = decode_onerec(batch, "ragged", np.int32, (5,), is_dynamic=True, batch_padding=(-1,))
    assert padded.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert decode_onerec(batch, "ragged", np.int32, (5,), is_dynamic=True, batch_padding=(5,)).shape == (4, 5)
    assert decode_onerec(batch[3:], "ragged", np.int32, (5,), is_dynamic=True).tolist() == [[0, 1, 2]]
    scalar = Records.of([encode_example({"s": np.array(5, np.int8)})])
    assert decode_onerec(scalar, "s", np.int8, ()).tolist() == [5]
    for arguments, says in (
        (("y", np.float32, (2, 3)), "(?s)has no tensor 'y'.*found      id, ragged, x"),
        (("x", np.float64, (2, 3)), "(?s)another dtype.*float64.*float32"),
        (("x", np.float32, (3, 2)), r"(?s)another size.*record     0"),
        (("ragged", np.int32, (2,)), r"(?s)another size.*expected   \(2,\)"),
    ):
        with pytest.raises(FeatureError, match=says):
            decode_onerec(batch, *arguments)
    with pytest.raises(FeatureError, match="(?s)another size.*record     1"):
        decode_onerec(batch, "ragged", np.int32, (5,), is_dynamic=True)
    with pytest.raises(FeatureError, match="2 rows at most"):
        decode_onerec(batch, "ragged", np.int32, (5,), is_dynamic=True, batch_padding=(2,))
    for wrong in ({"reshape": (1,)}, {"reshape": (-1, -1)}, {"batch_padding": (0, 1)}):
        with pytest.raises(ArgumentError):
            decode_onerec(batch, "x", np.float32, (2, 3), **wrong)
    with pytest.raises(ArgumentError, match="not uint8"):
        decode_onerec(batch, "x", np.uint8, (2, 3))


def test_damaged_files(tmp_path: Path, files: list[str]) -> None:
    good, path = Path(files[0]).read_bytes(), tmp_path / "bad"
    one = len(good) // 3 // 8 * 8
    for length in range(1, len(good), 5):
        path.write_bytes(good[:length])
        source = OneRecSource([str(path)])
        with pytest.raises(RecordError) as caught:
            source.take(3)
        assert caught.value.file == str(path) and caught.value.offset is not None
    for at in (1, 10, 14, 18, 40, one - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(RecordError, match="record     0, at byte 0"):
            OneRecSource([str(path)]).take(1)
    write_onerec(path, [example(1), b"no flatbuffer at all"])
    source = OneRecSource([str(path)])
    assert ids(source.take(1)) == [1]
    for _ in range(2):
        with pytest.raises(RecordError, match="(?s)not a flatbuffer.*record     1"):
            source.take(1)
    assert len(OneRecSource([str(path)], verify=False).take(2)) == 2


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutated_payloads_never_do_harm(data) -> None:
    payload = bytearray(example(5))
    for _ in range(data.draw(st.integers(1, 6))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    batch = Records.of([bytes(payload)])
    for name, dtype, shape in (("id", np.int64, (1,)), ("x", np.float32, (2, 3)), ("ragged", np.int32, (5,))):
        try:
            assert decode_onerec(batch, name, dtype, shape).shape == (1, *shape)
        except RecordError as error:
            assert error.record == 0


def test_payloads_that_are_not_what_their_frames_promise(tmp_path: Path) -> None:
    payload = encode_example({"x": np.arange(6, dtype=np.int32).reshape(2, 3)})
    at = payload.index(np.array([2, 3], "<i4").tobytes())
    for sizes in ([-1, 3], [3, -2], [6, 6], [2**31 - 1, 2**31 - 1]):
        wrong = payload[:at] + np.array(sizes, "<i4").tobytes() + payload[at + 8 :]
        write_onerec(tmp_path / "x", [wrong])
        with pytest.raises(RecordError, match="not a flatbuffer of named tensors"):
            OneRecSource([str(tmp_path / "x")]).take(1)


def test_thousands_of_features_that_share_one_long_name(tmp_path: Path) -> None:
    """Reading the name of each would take hours for a payload of some megabytes."""
    count, made = 20_000, _Builder()
    root, (features,) = made.table(1)
    made.refer(0, root)
    at = made.vector(bytes(4 * count), count)
    made.refer(features, at)
    feature, (name_at, tensor_at) = made.table(2)
    for i in range(count):
        made.refer(at + 4 + 4 * i, feature)
    made.refer(name_at, made.vector(b"n" * 100_000, 100_000))
    tensor, _ = made.table(3)
    made.refer(tensor_at, tensor)
    with pytest.raises(RecordError, match="not a flatbuffer of named tensors"):
        decode_onerec([bytes(made.data)], "x", np.int32, (1,))


def test_a_frame_whose_size_is_damaged_is_not_hashed(tmp_path: Path) -> None:
    write_onerec(tmp_path / "x", [encode_example({"x": np.zeros(1, np.int8)})])
    with open(tmp_path / "x", "r+b") as file:
        file.seek(8)
        file.write(struct.pack("<ii", 0, 200 << 20))
        file.truncate(300 << 20)
    with pytest.raises(RecordError, match="digest does not match"):
        OneRecSource([str(tmp_path / "x")]).take(1)
    with pytest.raises(RecordError, match=r"limit of 1048576 bytes"):
        OneRecSource([str(tmp_path / "x")], max_record_bytes=1 << 20).take(1)
