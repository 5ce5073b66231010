"""Trains Wide & Deep on invented clicks, and reports the area under the ROC curve on new ones.

python examples/models/train_wide_and_deep.py --batch 512 --steps 200
"""

import command_line
import numpy as np
from wide_and_deep import Features, wide_and_deep

import oneflow as flow
import oneflow.typing as tp


def features_of(options):
    return Features(
        wide_values=options.values, deep_values=options.values, embedding=options.embedding, hidden=(options.hidden,) * 3
    )


def make_jobs(options):
    """A train job (dense, wide, deep, labels) to its loss, and a predict job (dense, wide, deep) to probabilities."""
    f = features_of(options)
    dense = tp.Numpy.Placeholder((options.batch, f.dense), dtype=flow.float)
    wide = tp.Numpy.Placeholder((options.batch, f.wide), dtype=flow.int32)
    deep = tp.Numpy.Placeholder((options.batch, f.deep), dtype=flow.int32)

    @flow.global_function(type="train")
    def train_job(
        dense: dense, wide: wide, deep: deep, labels: tp.Numpy.Placeholder((options.batch, 1), dtype=flow.float)
    ) -> tp.Callback[tp.Numpy]:
        logits = wide_and_deep(dense, wide, deep, f, options.dropout)
        loss = flow.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [options.learning_rate])
        optimizer = flow.optimizer.LazyAdam if options.lazy else flow.optimizer.Adam  # lazy: only rows that were looked up
        optimizer(rate).minimize(loss)
        return flow.math.reduce_mean(loss)

    @flow.global_function(type="predict")
    def eval_job(dense: dense, wide: wide, deep: deep) -> tp.Numpy:
        return flow.math.sigmoid(wide_and_deep(dense, wide, deep, f, rate=0.0))

    return train_job, eval_job


def batches(options):
    """Endless (dense, wide, deep, labels): each value of each feature has a secret say in whether it is a click."""
    f, rng = features_of(options), np.random.default_rng(0)
    says = [rng.standard_normal(size) for size in (f.dense, f.wide_values, f.deep_values)]
    while True:
        dense = rng.standard_normal((options.batch, f.dense), np.float32)
        wide = rng.integers(0, f.wide_values, (options.batch, f.wide), dtype=np.int32)
        deep = rng.integers(0, f.deep_values, (options.batch, f.deep), dtype=np.int32)
        score = dense @ says[0] + says[1][wide].sum(1) + says[2][deep].sum(1)
        yield dense, wide, deep, (score > 0).astype(np.float32)[:, None]


def area_under_curve(scores, labels):
    """The share of pairs of a click and another that the scores put in the right order."""
    clicks, others = scores[labels > 0], scores[labels == 0]
    return (clicks[:, None] > others[None, :]).mean()


def arguments():
    parser = command_line.make_parser(__doc__, batch=512, steps=200, learning_rate=3e-3)
    parser.add_argument("--values", type=int, default=200, help="how many values each feature takes (default: %(default)s)")
    parser.add_argument("--embedding", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=128, help="units of each of three layers (default: %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lazy", action="store_true", help="LazyAdam instead of Adam")
    return parser


def main():
    options = arguments().parse_args()
    train_job, eval_job = make_jobs(options)
    command_line.load(options)
    source = batches(options)

    def report(step):
        def show(loss):
            if step % 10 == 0 or step == options.steps - 1:
                print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)

        return show

    for step in range(options.steps):
        train_job(*next(source))(report(step))
    flow.sync_default_session()
    *samples, labels = next(source)
    print(f"area under the curve on a new batch: {area_under_curve(eval_job(*samples), labels):.3f}")
    command_line.save(options)


if __name__ == "__main__":
    main()
