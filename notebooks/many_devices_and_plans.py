# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Many devices and plans
#
# At the end of this notebook you can cut a network over several devices, check that the result is that of one, and say what
# it costs before it runs. Four virtual CPU devices stand in for GPUs, so that it runs on a laptop.

# %%
import matplotlib.pyplot as plt
import numpy as np

import oneflow as flow
import oneflow.typing as tp

# %% tags=["parameters"]
WIDTH = 512
STEPS = 20

# %%
flow.config.cpu_device_num(4)  # before the first call
BATCH = 32
rng = np.random.default_rng(0)
images = rng.standard_normal((BATCH, 784)).astype(np.float32)
labels = rng.integers(0, 10, BATCH).astype(np.int32)
Images = tp.Numpy.Placeholder((BATCH, 784))
Labels = tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)


def layer(x, units, name, **options):
    return flow.layers.dense(x, units, kernel_initializer=flow.xavier_uniform_initializer(), name=name, **options)


# %% [markdown]
# ## One logical tensor, three layouts
#
# Shapes are those of the whole tensor; a placement says which devices hold it, and a layout how. The same network three
# times: on one device; with the batch split over four; with the units of the first layer split over four.


# %%
def make_job(name, devices, split_units=False):
    def job(images: Images, labels: Labels) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            split = {"model_distribute": flow.distribute.split(0)} if split_units else {}
            hidden = layer(images, WIDTH, f"{name}-hidden", activation=flow.nn.relu, **split)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, layer(hidden, 10, f"{name}-output"))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.05]), momentum=0.9).minimize(loss)
            return loss

    job.__name__ = name
    return flow.global_function(type="train")(job)


jobs = {
    "one device": make_job("single", "0:0"),
    "the batch split": make_job("batch", "0:0-3"),
    "the units split": make_job("units", "0:0-3", split_units=True),
}
variables = {name: value.numpy() for name, value in flow.get_all_variables().items()}
for prefix in ("batch", "units"):  # the same first values
    flow.load_variables({f"{prefix}-{layer}": variables[f"single-{layer}"] for layer in ("hidden-weight", "output-weight")})

curves = {title: [job(images, labels).mean() for _ in range(STEPS)] for title, job in jobs.items()}
for title in jobs:
    np.testing.assert_allclose(curves[title], curves["one device"], rtol=1e-3, atol=1e-5)

figure, axis = plt.subplots(figsize=(7, 3))
for (title, values), width in zip(curves.items(), (7, 4, 1), strict=True):
    axis.plot(values, linewidth=width, label=title)
axis.set_xlabel("step")
axis.set_ylabel("loss")
axis.legend()
plt.show()

# %% [markdown]
# The three curves coincide. Only the placement differs:

# %%
flow.get_all_variables()["units-hidden-weight"]

# %% [markdown]
# ## What does it cost?
#
# `job.plan()` lists ops, variables, layouts, bytes, and the collectives that the compiler has inserted. Nothing runs for it.

# %%
jobs["the units split"].plan()

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
plans = {title: job.plan() for title, job in jobs.items()}
state = [max(plan.state_bytes.values()) / 2**20 for plan in plans.values()]
sent = [plan.sent_bytes / 2**20 for plan in plans.values()]
for axis, values, title in zip(axes, (state, sent), ("state per device, MiB", "sent per call, MiB"), strict=True):
    axis.barh(list(plans), values)
    axis.set_title(title)
    axis.invert_yaxis()
plt.show()

# %% [markdown]
# ## Stages
#
# Two placements make two stages, each compiled by itself. Micro-batches (`flow.unpack`) let them overlap: while the second
# stage works on the first piece, the first works on the next.


# %%
@flow.global_function(type="train")
def pipelined(images: Images, labels: Labels) -> tp.Numpy:
    x, y = flow.unpack(images, 4), flow.unpack(labels, 4)
    with flow.scope.placement("cpu", "0:0-1"):
        hidden = layer(x, WIDTH, "first", activation=flow.nn.relu)
    with flow.scope.placement("cpu", "0:2-3"):
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, layer(hidden, 10, "second"))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.05])).minimize(loss)
        return loss


losses = [pipelined(images, labels).mean() for _ in range(STEPS)]
assert losses[-1] < losses[0]
print(pipelined.plan().draw())

# %% [markdown]
# ## Hardware that you do not have
#
# With `pip install "oneflow-jax[plan-gpu]"`, `job.plan(target="h100:8")` compiles a job by NVIDIA's compiler on a machine
# without a GPU and says whether it fits and how long a call should take. A target by itself needs no compiler:

# %%
target = flow.Target("a100:2x8", network_bandwidth=12.5e9)  # two machines with 8 each, 100 Gbit/s per GPU
print(target.device_count, "devices")
