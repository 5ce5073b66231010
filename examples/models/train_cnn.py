"""Trains an image model on random images, or on MNIST blown up to colour images, and evaluates what it learned.

python examples/models/train_cnn.py --model resnet50 --batch 8 --size 64 --steps 20
"""

import time

import command_line
import numpy as np
from inception_v3 import inception_v3
from mobilenet_v2 import mobilenet_v2
from plain_cnn import alexnet, vgg16
from resnet import resnet50
from vision import Layers

import oneflow as flow
import oneflow.typing as tp

MODELS = {
    "alexnet": alexnet,
    "inception_v3": inception_v3,
    "mobilenet_v2": mobilenet_v2,
    "resnet50": resnet50,
    "vgg16": vgg16,
}


def smoothed_loss(logits, labels, classes, smoothing):
    """Cross entropy against labels that leave `smoothing` of their weight to the other classes."""
    if smoothing == 0:
        return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    off = smoothing / classes
    targets = flow.one_hot(labels, classes, on_value=1 - smoothing + off, off_value=off, dtype=flow.float)
    return flow.nn.softmax_cross_entropy_with_logits(targets, logits)


def make_jobs(options):
    """A train job and a predict job that share their variables by name."""
    size = (3, options.size, options.size) if options.data_format == "NCHW" else (options.size, options.size, 3)
    shape = (options.batch, *size)
    model = MODELS[options.model]

    def layers(training):
        decay = flow.regularizers.l2(options.weight_decay) if options.weight_decay else None
        return Layers(training=training, data_format=options.data_format, regularizer=decay)

    config = flow.function_config()
    config.default_data_type(flow.float)
    if options.amp:
        config.enable_auto_mixed_precision(True)

    @flow.global_function(type="train", function_config=config)
    def train_job(
        images: tp.Numpy.Placeholder(shape, dtype=flow.float),
        labels: tp.Numpy.Placeholder((options.batch,), dtype=flow.int32),
    ) -> tp.Callback[tp.Numpy]:
        logits = model(images, options.classes, layers(training=True))
        loss = smoothed_loss(logits, labels, options.classes, options.label_smoothing)
        warmup = flow.optimizer.warmup.linear(options.warmup, 0.1) if options.warmup else None
        rate = flow.optimizer.CosineScheduler(options.learning_rate, options.steps, alpha=0.01, warmup=warmup)
        flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return flow.math.reduce_mean(loss)

    @flow.global_function(type="predict", function_config=config)
    def eval_job(images: tp.Numpy.Placeholder(shape, dtype=flow.float)) -> tp.Numpy:
        return model(images, options.classes, layers(training=False))

    return train_job, eval_job


def batches(options):
    """Endless (images, labels): noise with a pattern for each class, or MNIST."""
    rng = np.random.default_rng(0)
    if options.data == "mnist":
        (images, labels), _ = flow.data.load_mnist(100, 100)
        images, labels = np.reshape(images, (-1, 1, 28, 28)), np.reshape(labels, -1)
        zoom = np.ones((1, 3, -(-options.size // 28), -(-options.size // 28)), np.float32)
        while True:
            chosen = rng.integers(0, len(images), options.batch)
            big = np.kron(images[chosen], zoom)[..., : options.size, : options.size]
            yield arranged(big, options.data_format), labels[chosen]
    patterns = rng.standard_normal((options.classes, 3, options.size, options.size), np.float32)
    while True:
        labels = rng.integers(0, options.classes, options.batch, dtype=np.int32)
        noise = rng.standard_normal((options.batch, 3, options.size, options.size), np.float32)
        yield arranged(patterns[labels] + 0.5 * noise, options.data_format), labels


def arranged(images, data_format):
    return np.ascontiguousarray(images if data_format == "NCHW" else images.transpose(0, 2, 3, 1))


def arguments():
    parser = command_line.make_parser(__doc__, batch=8, steps=20, learning_rate=0.01, warmup=5)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet50")
    parser.add_argument("--data", choices=("random", "mnist"), default="random")
    parser.add_argument("--size", type=int, default=64, help="height and width of the images (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--data-format", choices=("NCHW", "NHWC"), default="NCHW")
    return parser


def main():
    options = arguments().parse_args()
    train_job, eval_job = make_jobs(options)
    command_line.load(options)
    source = batches(options)
    start = time.perf_counter()

    def report(step):
        def show(loss):
            print(f"step {step:4d}  loss {loss.item():.4f}  {time.perf_counter() - start:.1f} s", flush=True)

        return show

    for step in range(options.steps):
        train_job(*next(source))(report(step))
    flow.sync_default_session()
    images, labels = next(source)
    accuracy = (eval_job(images).argmax(1) == labels).mean()
    print(f"accuracy on a new batch: {100 * accuracy:.0f}%")
    command_line.save(options)


if __name__ == "__main__":
    main()
