"""Trains Wide & Deep on clicks in OFRecord parts, and reports the area under the ROC curve on other clicks.

python examples/data/train_clicks.py --steps 120
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from oneflow.data import samples

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "models"))
from train_wide_and_deep import area_under_curve  # noqa: E402
from wide_and_deep import Features, wide_and_deep  # noqa: E402


def read(folder, batch, parts, **shuffling):
    """Labels, numbers and ids of the next clicks. Ids are brought below ``VALUES``, where the tables end."""
    records = flow.data.ofrecord_reader(folder, batch, data_part_num=parts, **shuffling)

    def field(name, count, dtype):
        return flow.data.OFRecordRawDecoder(records, name, shape=(count,), dtype=dtype)

    return (
        field("labels", 1, flow.float),
        field("dense_fields", samples.DENSE, flow.float),
        field("wide_sparse_fields", samples.WIDE, flow.int32),
        field("deep_sparse_fields", samples.SPARSE, flow.int32),
    )


def make_jobs(options, train_dir, test_dir):
    """A train job to its loss, and a predict job to probabilities and labels; both read by themselves."""
    f = Features(wide_values=1000, deep_values=samples.SPARSE_SIZE, embedding=options.embedding, hidden=(options.hidden,) * 2)

    @flow.global_function(type="train")
    def train_job() -> tp.Callback[tp.Numpy]:
        labels, dense, wide, deep = read(
            train_dir, options.batch, options.parts, random_shuffle=True, shuffle_buffer_size=4 * options.batch,
            shuffle_after_epoch=True,
        )  # fmt: skip
        loss = flow.nn.sigmoid_cross_entropy_with_logits(labels, wide_and_deep(dense, wide, deep, f, rate=0.1))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [options.learning_rate])
        flow.optimizer.LazyAdam(rate).minimize(loss)
        return flow.math.reduce_mean(loss)

    @flow.global_function(type="predict")
    def eval_job() -> tuple[tp.Numpy, tp.Numpy]:
        labels, dense, wide, deep = read(test_dir, options.batch, 1)
        return flow.math.sigmoid(wide_and_deep(dense, wide, deep, f, rate=0.0)), labels

    return train_job, eval_job


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--clicks", type=int, default=20000, help="made for training (default: %(default)s)")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--embedding", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64, help="units of each of two layers (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    return parser


def main():
    options = arguments().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples.clicks(f"{folder}/train", options.clicks, options.parts, seed=1)
        samples.clicks(f"{folder}/test", 4 * options.batch, 1, seed=2)
        train_job, eval_job = make_jobs(options, f"{folder}/train", f"{folder}/test")

        def report(step):
            return lambda loss: print(f"step {step:4d}  loss {loss.item():.4f}", flush=True) if step % 20 == 0 else None

        for step in range(options.steps):
            train_job()(report(step))
        flow.sync_default_session()
        scores, labels = (np.concatenate(found)[:, 0] for found in zip(*[eval_job() for _ in range(4)], strict=True))
        print(f"area under the curve on other clicks: {area_under_curve(scores, labels):.3f}")
        flow.clear_default_session()


if __name__ == "__main__":
    try:
        main()
    except flow.errors.MissingExtraError as error:  # its lines as one
        raise SystemExit("; ".join(" ".join(line.split()) for line in str(error).splitlines())) from None
