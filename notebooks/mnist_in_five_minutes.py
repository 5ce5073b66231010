# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # MNIST in five minutes
#
# At the end of this notebook you have trained a convolutional network on handwritten digits, plotted its loss, looked at the
# digits that it gets wrong, and saved it. The data come with the library: nothing is downloaded.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import oneflow as flow
import oneflow.typing as tp

# %% tags=["parameters"]
STEPS = 600  # of 100 images: one epoch

# %% [markdown]
# ## The data
#
# `load_mnist` returns batches: `train_images` has the shape (600, 100, 1, 28, 28).

# %%
BATCH = 100
(train_images, train_labels), (test_images, test_labels) = flow.data.load_mnist(BATCH, BATCH)
print(train_images.shape, train_labels.shape, test_images.shape)

figure, axes = plt.subplots(1, 10, figsize=(10, 1.2))
for axis, image, label in zip(axes, train_images[0], train_labels[0], strict=False):
    axis.imshow(image[0], cmap="gray")
    axis.set_title(str(label))
    axis.axis("off")
plt.show()

# %% [markdown]
# ## The network and its jobs
#
# A *job function* describes a computation on placeholders. `train` and `predict` share their variables because their layers
# have the same names. Run this cell again after a change: the jobs are replaced, and the variables keep their values if their
# shapes are the same.

# %%
flow.manual_seed(0)


def network(images, training=False):
    options = {"padding": "SAME", "activation": flow.nn.relu, "kernel_initializer": flow.truncated_normal(0.1)}
    x = flow.layers.conv2d(images, 16, 5, name="conv1", **options)
    x = flow.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")
    x = flow.layers.conv2d(x, 32, 5, name="conv2", **options)
    x = flow.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")
    x = flow.flatten(x, start_dim=1)
    x = flow.nn.dropout(x, rate=0.3) if training else x
    return flow.layers.dense(x, 10, kernel_initializer=flow.truncated_normal(0.1), name="output")


Images = tp.Numpy.Placeholder((BATCH, 1, 28, 28))
Labels = tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)


@flow.global_function(type="train")
def train(images: Images, labels: Labels) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images, training=True))
    flow.optimizer.Adam(flow.optimizer.CosineScheduler(2e-3, STEPS)).minimize(loss)
    return loss


@flow.global_function(type="predict")
def evaluate(images: Images, labels: Labels) -> dict[str, tp.Numpy]:
    logits = network(images)
    return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), "logits": logits}


# %% [markdown]
# The body has not run on any data yet, but its shapes are known:

# %%
train.summary()

# %% [markdown]
# ## Training
#
# `flow.Trainer` is the loop: progress bar, metrics, validation. Interrupt the cell whenever you like; the variables keep
# what they have learned, and running the cell again continues from there.


# %%
class Losses(flow.callbacks.Callback):
    """Remembers the loss of every step."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, step, logs):
        self.values.append(logs["loss"])


losses = Losses()
trainer = flow.Trainer(max_steps=STEPS, max_epochs=10, callbacks=[losses], metrics=flow.metrics.Accuracy(), seed=0)
history = trainer.fit(train, (train_images, train_labels), evaluate, (test_images, test_labels))
accuracy = history["val_accuracy"][-1]
print(f"{100 * accuracy:.1f} % of {test_labels.size} test images")

# %%
window = max(1, len(losses.values) // 30)
smooth = np.convolve(losses.values, np.ones(window) / window, mode="valid")
figure, axis = plt.subplots(figsize=(7, 3))
axis.semilogy(losses.values, alpha=0.3, label="loss of each step")
axis.semilogy(np.arange(len(smooth)) + window // 2, smooth, label=f"mean of {window} steps")
axis.set_xlabel("step")
axis.legend()
plt.show()

# %% [markdown]
# ## The mistakes

# %%
predictions = np.concatenate(
    [evaluate(images, labels)["logits"].argmax(1) for images, labels in zip(test_images, test_labels, strict=True)]
)
answers = test_labels.ravel()
wrong = np.flatnonzero(predictions != answers)[:10]
figure, axes = plt.subplots(1, 10, figsize=(10, 1.4))
for axis in axes:
    axis.axis("off")
for axis, i in zip(axes, wrong, strict=False):
    axis.imshow(test_images.reshape(-1, 28, 28)[i], cmap="gray")
    axis.set_title(f"{predictions[i]}, not {answers[i]}", fontsize=9)
plt.show()

# %% [markdown]
# ## Saving and loading
#
# A checkpoint is a directory with one entry per variable, the optimizer's state included.

# %%
directory = Path(tempfile.mkdtemp()) / "digits"
flow.checkpoint.save(directory)
before = evaluate(test_images[0], test_labels[0])["logits"]
flow.load_variables(flow.checkpoint.get(directory))
assert np.array_equal(evaluate(test_images[0], test_labels[0])["logits"], before)
sorted(entry.name for entry in directory.iterdir() if entry.is_dir())[:6]
