"""Trains a GPT on the bytes of a file, and lets it go on writing.

python examples/models/train_gpt.py --text examples/models/gpt.py --steps 200
"""

import dataclasses
import time
from pathlib import Path

import command_line
import gpt
import numpy as np

import oneflow as flow
import oneflow.typing as tp


def config_of(options):
    return gpt.GPTConfig(
        vocab_size=256, hidden_size=options.hidden, layers=options.layers, heads=options.heads, seq_length=options.length,
        dropout=options.dropout, attention_dropout=options.dropout, checkpointing=options.checkpointing,
    )  # fmt: skip


def layout_of(options):
    devices = options.stages * options.data * options.tensor
    if devices == 1:
        return gpt.Layout()
    flow.config.cpu_device_num(devices)
    return gpt.Devices(options.layers, options.stages, options.data, options.tensor)


def make_jobs(options):
    """A train job on (batch, length + 1) bytes, and a predict job that continues texts of `length` bytes by one."""
    flow.manual_seed(options.seed)
    layout = layout_of(options)
    config = flow.function_config()
    config.default_data_type(flow.float)
    if options.amp:
        config.enable_auto_mixed_precision(True)

    @flow.global_function(type="train", function_config=config)
    def train_job(tokens: tp.Numpy.Placeholder((options.batch, options.length + 1), dtype=flow.int32)) -> tp.Callback[tp.Numpy]:
        loss = gpt.GPT(config_of(options), layout).loss(tokens)
        warmup = flow.optimizer.warmup.linear(options.warmup, 0) if options.warmup else None
        rate = flow.optimizer.CosineScheduler(options.learning_rate, options.steps, alpha=0.1, warmup=warmup)
        flow.optimizer.AdamW(
            rate, do_bias_correction=True, weight_decay=0.01, weight_decay_excludes=["bias", "layernorm"],
            grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0),
        ).minimize(loss)  # fmt: skip
        return loss

    @flow.global_function(type="predict", function_config=config)
    def next_job(tokens: tp.Numpy.Placeholder((1, options.length), dtype=flow.int32)) -> tp.Numpy:
        model = gpt.GPT(dataclasses.replace(config_of(options), checkpointing=False), layout, training=False)
        return flow.math.argmax(model.logits(tokens))

    return train_job, next_job


def batches(options):
    """Endless pieces of the text, (batch, length + 1)."""
    text = np.frombuffer(options.text.read_bytes(), np.uint8)
    if len(text) <= options.length + 1:
        raise SystemExit(f"{options.text} has only {len(text)} bytes: a text longer than --length={options.length} is needed")
    rng = np.random.default_rng(0)
    while True:
        starts = rng.integers(0, len(text) - options.length - 1, options.batch)
        yield np.stack([text[i : i + options.length + 1] for i in starts]).astype(np.int32)


def written(next_job, options, count):
    """`count` bytes that the model puts behind the text's first ones."""
    text = list(options.text.read_bytes()[: options.length])
    for _ in range(count):
        window = text[-options.length :]
        tokens = np.zeros((1, options.length), np.int32)
        tokens[0, : len(window)] = window
        text.append(int(next_job(tokens)[0, len(window) - 1]))
    return bytes(text[options.length :]).decode("utf-8", "replace")


def arguments(add_help=True):
    parser = command_line.make_parser(__doc__, batch=8, steps=100, learning_rate=3e-3, warmup=10, add_help=add_help)
    command_line.add_gpt(parser, layers=2, hidden=64, heads=4, length=64)
    command_line.add_devices(parser)
    parser.add_argument("--text", type=Path, default=Path(__file__), help="what to learn (default: this program)")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of first values and dropout")
    parser.add_argument("--write", type=int, default=60, help="bytes to write after training (default: %(default)s)")
    parser.add_argument("--checkpointing", action="store_true", help="compute layers again in the backward pass")
    return parser


def main():
    options = arguments().parse_args()
    train_job, next_job = make_jobs(options)
    command_line.load(options)
    source = batches(options)
    start = time.perf_counter()

    def report(step):
        def show(loss):
            print(f"step {step:4d}  loss {loss.item():.4f}  {time.perf_counter() - start:.1f} s", flush=True)

        return show

    for step in range(options.steps):
        train_job(next(source))(report(step))
    flow.sync_default_session()
    if options.write:
        print(f"goes on with {written(next_job, options, options.write)!r}")
    command_line.save(options)


if __name__ == "__main__":
    main()
