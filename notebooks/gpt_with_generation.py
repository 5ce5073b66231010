# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A GPT with generation
#
# At the end of this notebook you have trained a small GPT on English text, character by character, and it continues a
# prompt. The text is Python's own documentation of its topics, which is part of every Python.

# %%
import math
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

import oneflow as flow
import oneflow.typing as tp

# %% tags=["parameters"]
STEPS = 1200
WIDTH = 128
LAYERS = 2
CHARACTERS = 300  # to write at the end

# %% [markdown]
# ## The text

# %%
text = "\n".join(topic for _, topic in sorted(topics.items()))
alphabet = sorted(set(text))
number = {character: i for i, character in enumerate(alphabet)}
tokens = np.array([number[character] for character in text], np.int32)
print(f"{len(text):,} characters, {len(alphabet)} different ones")
print(text[:300])

# %% [markdown]
# ## The network
#
# A transformer as a plain function of Blobs. `flow.scope.namespace` gives the variables of each layer names of their own.

# %%
BATCH, LENGTH, HEADS = 16, 64, 4
flow.manual_seed(0)


def dense(x, units, name):
    return flow.layers.dense(x, units, kernel_initializer=flow.random_normal_initializer(stddev=0.02), name=name)


def norm(x, name):
    return flow.layers.layer_norm(x, begin_norm_axis=2, begin_params_axis=2, name=name)


def attention(x):
    size = WIDTH // HEADS
    x = flow.transpose(flow.reshape(dense(x, 3 * WIDTH, "qkv"), (-1, LENGTH, 3, HEADS, size)), (2, 0, 3, 1, 4))
    query, key, value = (flow.squeeze(x[i : i + 1], [0]) for i in range(3))
    scores = flow.matmul(query, key, transpose_b=True)
    weights = flow.nn.fused_scale_tril_softmax_dropout(scores, fill_value=-1e4, scale=1 / math.sqrt(size))
    mixed = flow.transpose(flow.matmul(weights, value), (0, 2, 1, 3))
    return dense(flow.reshape(mixed, (-1, LENGTH, WIDTH)), WIDTH, "out")


def gpt(tokens):
    """Logits (N, LENGTH, alphabet) of the character after each of tokens (N, LENGTH)."""
    normal = flow.random_normal_initializer(stddev=0.02)
    x = flow.layers.embedding(tokens, len(alphabet), WIDTH, initializer=normal, name="characters")
    x = x + flow.get_variable("positions", (1, LENGTH, WIDTH), initializer=normal)
    for i in range(LAYERS):
        with flow.scope.namespace(f"layer{i}-"):
            x = x + attention(norm(x, "norm1"))
            x = x + dense(flow.math.gelu(dense(norm(x, "norm2"), 4 * WIDTH, "wide")), WIDTH, "narrow")
    return dense(norm(x, "norm"), len(alphabet), "logits")


# %% [markdown]
# ## The jobs
#
# One trains. The other draws the next character: the choice is part of the job, so that only one number comes back from the
# device.


# %%
@flow.global_function(type="train")
def train(
    tokens: tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32),
    targets: tp.Numpy.Placeholder((BATCH, LENGTH), dtype=flow.int32),
) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(targets, gpt(tokens))
    warmup = flow.optimizer.warmup.linear(max(1, STEPS // 20), 0.0)
    rate = flow.optimizer.CosineScheduler(3e-3, STEPS, alpha=0.05, warmup=warmup)
    clipping = flow.optimizer.grad_clipping.by_global_norm(1.0)
    flow.optimizer.AdamW(rate, do_bias_correction=True, weight_decay=0.01, grad_clipping=clipping).minimize(loss)
    return flow.math.reduce_mean(loss)


@flow.global_function(type="predict")
def following(
    tokens: tp.Numpy.Placeholder((1, LENGTH), dtype=flow.int32),
    position: tp.Numpy.Placeholder((1,), dtype=flow.int32),
) -> tp.Numpy:
    logits = flow.gather(flow.reshape(gpt(tokens), (LENGTH, len(alphabet))), position)
    return flow.random.categorical(logits, temperature=0.7, top_p=0.9)


train.summary()

# %% [markdown]
# ## Before training, it writes noise


# %%
def write(prompt, count):
    written = [number[character] for character in prompt]
    for _ in range(count):
        recent = written[-LENGTH:]
        context = np.zeros((1, LENGTH), np.int32)
        context[0, : len(recent)] = recent
        written.append(int(following(context, np.array([len(recent) - 1], np.int32))[0]))
    return "".join(alphabet[i] for i in written)


print(write("The statement ", min(CHARACTERS, 100)))

# %% [markdown]
# ## Training


# %%
def batches():
    rng = np.random.default_rng(0)
    while True:
        starts = rng.integers(0, len(tokens) - LENGTH - 1, BATCH)
        pieces = np.stack([tokens[start : start + LENGTH + 1] for start in starts])
        yield pieces[:, :-1], pieces[:, 1:]


class Losses(flow.callbacks.Callback):
    """Remembers the loss of every step."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, step, logs):
        self.values.append(logs["loss"])


losses = Losses()
flow.Trainer(max_steps=STEPS, max_epochs=1, callbacks=[losses]).fit(train, batches)

figure, axis = plt.subplots(figsize=(7, 3))
axis.plot(losses.values)
axis.axhline(math.log(len(alphabet)), color="gray", linestyle=":", label="guessing")
axis.set_xlabel("step")
axis.set_ylabel("loss, nats per character")
axis.legend()
plt.show()

# %% [markdown]
# ## After training

# %%
print(write("The statement ", CHARACTERS))

# %% [markdown]
# `following` computes all positions again for each character. `examples/models/generate_gpt.py` keeps the keys and values of
# earlier ones in variables, and `examples/models/train_gpt.py` trains larger models over several devices.
