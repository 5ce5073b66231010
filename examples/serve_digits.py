"""Serving: a trained LeNet is exported, served over HTTP, and asked by clients that use nothing but Python.

python examples/serve_digits.py [--steps N] [--requests N]

To go on serving a directory of exported models: python -m oneflow.serving DIRECTORY
"""

import argparse
import json
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from train_lenet import lenet

import oneflow as flow
import oneflow.typing as tp

BATCH = 100


@flow.global_function("train")
def train(images: tp.Numpy.Placeholder((BATCH, 1, 28, 28)), labels: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, lenet(images, train=True))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
    return loss


@flow.global_function("predict")
def digits(images: tp.Numpy.Placeholder((1, 1, 28, 28))) -> dict[str, tp.Numpy]:
    return {"probabilities": flow.nn.softmax(lenet(images))}


def ask(url, image):
    """The digit that the server sees on an image (28, 28)."""
    question = {"inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 1, 28, 28], "data": image.ravel().tolist()}]}
    request = urllib.request.Request(f"{url}/v2/models/digits/infer", json.dumps(question).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        (output,) = json.load(response)["outputs"]
    return int(np.argmax(output["data"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()

    (images, labels), (test_images, test_labels) = flow.data.load_mnist(BATCH, 1)
    flow.manual_seed(0)
    flow.Trainer(max_steps=options.steps, max_epochs=100).fit(train, (images, labels))
    with tempfile.TemporaryDirectory() as models:
        flow.export.stablehlo(digits, Path(models, "digits.stablehlo"), "cpu", dynamic_axes={"images": {0: "batch"}})
        with flow.serving.Server(models, port=0) as server, ThreadPoolExecutor(8) as clients:
            print(f"serving at {server.url}")
            began = time.perf_counter()
            found = list(clients.map(lambda image: ask(server.url, image), test_images[: options.requests]))
            seconds = time.perf_counter() - began
    right = np.mean(np.array(found) == test_labels[: options.requests].ravel())
    print(f"{len(found) / seconds:.0f} answers per second to 8 clients; {100 * right:.1f} % of the digits are right")


if __name__ == "__main__":
    main()
