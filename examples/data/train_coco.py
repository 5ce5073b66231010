"""Trains a small network on a COCO data set to find, pixel by pixel, where objects are; reports how well the areas agree.

python examples/data/train_coco.py --steps 150

A step sees one image. Objects come as polygons, as many as the image has: masks of them enter the step with their true
number, and a step is compiled once for each number met.
"""

import argparse
import tempfile

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from oneflow.data import samples

SIZE = 64
MOST = 16  # objects of an image


def network(images: flow.Blob) -> flow.Blob:
    initializer = flow.variance_scaling_initializer(2.0)
    x = images
    for i in range(3):
        x = flow.layers.conv2d(x, 16, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=initializer, name=f"conv{i}")
    return flow.layers.conv2d(x, 1, 1, padding="SAME", kernel_initializer=initializer, name="out")


def read(annotations, images_dir, shuffle):
    """An image (1, 3, SIZE, SIZE), mirrored now and then, and the union of its objects' masks (1, 1, SIZE, SIZE)."""
    encoded, _, _, _, _, polygons, index = flow.data.coco_reader(annotations, images_dir, 1, shuffle=shuffle, name="coco")
    pixels, scale, _ = flow.image.Resize(flow.image.decode(encoded), target_size=(SIZE, SIZE))
    polygons = flow.detection.object_segmentation_polygon_scale(polygons, scale)
    size = flow.constant(SIZE, flow.int32, (1, 2))
    mirrored = None
    if shuffle:
        mirrored = flow.random.CoinFlip(1)
        polygons = flow.detection.object_segmentation_polygon_flip(polygons, size, mirrored)
    x = flow.image.CropMirrorNormalize(pixels, mirrored, mean=[64.0], std=[64.0])
    masks = flow.detection.object_segmentation_polygon_to_mask(polygons, index, size)
    (mask,) = flow.tensor_list_split(flow.tensor_buffer_to_tensor_list(masks, (MOST, SIZE, SIZE), flow.float))
    return x, flow.reshape(flow.math.reduce_max(mask, axis=[0]), (1, 1, SIZE, SIZE))


def make_jobs(options, train, test):
    """A train job to its loss, and a predict job to the overlap: pixels in both areas, and in either."""

    @flow.global_function(type="train")
    def train_job() -> tp.Callback[tp.ListNumpy]:
        x, target = read(*train, shuffle=True)
        loss = flow.math.reduce_mean(flow.nn.sigmoid_cross_entropy_with_logits(target, network(x)))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [options.learning_rate])).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def eval_job() -> tuple[tp.ListNumpy, tp.ListNumpy]:
        x, target = read(*test, shuffle=False)
        found = flow.cast(network(x) > flow.zeros((1, 1, SIZE, SIZE)), flow.float)
        return flow.math.reduce_sum(found * target), flow.math.reduce_sum(flow.math.maximum(found, target))

    return train_job, eval_job


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--images", "--pictures", dest="images", type=int, default=64, help="made for training (64)")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    return parser


def main():
    options = arguments().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train, test = (
            (samples.coco(f"{folder}/{name}", count, seed=seed)[0], f"{folder}/{name}/images")
            for name, count, seed in (("train", options.images, 1), ("test", 16, 2))
        )
        train_job, eval_job = make_jobs(options, train, test)

        def report(step):
            return lambda loss: print(f"step {step:4d}  loss {loss[0].item():.4f}", flush=True) if step % 25 == 0 else None

        for step in range(options.steps):
            train_job()(report(step))
        flow.sync_default_session()
        both, either = np.sum([[value[0].item() for value in eval_job()] for _ in range(16)], axis=0)
        print(f"areas agree by {100 * both / either:.0f}%")
        flow.clear_default_session()


if __name__ == "__main__":
    try:
        main()
    except flow.errors.MissingExtraError as error:  # its lines as one
        raise SystemExit("; ".join(" ".join(line.split()) for line in str(error).splitlines())) from None
