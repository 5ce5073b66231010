"""Pre-trains a BERT on invented texts, or trains its answering of questions (--task squad).

python examples/models/train_bert.py --size small --batch 8 --length 128 --steps 20
"""

import time

import bert
import command_line
import numpy as np

import oneflow as flow
import oneflow.typing as tp

CONFIGS = {"tiny": bert.TINY, "small": bert.SMALL, "base": bert.BASE}
EXCLUDED_FROM_DECAY = ["bias", "gamma", "beta"]


def optimizer(options):
    warmup = flow.optimizer.warmup.linear(options.warmup, 0) if options.warmup else None
    rate = flow.optimizer.PolynomialScheduler(options.learning_rate, options.steps, 0.0, warmup=warmup)
    clip = flow.optimizer.grad_clipping.by_global_norm(1.0)
    if options.optimizer == "adam":
        return flow.optimizer.Adam(rate, do_bias_correction=True, grad_clipping=clip)
    kind = {"adamw": flow.optimizer.AdamW, "lamb": flow.optimizer.LAMB}[options.optimizer]
    return kind(rate, grad_clipping=clip, weight_decay=0.01, weight_decay_excludes=EXCLUDED_FROM_DECAY)


def function_config(options):
    config = flow.function_config()
    config.default_data_type(flow.float)
    if options.amp:
        config.enable_auto_mixed_precision(True)
    if options.accumulate > 1:
        config.train.num_gradient_accumulation_steps(options.accumulate)
    return config


def make_pretraining(options):
    """A train job: (ids, types, mask, positions, words, weights, follows) to (loss, masked words' loss, next sentence's)."""
    text = tp.Numpy.Placeholder((options.batch, options.length), dtype=flow.int32)
    hidden = (options.batch, options.masked)

    @flow.global_function(type="train", function_config=function_config(options))
    def pretrain_job(
        ids: text,
        types: text,
        mask: text,
        positions: tp.Numpy.Placeholder(hidden, dtype=flow.int32),
        words: tp.Numpy.Placeholder(hidden, dtype=flow.int32),
        weights: tp.Numpy.Placeholder(hidden, dtype=flow.float),
        follows: tp.Numpy.Placeholder((options.batch,), dtype=flow.int32),
    ) -> tp.Callback[tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy]]:
        model = bert.Bert(CONFIGS[options.size])
        losses = bert.pretraining_loss(model, ids, types, mask, positions, words, weights, follows)
        optimizer(options).minimize(losses[0])
        return losses

    return pretrain_job


def make_squad(options):
    """A train job (ids, types, mask, starts, ends) to (loss,), and a predict job (ids, types, mask) to (starts, ends)."""
    text = tp.Numpy.Placeholder((options.batch, options.length), dtype=flow.int32)
    place = tp.Numpy.Placeholder((options.batch,), dtype=flow.int32)
    config = function_config(options)

    @flow.global_function(type="train", function_config=config)
    def squad_job(ids: text, types: text, mask: text, starts: place, ends: place) -> tp.Callback[tp.Tuple[tp.Numpy]]:
        loss = bert.squad_loss(bert.Bert(CONFIGS[options.size]), ids, types, mask, starts, ends)
        optimizer(options).minimize(loss)
        return (flow.math.reduce_mean(loss),)

    @flow.global_function(type="predict", function_config=config)
    def answer_job(ids: text, types: text, mask: text) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        model = bert.Bert(CONFIGS[options.size], training=False)
        start, end = model.span(model.encode(ids, types, mask))
        return flow.math.argmax(start), flow.math.argmax(end)

    return squad_job, answer_job


def texts(options, rng):
    """ids, types and mask of a batch: two sentences, in which words mostly follow the one before by one, and padding."""
    vocabulary = CONFIGS[options.size].vocab_size
    first = rng.integers(5, vocabulary, (options.batch, 1))
    ids = 5 + (first + np.arange(options.length)) % (vocabulary - 5)
    lengths = rng.integers(options.length // 2, options.length + 1, (options.batch, 1))
    mask = np.arange(options.length) < lengths
    types = np.arange(options.length) >= lengths // 2
    return ids * mask, types & mask, mask


def pretraining_batches(options):
    """Endless batches for make_pretraining's job; word 4 hides others."""
    rng = np.random.default_rng(0)
    while True:
        ids, types, mask = texts(options, rng)
        chosen = [rng.permutation(int(row.sum()))[: options.masked] for row in mask]
        positions = np.zeros((options.batch, options.masked), np.int32)
        weights = np.zeros((options.batch, options.masked), np.float32)
        for row, places in enumerate(chosen):
            positions[row, : len(places)], weights[row, : len(places)] = places, 1
        words = np.take_along_axis(ids, positions, 1)
        follows = rng.integers(0, 2, options.batch)
        ids = np.where(types & (follows[:, None] == 1), ids[::-1], ids) * mask
        for row, places in enumerate(chosen):
            ids[row, places] = 4
        yield *as_int32(ids, types, mask, positions, words), weights, *as_int32(follows)


def squad_batches(options):
    """Endless batches for make_squad's job: the answer is between words 2 and 3."""
    rng = np.random.default_rng(0)
    while True:
        ids, types, mask = texts(options, rng)
        ends = rng.integers(2, options.length // 2, options.batch)
        starts = rng.integers(1, ends)
        rows = np.arange(options.batch)
        ids[rows, starts], ids[rows, ends] = 2, 3
        yield as_int32(ids, types, mask, starts, ends)


def as_int32(*arrays):
    return tuple(array.astype(np.int32) for array in arrays)


def arguments():
    parser = command_line.make_parser(__doc__, batch=8, steps=50, learning_rate=1e-3, warmup=5)
    parser.add_argument("--task", choices=("pretrain", "squad"), default="pretrain")
    parser.add_argument("--size", choices=sorted(CONFIGS), default="tiny")
    parser.add_argument("--length", type=int, default=32, help="words in a text (default: %(default)s)")
    parser.add_argument("--masked", type=int, default=5, help="hidden words in a text (default: %(default)s)")
    parser.add_argument("--optimizer", choices=("adam", "adamw", "lamb"), default="adamw")
    parser.add_argument("--accumulate", type=int, default=1, help="cut each batch into so many parts, one update for all")
    return parser


def main():
    options = arguments().parse_args()
    names = ("loss", "masked words", "next sentence") if options.task == "pretrain" else ("loss",)
    start = time.perf_counter()

    def report(step):
        def show(losses):
            text = "  ".join(f"{name} {loss.mean():.4f}" for name, loss in zip(names, losses, strict=True))
            print(f"step {step:4d}  {text}  {time.perf_counter() - start:.1f} s", flush=True)

        return show

    if options.task == "pretrain":
        job, source = make_pretraining(options), pretraining_batches(options)
    else:
        (job, answer), source = make_squad(options), squad_batches(options)
    # what pretraining saved has other heads
    command_line.load(options, only=flow.get_all_variables() if options.task == "squad" else None)
    for step in range(options.steps):
        job(*next(source))(report(step))
    flow.sync_default_session()
    if options.task == "squad":
        *text, starts, ends = next(source)
        found = answer(*text)
        print(f"right answers in a new batch: {100 * ((found[0] == starts) & (found[1] == ends)).mean():.0f}%")
    command_line.save(options)


if __name__ == "__main__":
    main()
