"""The reader of token streams: files, splits, epochs, orders, and going on where a program stopped."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.data.gpt import IndexedTokens, SampleStream, part_of
from oneflow.errors import ArgumentError, DataError

DOCUMENTS = [list(range(100 * i, 100 * i + n)) for i, n in enumerate([5, 3, 7, 4, 6])]  # 25 tokens


@pytest.fixture
def prefix(tmp_path):
    write(tmp_path / "corpus", DOCUMENTS)
    return str(tmp_path / "corpus")


def write(path, documents, kind=8, dtype="<u2"):
    lengths = [len(d) for d in documents]
    width = np.dtype(dtype).itemsize
    addresses = (np.cumsum([0, *lengths])[:-1] * width).astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, kind, len(documents), len(documents) + 1)
    offsets = np.arange(len(documents) + 1).astype("<i8")
    path.with_suffix(".idx").write_bytes(head + np.array(lengths, "<i4").tobytes() + addresses.tobytes() + offsets.tobytes())
    path.with_suffix(".bin").write_bytes(np.concatenate(documents).astype(dtype).tobytes())


def loader(prefix, seq_length=4, num_samples=6, batch_size=2, **options):
    @flow.global_function("predict")
    def job() -> tp.Numpy:
        return flow.data.megatron_gpt_mmap_data_loader(prefix, seq_length, num_samples, batch_size, **options)

    return job


def test_file_order(prefix):
    job = loader(prefix, shuffle=False)
    stream = np.concatenate(DOCUMENTS)
    for batch in range(3):
        found = job()
        assert found.dtype == np.int64 and found.shape == (2, 5)
        for row in range(2):
            begin = 4 * (2 * batch + row)
            np.testing.assert_array_equal(found[row], stream[begin : begin + 5])
    with pytest.raises(Exception, match="all whole batches of 2 are used"):
        job()


def test_a_part_and_another_dtype(prefix):
    job = loader(prefix, 2, 2, 1, shuffle=False, split_sizes=(3, 2), split_index=1, dtype=flow.int32)
    assert job().tolist() == [[300, 301, 302]] and job().dtype == np.int32


def test_splits_round_to_even():
    assert [len(part_of(10, (949, 50, 1), i)) for i in range(3)] == [9, 0, 0]
    assert part_of(5, (0.5, 0.5), 1) == range(2, 4)  # rint(2.5) is 2


def test_a_shuffled_stream_holds_every_sample_of_its_epochs(prefix):
    tokens = IndexedTokens(prefix)
    stream = SampleStream(tokens, range(5), 4, 12, seed=7)  # two epochs of 25 tokens
    assert len(stream) == (2 * 25 - 1) // 4
    samples = np.stack([stream.sample(i) for i in range(len(stream))])
    again = SampleStream(tokens, range(5), 4, 12, seed=7)
    np.testing.assert_array_equal(samples, [again.sample(i) for i in range(len(again))])
    other = SampleStream(tokens, range(5), 4, 12, seed=8)
    assert not np.array_equal(samples, [other.sample(i) for i in range(len(other))])
    follows = {int(s[-1]): s for s in samples}  # samples overlap by a token: put in order they are one stream again
    assert len(follows) > 6 and np.isin(samples, np.concatenate(DOCUMENTS)).all()


def test_the_last_epoch_is_kept_apart_where_little_of_it_is_used(prefix):
    stream = SampleStream(IndexedTokens(prefix), range(5), 4, 8, seed=3)  # 6 samples per epoch; 2 of the second
    first = np.concatenate([stream.sample(i) for i in range(6)])
    assert len(set(first.tolist())) >= 24  # one whole epoch comes first


def test_shuffles_are_those_of_one_generator():
    from oneflow.data import _mt19937

    source = _mt19937.outputs(5)
    first, second = list(range(6)), list(range(6))
    _mt19937.shuffle(first, source)
    _mt19937.shuffle(second, source)
    alone = list(range(6))
    _mt19937.shuffle(alone, 5)
    assert first == alone and second != alone


def test_going_on_after_a_restart(prefix, tmp_path):
    for resumes, expected in ((True, 8), (False, 0)):
        flow.clear_default_session()
        job = loader(prefix, shuffle=False, random_seed=1, start_from_saved_progress=resumes, name="tokens")
        job()
        flow.checkpoint.save(str(tmp_path / f"saved{resumes}"))
        names = [n for n in flow.get_all_variables() if n.startswith("tokens-iteration")]
        assert names == (["tokens-iteration-sq4-sa6-bs2-sd1-sp1-spi0-S0"] if resumes else [])
        flow.clear_default_session()
        job = loader(prefix, shuffle=False, random_seed=1, start_from_saved_progress=resumes, name="tokens")
        flow.train.CheckPoint().load(str(tmp_path / f"saved{resumes}"))
        np.testing.assert_array_equal(job()[0], np.concatenate(DOCUMENTS)[expected : expected + 5])


def test_the_counter_is_the_position(prefix):
    """A snapshot of another program has the counter alone."""
    flow.clear_default_session()
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function("train", config)
    def job() -> tp.Numpy:
        tokens = flow.data.megatron_gpt_mmap_data_loader(
            prefix, 2, 12, 2, shuffle=False, random_seed=1, split_sizes=(1, 0), start_from_saved_progress=True,
            nd_sbp=[flow.distribute.broadcast()],
        )  # fmt: skip
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.cast(tokens, flow.float) * w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return tokens

    counter = "gpt_data_loader-iteration-sq2-sa12-bs2-sd1-sp1_0-spi0-B"
    firsts = np.concatenate(DOCUMENTS)[:-1:2]  # of each sample
    np.testing.assert_array_equal(job()[:, 0], firsts[:4])
    assert flow.get_all_variables()[counter].numpy() == [2]  # two batches, one for each of the accumulated gradients
    flow.load_variables({counter: np.array([4])})
    np.testing.assert_array_equal(job()[:, 0], firsts[8:12])
    flow.load_variables({counter: np.array([1])})
    np.testing.assert_array_equal(job()[:, 0], firsts[2:6])
    assert flow.get_all_variables()[counter].numpy() == [3]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dtype": flow.float32}, "dtype must be flow.int32 or flow.int64"),
        ({"split_sizes": ()}, "split_sizes must be a list of numbers"),
        ({"split_sizes": (1, 1), "split_index": 2}, "split_index=2 is outside the 2 parts"),
        ({"batch_size": 0}, "batch_size"),
        ({"prefix": ""}, "data_file_prefix must be a path"),
        ({"random_seed": -1}, "random_seed"),
        ({"nd_sbp": ["S(0)", "B"]}, "nd_sbp needs 1 entries"),
        ({"nd_sbp": ["P"]}, "nd_sbp has entries"),
        ({"nd_sbp": ["B"], "parallel_distribution": ["B"]}, "the same argument"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises((ArgumentError, TypeError), match=text):
        loader(**{"prefix": "x", **options}).graph  # noqa: B018


def test_damaged_files(prefix, tmp_path):
    with pytest.raises(DataError, match="No such file"):
        IndexedTokens(str(tmp_path / "nothing"))
    (tmp_path / "other.idx").write_bytes(b"something else altogether, and long enough")
    (tmp_path / "other.bin").write_bytes(b"")
    with pytest.raises(DataError, match="not an index of tokens"):
        IndexedTokens(str(tmp_path / "other"))
    binary = tmp_path / "corpus.bin"
    binary.write_bytes(binary.read_bytes()[:-2])
    with pytest.raises(DataError, match="does not hold what its index describes(.|\n)*sequence 4 has 6 tokens at byte 38"):
        IndexedTokens(prefix)
    with pytest.raises(DataError, match="make no sample"):
        write(tmp_path / "short", [[1]])
        SampleStream(IndexedTokens(str(tmp_path / "short")), range(1), 4, 1, None)


@pytest.mark.parametrize("address", [-2, -(2**63), 2**63 - 8, 2**62, 52, 1])
def test_sequences_that_lie_outside(prefix, address):
    path = f"{prefix}.idx"
    with open(path, "r+b") as file:
        file.seek(34 + 4 * 5 + 8 * 2)
        file.write(struct.pack("<q", address))
    with pytest.raises(DataError, match=f"sequence 2 has 7 tokens at byte {address}"):
        IndexedTokens(prefix)


def test_files_that_hold_nothing(prefix, tmp_path):
    """Sparse ones of any size: nothing is allocated for what they claim."""
    count = 2 << 30
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        file.truncate(34 + 12 * count + 8 * (count + 1))
    with pytest.raises(DataError, match=f"most sequences are empty(.|\n)*{count} sequences, 25 tokens"):
        IndexedTokens(prefix)
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(4 * count)
    with pytest.raises(DataError, match="sequences 0 to 1048575 have no tokens"):
        IndexedTokens(prefix)
    write(tmp_path / "few", [[]] * 1000 + [[1, 2]])
    with pytest.raises(DataError, match="most documents of the part of the data set are empty: 1001 have 2 tokens"):
        SampleStream(IndexedTokens(str(tmp_path / "few")), range(1001), 1024, 10**6, 1)


def test_files_that_change_meanwhile(prefix):
    tokens = IndexedTokens(prefix)
    with open(f"{prefix}.bin", "r+b") as file:
        file.truncate(6)
    assert tokens.read(0, 0, 3).tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="it was truncated meanwhile"):
        tokens.read(0, 0, 5)


def test_tokens_that_are_no_integers_of_the_dtype(tmp_path):
    write(tmp_path / "floats", [[1.0, np.nan, 3.0]], kind=6, dtype="<f4")
    with pytest.raises(DataError, match="a token is not an integer"):
        loader(str(tmp_path / "floats"), 1, 2, 1, shuffle=False)()
    write(tmp_path / "wide", [[1, 2**40, 3]], kind=5, dtype="<i8")
    flow.clear_default_session()
    with pytest.raises(DataError, match="outside the range of int32(.|\n)*flow.int64"):
        loader(str(tmp_path / "wide"), 1, 2, 1, shuffle=False, dtype=flow.int32)()
