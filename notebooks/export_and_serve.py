# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Export and serve
#
# At the end of this notebook you have a trained model that runs without this library, as ONNX and as StableHLO, and over HTTP. It
# needs `pip install "oneflow-jax[onnx,export,serve]" onnxruntime`.

# %%
import json
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime

import oneflow as flow
import oneflow.typing as tp

# %% tags=["parameters"]
STEPS = 600
REQUESTS = 1000

# %% [markdown]
# ## A model to export

# %%
BATCH = 100
flow.manual_seed(0)


def network(images):
    options = {"kernel_initializer": flow.truncated_normal(0.1)}
    x = flow.layers.dense(flow.flatten(images, 1), 128, activation=flow.nn.relu, name="hidden", **options)
    return flow.layers.dense(x, 10, name="output", **options)


@flow.global_function(type="train")
def train(images: tp.Numpy.Placeholder((BATCH, 1, 28, 28)), labels: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images))
    flow.optimizer.Adam(flow.optimizer.CosineScheduler(2e-3, STEPS)).minimize(loss)
    return loss


@flow.global_function(type="predict")
def digits(images: tp.Numpy.Placeholder((BATCH, 1, 28, 28))) -> dict[str, tp.Numpy]:
    return {"probabilities": flow.nn.softmax(network(images))}


(train_images, train_labels), (test_images, test_labels) = flow.data.load_mnist(BATCH, BATCH)
flow.Trainer(max_steps=STEPS, max_epochs=10).fit(train, (train_images, train_labels))
expected = digits(test_images[0])["probabilities"]

# %% [markdown]
# ## ONNX
#
# Predict jobs are exported, with an open batch: the file takes any number of images, whatever the job declared.

# %%
directory = Path(tempfile.mkdtemp())
flow.export.onnx(digits, directory / "digits.onnx")
session = onnxruntime.InferenceSession(str(directory / "digits.onnx"))
(found,) = session.run(["probabilities"], {"images": test_images[0][:7]})
np.testing.assert_allclose(found, expected[:7], rtol=1e-3, atol=1e-6)
[(value.name, value.type, value.shape) for value in session.get_inputs() + session.get_outputs()]

# %% [markdown]
# ## StableHLO
#
# The same for everything that runs XLA. `jax.export` reads the file where this library is not installed.

# %%
models = directory / "models"
models.mkdir()
flow.export.stablehlo(digits, models / "digits.stablehlo")
loaded = flow.export.load(models / "digits.stablehlo")
np.testing.assert_allclose(loaded(test_images[0])["probabilities"], expected, rtol=1e-3, atol=1e-6)
print(loaded)

# %% [markdown]
# ## HTTP
#
# `oneflow serve models` on the command line; in a notebook the same server on a thread. It speaks KServe's v2 protocol and
# joins requests into batches.

# %%
server = flow.serving.Server(models, port=0).start()
print("serving at", server.url.rpartition(":")[0] + ":PORT")


def ask(image):
    """The probabilities of the digits on an image (1, 28, 28), and the seconds until the answer."""
    given = {"name": "images", "datatype": "FP32", "shape": [1, 1, 28, 28], "data": image.ravel().tolist()}
    request = urllib.request.Request(
        f"{server.url}/v2/models/digits/infer", json.dumps({"inputs": [given]}).encode(), method="POST"
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as response:
        (output,) = json.load(response)["outputs"]
    return np.array(output["data"]), time.perf_counter() - began


probabilities, _ = ask(test_images[0][0])
figure, (left, right) = plt.subplots(1, 2, figsize=(6, 2.2))
left.imshow(test_images[0][0][0], cmap="gray")
left.axis("off")
right.bar(range(10), probabilities)
right.set_xticks(range(10))
plt.show()

# %% [markdown]
# Eight clients at once:

# %%
questions = test_images.reshape(-1, 1, 28, 28)[:REQUESTS]
answers = test_labels.ravel()[:REQUESTS]
began = time.perf_counter()
with ThreadPoolExecutor(8) as clients:
    results = list(clients.map(ask, questions))
seconds = time.perf_counter() - began
correct = np.mean([p.argmax() == answer for (p, _), answer in zip(results, answers, strict=True)])
print(f"{len(results) / seconds:.0f} answers per second, {100 * correct:.1f} % of the digits right")

figure, axis = plt.subplots(figsize=(6, 2.5))
axis.hist([1000 * latency for _, latency in results], bins=40)
axis.set_xlabel("milliseconds until the answer")
plt.show()

# %%
server.stop()
