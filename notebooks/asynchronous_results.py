# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Asynchronous results
#
# At the end of this notebook you can let the device compute while your program prepares the next batch: with futures, with
# callbacks, and with `await`. You will also see how much that helps, and why the results stay in order.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np

import oneflow as flow
import oneflow.typing as tp

# %% tags=["parameters"]
STEPS = 40
WIDTH = 1024  # units of the hidden layers

# %% [markdown]
# ## A job, and a program that takes time between its calls
#
# Real programs read files between their calls, or wait for somebody. `next_batch` stands for that: it takes as long as one
# step, measured here.

# %%
BATCH = 256


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((BATCH, 64)), y: tp.Numpy.Placeholder((BATCH, 1))) -> tp.Numpy:
    initializer = flow.xavier_uniform_initializer()
    for i in range(3):
        x = flow.layers.dense(x, WIDTH, activation=flow.nn.relu, kernel_initializer=initializer, name=f"hidden{i}")
    loss = flow.math.square(flow.layers.dense(x, 1, kernel_initializer=initializer, name="output") - y)
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [1e-4])).minimize(loss)
    return loss


rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, 64)).astype(np.float32)
y = np.sin(x.sum(axis=1, keepdims=True))
train(x, y)  # compiles

began = time.perf_counter()
for _ in range(10):
    train(x, y)
step_seconds = (time.perf_counter() - began) / 10
print(f"a step takes {1000 * step_seconds:.1f} ms")


def next_batch():
    time.sleep(step_seconds)
    return x, y


# %% [markdown]
# ## Three ways to call
#
# A plain call waits for its result. `submit` returns a future at once: hand over a few steps, then look at the results.


# %%
def synchronous(events):
    for i in range(STEPS):
        batch = next_batch()
        events.append((i, "submitted", time.perf_counter()))
        train(*batch)
        events.append((i, "delivered", time.perf_counter()))


def with_callbacks(events):
    for i in range(STEPS):
        batch = next_batch()
        events.append((i, "submitted", time.perf_counter()))
        train.submit(*batch).async_get(lambda loss, i=i: events.append((i, "delivered", time.perf_counter())))
    flow.sync_default_session()  # every callback has run from here on


def timed(loop):
    events = []
    began = time.perf_counter()
    loop(events)
    return time.perf_counter() - began, [(i, what, at - began) for i, what, at in events]


waited, waited_events = timed(synchronous)
overlapped, overlapped_events = timed(with_callbacks)
print(f"{STEPS} steps: {waited:.2f} s when each call waits, {overlapped:.2f} s with callbacks")

# %% [markdown]
# Each bar begins when its batch is submitted and ends when its result is available. Where calls wait, bars never overlap with
# the preparation of the next batch, which is the gap between them. Where calls are submitted, the next batch is prepared
# during the bar.

# %%
figure, axes = plt.subplots(2, 1, figsize=(8, 4), sharex=True, layout="constrained")
shown = min(12, STEPS)
for axis, events, title in zip(axes, (waited_events, overlapped_events), ("each call waits", "calls are submitted"), strict=True):
    submitted = {i: at for i, what, at in events if what == "submitted"}
    delivered = {i: at for i, what, at in events if what == "delivered"}
    for i in range(shown):
        axis.barh(i % 3, 1000 * (delivered[i] - submitted[i]), left=1000 * submitted[i], color=f"C{i % 3}", edgecolor="white")
    axis.set_title(title, loc="left")
    axis.set_yticks([])
axes[1].set_xlabel("milliseconds since the first batch was asked for")
plt.show()

# %% [markdown]
# ## The promises
#
# Callbacks run in the order of the calls, each exactly once, on one separate thread. The arrays may be reused as
# soon as the call has returned.

# %%
order = [i for i, what, _ in overlapped_events if what == "delivered"]
assert order == list(range(STEPS))

scratch = np.empty_like(x)
futures = []
for value in (1.0, 2.0, 3.0):
    scratch[:] = value
    futures.append(train.submit(scratch, y))  # `scratch` is free again from here on
[f"{future.result().mean():.3f}" for future in futures]

# %% [markdown]
# A job that says so in its return annotation is asynchronous by default, as in OneFlow's tutorials:


# %%
@flow.global_function(type="predict")
def total(x: tp.Numpy.Placeholder((BATCH, 64))) -> tp.Callback[tp.Numpy]:
    return flow.math.reduce_sum(x)


total(x)(lambda value: print("the sum is", round(float(value.item()), 2)))
flow.sync_default_session()

# %% [markdown]
# A future can be awaited. Jupyter has a running event loop, and a script starts one:

# %%
import asyncio  # noqa: E402
import threading  # noqa: E402


async def both():
    first, second = train.submit(x, y), total(x)
    return (await first).mean(), (await second).item()


def run(coroutine):
    """As asyncio.run, which refuses to work inside of Jupyter's loop, on a thread. In a cell of its own write `await both()`."""
    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(coroutine)))
    thread.start()
    thread.join()
    return found[0]


loss, sum_of_x = run(both())
print(f"loss {loss:.3f}, sum {sum_of_x:.2f}")

# %% [markdown]
# ## What does the device wait for?
#
# `job.throughput()` measures a loop without changing it.

# %%
with train.throughput() as measured:
    synchronous([])
print(measured())

with train.throughput() as measured:
    with_callbacks([])
print(measured())

# %% [markdown]
# ## Errors
#
# An exception in a callback does not stop the later ones. It is raised once more where the program waits.


# %%
def careless(loss):
    raise ValueError("a mistake in a callback")


train.submit(x, y).async_get(careless)
try:
    flow.sync_default_session()
except flow.errors.CallbackError as error:
    print(type(error).__name__, "caused by", repr(error.__cause__))
