# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Your data
#
# At the end of this notebook you can train on data of your own: images in a folder, arrays, a generator, and record files
# that the job reads by itself. The last part needs `pip install "oneflow-jax[data]"`.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import oneflow as flow
import oneflow.typing as tp

# %% tags=["parameters"]
COUNT = 4000  # images
EPOCHS = 3

# %% [markdown]
# ## A folder of images
#
# One directory per class, the usual layout. Here they are digits in colour on noise; put the path of your own folder
# into `folder`.

# %%
folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
(digits, labels), _ = flow.data.load_mnist(100)
for i, (digit, label) in enumerate(zip(digits.reshape(-1, 28, 28)[:COUNT], labels.ravel(), strict=False)):
    colour, noise = rng.uniform(0.5, 1, 3), rng.uniform(0, 0.5, (28, 28, 3))
    pixels = np.where(digit[..., None] > 0.3, digit[..., None] * colour, noise)
    (folder / str(label)).mkdir(exist_ok=True)
    Image.fromarray((255 * pixels).astype(np.uint8)).save(folder / str(label) / f"{i}.png")

classes = sorted(entry.name for entry in folder.iterdir())
files = [(path, number) for number, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
paths = np.array([str(path) for path, _ in files])
targets = np.array([number for _, number in files], np.int32)
print(len(paths), "images of the classes", classes)

# %% [markdown]
# `ArrayLoader` cuts arrays into batches: here arrays of *paths*. A transform turns them into images, in threads, while the
# network trains. Its second argument is a random generator of that batch, so that the run is reproducible whatever the
# threads do.

# %%
BATCH, SIZE = 50, 28


def read(batch, rng):
    images = [np.asarray(Image.open(path).convert("RGB").resize((SIZE, SIZE))).transpose(2, 0, 1) for path in batch[0]]
    return np.stack(images).astype(np.float32) / 255, batch[1]


order = np.random.default_rng(0).permutation(len(paths))
held_out, rest = np.split(order, [len(order) // 5])
crop = flow.data.RandomCrop(SIZE, padding=2)
train_data = flow.data.ArrayLoader(
    (paths[rest], targets[rest]), BATCH, shuffle=True, seed=0, transform=[read, crop], num_workers=2
)
val_data = flow.data.ArrayLoader((paths[held_out], targets[held_out]), BATCH, transform=read, num_workers=2)

# %% [markdown]
# Always look at what the network gets:

# %%
images, numbers = next(iter(train_data))
figure, axes = plt.subplots(2, 10, figsize=(10, 2.6))
for axis, image, number in zip(axes.ravel(), images, numbers, strict=False):
    axis.imshow(image.transpose(1, 2, 0))
    axis.set_title(classes[number], fontsize=9)
    axis.axis("off")
plt.show()

# %% [markdown]
# ## Training on them

# %%
flow.manual_seed(0)


def network(images, training=False):
    x = images
    for i, filters in enumerate((16, 32, 64)):
        initializer = flow.variance_scaling_initializer(2.0)
        x = flow.layers.conv2d(x, filters, 3, padding="SAME", use_bias=False, kernel_initializer=initializer, name=f"conv{i}")
        x = flow.nn.relu(flow.layers.batch_normalization(x, axis=1, momentum=0.9, training=training, name=f"norm{i}"))
        x = flow.nn.max_pool2d(x, 2, 2, "SAME")
    x = flow.math.reduce_mean(x, axis=[2, 3])
    return flow.layers.dense(x, len(classes), kernel_initializer=flow.xavier_uniform_initializer(), name="output")


Images = tp.Numpy.Placeholder((BATCH, 3, SIZE, SIZE))
Labels = tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)


@flow.global_function(type="train")
def train(images: Images, labels: Labels) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images, training=True))
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [3e-3])).minimize(loss)
    return loss


@flow.global_function(type="predict")
def evaluate(images: Images, labels: Labels) -> dict[str, tp.Numpy]:
    logits = network(images)
    return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), "logits": logits}


trainer = flow.Trainer(max_epochs=EPOCHS, seed=0, metrics=flow.metrics.Accuracy())
history = trainer.fit(train, train_data, evaluate, val_data)

# %%
figure, axis = plt.subplots(figsize=(6, 3))
for name in ("loss", "val_loss"):
    axis.plot(np.arange(1, len(history[name]) + 1), history[name], marker="o", label=name)
axis.set_xlabel("epoch")
axis.legend()
plt.show()
print(f"{100 * history['val_accuracy'][-1]:.1f} % of the images that were held out")

# %% [markdown]
# ## A generator
#
# `fit` also takes any iterable of batches: a PyTorch `DataLoader`, a pandas DataFrame, a `datasets.Dataset`, or a function
# that returns an iterator for each epoch.


# %%
def batches():
    rng = np.random.default_rng()
    for _ in range(10):
        chosen = rng.choice(rest, BATCH)
        yield read((paths[chosen], targets[chosen]), rng)


flow.Trainer(max_epochs=1).fit(train, batches)["loss"]

# %% [markdown]
# ## Record files
#
# Millions of small files are slow to read. `python -m oneflow.data pack images FOLDER DIRECTORY` packs them; here the same
# from Python, for digits that come with the library. The reader and the decoders are ops of the job: it takes no
# arguments, and batches are read ahead while the device computes.

# %%
from oneflow.data import samples  # noqa: E402

records = folder.parent / f"{folder.name}-records"
samples.digits(str(records), count=min(COUNT, 640), parts=2)


@flow.global_function(type="train")
def train_from_records() -> dict[str, tp.Numpy]:
    record = flow.data.ofrecord_reader(str(records), batch_size=64, data_part_num=2, random_shuffle=True, shuffle_buffer_size=256)
    labels = flow.data.OFRecordRawDecoder(record, "class/label", shape=(), dtype=flow.int32)
    encoded = flow.data.OFRecordImageDecoderRandomCrop(record, "encoded", color_space="GRAY", random_area=(0.8, 1.0))
    resized, _, _ = flow.image.Resize(encoded, target_size=(24, 24), channels=1)
    images = flow.image.CropMirrorNormalize(resized, color_space="GRAY", mean=[128.0], std=[64.0])
    hidden = flow.layers.dense(flow.flatten(images, 1), 64, activation=flow.nn.relu, name="records-hidden",
                               kernel_initializer=flow.xavier_uniform_initializer())  # fmt: skip
    logits = flow.layers.dense(hidden, 10, name="records-output", kernel_initializer=flow.xavier_uniform_initializer())
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [1e-3])).minimize(loss)
    return {"loss": loss, "images": images}


results = [train_from_records() for _ in range(40)]
print(f"loss {results[0]['loss'].mean():.2f}, after {len(results)} steps {results[-1]['loss'].mean():.2f}")

# %%
figure, axes = plt.subplots(1, 10, figsize=(10, 1.2))
for axis, image in zip(axes, results[-1]["images"], strict=False):
    axis.imshow(image[0], cmap="gray")
    axis.axis("off")
plt.show()
