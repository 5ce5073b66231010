"""Continues a text with a GPT that train_gpt.py has trained. Keys and values of earlier words are kept in variables.

python examples/models/train_gpt.py --steps 200 --save trained
python examples/models/generate_gpt.py --load trained --prompt "import " --count 40
"""

import argparse
import math
from dataclasses import dataclass

import command_line
import gpt
import numpy as np
import train_gpt

import oneflow as flow
import oneflow.typing as tp

Blob = flow.Blob


@dataclass
class CachedGPT(gpt.GPT):
    """A GPT that keeps the keys and values of each layer in variables of (batch, heads, seq_length, size).

    Without a ``position`` the tokens are the beginning of a text; with one, (1,) int32, a single token at that place.
    """

    position: Blob | None = None

    def _rows_of_positions(self, table: Blob, length: int) -> Blob:
        return super()._rows_of_positions(table, length) if self.position is None else flow.gather(table, self.position)

    def _cached(self, name: str, x: Blob) -> Blob:
        """The cache with x at its place."""
        batch, heads, length, size = x.shape
        room = self.config.seq_length
        shape = (batch, heads, room, size)
        cache = flow.get_variable(name, shape, flow.float, flow.zeros_initializer(), trainable=False)
        if self.position is None:
            filled = flow.pad(x, [(0, 0), (0, 0), (0, room - length), (0, 0)])
        else:
            here = flow.reshape(flow.one_hot(self.position, room, dtype=flow.float), (1, 1, room, 1))
            filled = cache * (1.0 - here) + x * here
        flow.assign(cache, filled)
        return filled

    def _attended(self, query: Blob, key: Blob, value: Blob) -> Blob:
        keys, values = self._cached("keys", key), self._cached("values", value)
        if self.position is None:
            return super()._attended(query, key, value)
        scores = flow.matmul(query, keys, transpose_b=True, alpha=1 / math.sqrt(query.shape[-1]))
        later = flow.math.greater(flow.range(self.config.seq_length, dtype=flow.int32), self.position)
        scores = scores - 1e9 * flow.reshape(flow.cast(later, flow.float), (1, 1, 1, self.config.seq_length))
        return flow.matmul(flow.nn.softmax(scores), values)


def make_jobs(config: gpt.GPTConfig, prompt_length: int, batch: int = 1):
    """A job that reads prompts, and one that reads a further token; both return the last logits, (batch, vocabulary)."""

    @flow.global_function()
    def read_prompt(tokens: tp.Numpy.Placeholder((batch, prompt_length), dtype=flow.int32)) -> tp.Numpy:
        logits = CachedGPT(config, training=False).logits(tokens)
        last = flow.slice(logits, begin=[0, prompt_length - 1, 0], size=[batch, 1, config.vocab_size])
        return flow.reshape(last, (batch, config.vocab_size))

    @flow.global_function()
    def read_token(
        token: tp.Numpy.Placeholder((batch, 1), dtype=flow.int32),
        position: tp.Numpy.Placeholder((1,), dtype=flow.int32, batch_axis=None),
    ) -> tp.Numpy:
        logits = CachedGPT(config, training=False, position=position).logits(token)
        return flow.reshape(logits, (batch, config.vocab_size))

    return read_prompt, read_token


def generate(jobs, prompt: np.ndarray, count: int, temperature: float = 0.0, seed: int = 0):
    """Yields ``count`` tokens behind each prompt, (batch,) at a time: the likeliest, or drawn where the temperature is not 0."""
    read_prompt, read_token = jobs
    random = np.random.default_rng(seed)
    logits = read_prompt(prompt)
    for i in range(count):
        noise = random.gumbel(size=logits.shape) if temperature else 0.0
        token = (logits / (temperature or 1.0) + noise).argmax(-1).astype(np.int32)
        yield token
        if i + 1 < count:
            logits = read_token(token[:, None], np.array([prompt.shape[1] + i], np.int32))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[train_gpt.arguments(add_help=False)]
    )
    parser.add_argument("--prompt", default="import ")
    parser.add_argument("--count", type=int, default=40, help="bytes to write (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest byte")
    options = parser.parse_args()
    prompt = np.frombuffer(options.prompt.encode(), np.uint8).astype(np.int32)[None]
    if not 0 < prompt.shape[1] < prompt.shape[1] + options.count <= options.length + 1:
        raise SystemExit(f"prompt and text must fit into --length={options.length}, and neither may be empty")
    flow.manual_seed(options.seed)
    jobs = make_jobs(train_gpt.config_of(options), prompt.shape[1])
    command_line.load(options, only=flow.get_all_variables())  # not the optimizer's state
    written = [int(token[0]) for token in generate(jobs, prompt, options.count, options.temperature, options.seed)]
    print(options.prompt + bytes(written).decode("utf-8", "replace"))


if __name__ == "__main__":
    main()
