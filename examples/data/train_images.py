"""Trains a small network on images in OFRecord parts, saves, and reports the accuracy on other images.

python examples/data/train_images.py --steps 60
python -m oneflow.data pack images FOLDER PARTS makes such parts of a folder of images.
"""

import argparse
import tempfile

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from oneflow.data import samples

MEAN, STD = (123.68, 116.78, 103.94), (58.4, 57.1, 57.4)  # red, green, blue


def network(images: flow.Blob, classes: int) -> flow.Blob:
    initializer = flow.variance_scaling_initializer(2.0)
    x = images
    for i, filters in enumerate((16, 32)):
        x = flow.layers.conv2d(x, filters, 3, 2, activation=flow.nn.relu, kernel_initializer=initializer, name=f"conv{i}")
    x = flow.flatten(flow.nn.avg_pool2d(x, 4, 4, "VALID"), start_dim=1)
    return flow.layers.dense(x, classes, kernel_initializer=initializer, name="out")


def make_jobs(options, train_dir, test_dir):
    """A train job to its loss, and a predict job to scores and labels. Neither takes arguments: they read by themselves."""
    size, batch = options.size, options.batch

    @flow.global_function(type="train")
    def train_job() -> tp.Callback[tp.Numpy]:
        records = flow.data.ofrecord_reader(
            train_dir, batch, data_part_num=options.parts, random_shuffle=True, shuffle_buffer_size=256, shuffle_after_epoch=True
        )
        labels = flow.data.OFRecordRawDecoder(records, "class/label", shape=(), dtype=flow.int32)
        images = flow.data.OFRecordImageDecoderRandomCrop(records, "encoded", color_space="RGB", random_area=(0.3, 1.0))
        images, _, _ = flow.image.Resize(images, target_size=(size, size))
        mirrored = flow.random.CoinFlip(batch)
        x = flow.image.CropMirrorNormalize(images, mirrored, color_space="RGB", mean=MEAN, std=STD)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(x, samples.CLASSES))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [options.learning_rate])).minimize(loss)
        return flow.math.reduce_mean(loss)

    @flow.global_function(type="predict")
    def eval_job() -> tuple[tp.Numpy, tp.Numpy]:
        images, labels = flow.data.ofrecord_image_classification_reader(
            test_dir, "encoded", "class/label", batch, data_part_num=1, color_space="RGB"
        )
        images, _, _ = flow.image.Resize(images, target_size=size + 8, keep_aspect_ratio=True, resize_side="shorter")
        x = flow.image.CropMirrorNormalize(images, color_space="RGB", crop_h=size, crop_w=size, mean=MEAN, std=STD)
        return network(x, samples.CLASSES), labels

    return train_job, eval_job


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", type=int, default=64, help="of the images that the network sees (default: %(default)s)")
    parser.add_argument("--images", "--pictures", dest="images", type=int, default=512, help="made for training (512)")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--save", help="directory for the trained variables and the readers' positions")
    parser.add_argument("--resume", help="such a directory: goes on with the batch that would have come next")
    return parser


def main():
    options = arguments().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train_dir, test_dir = f"{folder}/train", f"{folder}/test"
        samples.photographs(train_dir, options.images, options.parts, seed=1, scale=0.3)
        samples.photographs(test_dir, 2 * options.batch, 1, seed=2, scale=0.3)
        train_job, eval_job = make_jobs(options, train_dir, test_dir)
        if options.resume:
            flow.load_variables(flow.checkpoint.get(options.resume))

        def report(step):
            return lambda loss: print(f"step {step:4d}  loss {loss.item():.4f}", flush=True) if step % 10 == 0 else None

        for step in range(options.steps):
            train_job()(report(step))
        flow.sync_default_session()
        if options.save:
            flow.checkpoint.save(options.save)
        pairs = [eval_job() for _ in range(2)]
        right = np.concatenate([scores.argmax(1) == labels for scores, labels in pairs])
        print(f"accuracy on other images: {100 * right.mean():.1f}%")
        flow.clear_default_session()  # the readers close their files before the folder goes


if __name__ == "__main__":
    try:
        main()
    except flow.errors.MissingExtraError as error:  # its lines as one
        raise SystemExit("; ".join(" ".join(line.split()) for line in str(error).splitlines())) from None
