"""The order of records: shards, epochs, shuffling, and positions that are saved and restored."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneflow.data import _mt19937
from oneflow.data._split import balanced
from oneflow.data.parts import PartWriter, part_paths, write_parts
from oneflow.data.records import Records
from oneflow.data.source import RecordSource
from oneflow.errors import ArgumentError, DataError, PartNotFoundError, RecordError


def payload(i: int) -> bytes:
    """Any bytes will do for a source; it does not look into records."""
    return i.to_bytes(4, "little") + b"x" * (i % 7)


def numbers(records: Records) -> list[int]:
    return [int.from_bytes(r[:4], "little") for r in records]


@pytest.fixture
def parts(tmp_path: Path) -> list[str]:
    """Seven parts of 3 to 9 records, numbered on."""
    k, paths = 0, []
    for i in range(7):
        with PartWriter(tmp_path / f"part-{i}") as part:
            for _ in range(i + 3):
                part.write(payload(k))
                k += 1
        paths.append(part.path)
    return paths


def of_part(i: int) -> list[int]:
    first = sum(range(3, 3 + i))
    return list(range(first, first + i + 3))


def test_a_source_reads_on_after_the_program_has_changed_its_directory(parts: list[str], monkeypatch) -> None:
    monkeypatch.chdir(Path(parts[0]).parent)
    source = RecordSource(part_paths(".", 7))
    assert numbers(source.take(3)) == of_part(0)
    monkeypatch.chdir("/")
    assert numbers(source.take(4 + 5)) == of_part(1) + of_part(2)


def test_balanced_split() -> None:
    assert [balanced(10, 4, i) for i in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    for size in range(1, 30):
        for n in range(1, size + 1):
            pieces = [balanced(size, n, i) for i in range(n)]
            assert pieces[0][0] == 0 and pieces[-1][1] == size and all(a[1] == b[0] for a, b in pairwise(pieces))


def test_parts_in_order_and_around(parts: list[str]) -> None:
    source = RecordSource(parts)
    assert [k for _ in range(20) for k in numbers(source.take(5))] == [k % 42 for k in range(100)]
    assert source.epoch == 2


def test_shards_own_ranges_of_parts(parts: list[str]) -> None:
    for shards in (2, 3, 7):
        for shard in range(shards):
            source = RecordSource(parts, shard=shard, shards=shards)
            mine = [k for i in range(*balanced(7, shards, shard)) for k in of_part(i)]
            assert numbers(source.take(2 * len(mine))) == mine * 2
    with pytest.raises(ArgumentError, match="7 part files cannot be shared by 8 readers"):
        RecordSource(parts, shards=8)


def test_order_of_parts_changes_after_each_epoch(parts: list[str]) -> None:
    order = list(range(7))
    sources = [RecordSource(parts, shard=i, shards=2, shuffle_after_epoch=True) for i in range(2)]
    seen = []
    for epoch in range(4):
        if epoch:
            _mt19937.shuffle(order, 524287 + epoch)
        for i, source in enumerate(sources):
            mine = [k for part in order[slice(*balanced(7, 2, i))] for k in of_part(part)]
            assert numbers(source.take(len(mine))) == mine
        seen.append(list(order))
    assert len(set(map(tuple, seen))) == 4 and all(sorted(o) == list(range(7)) for o in seen)


def test_mersenne_twister_is_that_of_cpp() -> None:
    outputs = _mt19937.outputs(5489)
    assert next(outputs) == 3499211612
    assert [next(outputs) for _ in range(9999)][-1] == 4123659995  # the C++ standard gives the 10000th


@pytest.mark.parametrize(
    "size, seed, begin, last",
    [
        (1, 1, [0], 0),
        (2, 524288, [1, 0], 0),
        (3, 1, [1, 0, 2], 2),
        (10, 524288, [1, 2, 7, 0, 6, 4, 5, 8, 9, 3], 3),
        (11, 524288, [4, 0, 3, 1, 7, 5, 2, 6, 10, 8, 9], 9),
        (256, 1, [97, 56, 152, 200, 108, 154, 114, 41, 104, 22, 72, 220], 69),
        (70000, 524288, [15619, 51867, 3774, 5047, 24494, 8032, 49021, 40194, 51167, 4861, 30814, 27554], 64875),
    ],
)
def test_shuffled_as_by_gcc_12(size, seed, begin, last) -> None:
    """Orders that a C++ program gave: what they begin with, and their last element."""
    values = list(range(size))
    _mt19937.shuffle(values, seed)
    assert values[:12] == begin and values[-1] == last


def test_shuffled_orders_are_permutations_and_spread() -> None:
    for n in (0, 1, 2, 3, 10, 11, 70000):
        values = list(range(n))
        _mt19937.shuffle(values, 1)
        assert sorted(values) == list(range(n))
    counts = np.zeros((4, 4))
    for seed in range(4000):
        values = list(range(4))
        _mt19937.shuffle(values, seed)
        counts[range(4), values] += 1
    assert (abs(counts - 1000) < 150).all()


def test_shuffle_buffer(parts: list[str]) -> None:
    source = RecordSource(parts, random_shuffle=True, buffer_size=10, seed=3)
    taken = numbers(source.take(300))
    again = RecordSource(parts, random_shuffle=True, buffer_size=10, seed=3)
    assert [k for n in (1, 99, 50, 150) for k in numbers(again.take(n))] == taken  # whatever the batch size
    assert numbers(RecordSource(parts, random_shuffle=True, buffer_size=10, seed=4).take(300)) != taken
    # what is out and what is in the buffer together are what was read: 300 + 10 records
    held = [int.from_bytes(record[:4], "little") for record in source._buffer.records.ravel()]
    assert sorted(taken + held) == sorted(k % 42 for k in range(310))
    # a record is never out before it was read
    first = {}
    for i, k in enumerate(taken):
        first.setdefault(k, i)
    assert all(i >= k - 10 for k, i in first.items())


def test_shuffle_buffer_larger_than_the_data(parts: list[str]) -> None:
    source = RecordSource(parts, random_shuffle=True, buffer_size=1000)
    assert set(numbers(source.take(400))) == set(range(42))


def test_buffer_is_drawn_from_uniformly(tmp_path: Path) -> None:
    paths = write_parts(tmp_path / "set", [payload(i) for i in range(50)])
    source = RecordSource(paths, random_shuffle=True, buffer_size=50)
    counts = np.bincount(numbers(source.take(20000)), minlength=50)
    assert (abs(counts - 400) < 120).all()


@settings(max_examples=60, deadline=None)
@given(
    st.booleans(), st.booleans(), st.integers(1, 60), st.lists(st.integers(1, 40), max_size=6),
    st.lists(st.integers(1, 40), max_size=4),
)  # fmt: skip
def test_restored_sources_go_on_exactly(tmp_path_factory, shuffle, by_epoch, size, before, after) -> None:
    folder = tmp_path_factory.getbasetemp() / "resume"
    if not folder.exists():
        write_parts(folder, [payload(i) for i in range(37)], parts=5)
    arguments = {"random_shuffle": shuffle, "buffer_size": size, "shuffle_after_epoch": by_epoch, "shards": 2, "shard": 1}
    source = RecordSource(part_paths(folder, 5), seed=9, **arguments)
    for n in before:
        source.take(n)
    state = json.loads(json.dumps(source.state()))
    expected = [numbers(source.take(n)) for n in after]
    other = RecordSource(part_paths(folder, 5), seed=random.randrange(1000), **arguments)
    other.take(3)
    other.restore(state)
    assert other.state() == state
    assert [numbers(other.take(n)) for n in after] == expected


def test_states_that_do_not_fit(parts: list[str]) -> None:
    state = RecordSource(parts).state()
    other = RecordSource(parts, shards=2)
    with pytest.raises(DataError, match="other parts or another number of readers"):
        other.restore(state)
    same = RecordSource(parts)
    for wrong in (
        {**state, "order": [0] * 7},
        {**state, "part": 99},
        {**state, "offset": "x"},
        {**state, "buffer": [[[9, 0, 0]]]},
    ):
        with pytest.raises(DataError, match="cannot be used"):
            same.restore(wrong)
    with pytest.raises(DataError):
        same.restore({**RecordSource(parts, random_shuffle=True).state(), "buffer": [[[0, 0, 0]]]})
    assert numbers(same.take(3)) == [0, 1, 2]


def test_an_error_leaves_the_position(parts: list[str]) -> None:
    whole = Path(parts[1]).read_bytes()
    for shuffle in (False, True):
        source = RecordSource(parts, random_shuffle=shuffle, buffer_size=2)
        one = numbers(source.take(1))
        Path(parts[1]).write_bytes(whole[:-1])
        state = source.state()
        for _ in range(2):
            with pytest.raises(RecordError, match="ends inside a record") as caught:
                source.take(10)
            assert source.state() == state
            assert (caught.value.file, caught.value.record) == (parts[1], 3)
        Path(parts[1]).write_bytes(whole)
        source.close()
        assert numbers(source.take(10)) == numbers(RecordSource(parts, random_shuffle=shuffle, buffer_size=2).take(11))[1:]
        assert one
    Path(parts[1]).unlink()
    with pytest.raises(PartNotFoundError, match="part-1"):
        RecordSource(parts).take(10)


def test_origins_of_shuffled_records(parts: list[str]) -> None:
    batch = RecordSource(parts, random_shuffle=True, buffer_size=20).take(100)
    for i in range(100):
        where = batch.where(i)
        data = Path(where.file).read_bytes()
        assert data[where.offset + 8 : where.offset + 8 + len(batch[i])] == batch[i]
        assert of_part(int(where.file[-1]))[where.record] == numbers(batch)[i]


@pytest.mark.parametrize(
    "key, values",
    [
        ("seed", [1e999, "x", 2**70]), ("drawn", [-1, 2**300, 0.5]), ("part", [-1, 9, True]),
        ("order", [[[]], [True, 0, 2], None]),
        ("offset", [2**63, -8]), ("epoch", [-1, 10**30]), ("ahead", [[[0, 0]], [[0, 0, -1]], 5]), ("taken", [None]),
        ("buffer", [[[]] * 4, [[[0, 0, 0]]] * 3 + [[[0, 0, 0]] * 2], [[[0, 0, 1e999]]] * 4, [[[9, 0, 0]]] * 4]),
    ],
)  # fmt: skip
def test_positions_are_checked_before_they_are_used(tmp_path: Path, key: str, values: list) -> None:
    paths = write_parts(tmp_path, [payload(i) for i in range(12)], 3)
    source = RecordSource(paths, random_shuffle=True, buffer_size=4)
    source.take(3)
    state = json.loads(json.dumps(source.state()))
    for value in values:
        with pytest.raises(DataError, match="saved position cannot be used"):
            source.restore({**state, key: value})
    assert source.state() == state
    source.restore({**state, "buffer": [[place] * 2 for (place,) in state["buffer"]], "ahead": []})
    with pytest.raises(DataError, match="holds units of 2 records, and 1 are drawn"):
        source.take(3)


def test_numbers_of_numpy_make_the_same_state(parts: list[str]) -> None:
    one, two = np.int64(1), np.int64(2)
    source = RecordSource(parts, shard=one, shards=two, random_shuffle=True, buffer_size=two, seed=one)
    own = RecordSource(parts, shard=1, shards=2, random_shuffle=True, buffer_size=2, seed=1)
    assert numbers(source.take(5)) == numbers(own.take(5)) and json.loads(json.dumps(source.state())) == own.state()
