"""Segmentation: a small U-Net finds the pixels of a digit in clutter.

python examples/train_segmentation.py [--steps N]

Each image shows a digit of MNIST at a random place, and fragments of others around it that are not part of it. Training images
are made while the last ones are computed.
"""

import argparse

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH, SIZE, FRAGMENT = 32, 48, 8


def block(x, filters, name):
    for i in range(2):
        x = flow.layers.conv2d(
            x,
            filters,
            3,
            padding="SAME",
            activation=flow.nn.relu,
            kernel_initializer=flow.variance_scaling_initializer(2.0),
            name=f"{name}_{i}",
        )
    return x


def unet(x):
    """Logits (N, 1, SIZE, SIZE) of images (N, 1, SIZE, SIZE)."""
    skips = []
    for depth, filters in enumerate((16, 32)):
        skips.append(block(x, filters, f"down{depth}"))
        x = flow.nn.max_pool2d(skips[-1], 2, 2, "VALID")
    x = block(x, 64, "bottom")
    for depth, filters in ((1, 32), (0, 16)):
        x = flow.concat([flow.layers.upsample_2d(x, (2, 2), name=f"larger{depth}"), skips[depth]], axis=1)
        x = block(x, filters, f"up{depth}")
    return flow.layers.conv2d(x, 1, 1, kernel_initializer=flow.variance_scaling_initializer(2.0), name="output")


Images = tp.Numpy.Placeholder((BATCH, 1, SIZE, SIZE))


@flow.global_function("train")
def train(images: Images, masks: Images) -> tp.Callback[tp.Numpy]:
    loss = flow.math.reduce_mean(flow.nn.sigmoid_cross_entropy_with_logits(masks, unet(images)))
    flow.optimizer.Adam(flow.optimizer.CosineScheduler(2e-3, 1000, alpha=0.05)).minimize(loss)
    return loss


@flow.global_function("predict")
def segment(images: Images) -> tp.Numpy:
    return flow.math.sigmoid(unet(images))


def examples(digits, rng):
    """Endless (images, masks) of one batch."""
    room = SIZE - 28
    while True:
        images = np.zeros((BATCH, 1, SIZE, SIZE), np.float32)
        masks = np.zeros_like(images)
        for image, mask in zip(images[:, 0], masks[:, 0], strict=True):
            for _ in range(12):
                part = digits[rng.integers(len(digits)), 10 : 10 + FRAGMENT, 10 : 10 + FRAGMENT]
                top, left = rng.integers(0, SIZE - FRAGMENT, 2)
                image[top : top + FRAGMENT, left : left + FRAGMENT] = part
            top, left = rng.integers(0, room, 2)
            digit = digits[rng.integers(len(digits))]
            window = (slice(top, top + 28), slice(left, left + 28))
            image[window] = np.where(digit > 0, digit, image[window])
            mask[window] = digit > 0.5
        yield images, masks


def intersection_over_union(found, masks):
    return (found & masks).sum() / (found | masks).sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()

    (train_digits, _), (test_digits, _) = flow.data.load_mnist(100, 100)
    flow.manual_seed(0)
    source = examples(train_digits.reshape(-1, 28, 28), np.random.default_rng(0))
    for step in range(options.steps):

        def show(loss, step=step):
            if step % 50 == 0 or step == options.steps - 1:
                print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)

        train(*next(source))(show)  # the next images are made while this one is computed
    flow.sync_default_session()

    unseen = examples(test_digits.reshape(-1, 28, 28), np.random.default_rng(1))
    scores = [intersection_over_union(segment(x) > 0.5, m > 0) for x, m in (next(unseen) for _ in range(10))]
    print(f"intersection over union on digits that were never seen: {np.mean(scores):.3f}")


if __name__ == "__main__":
    main()
