"""Trains a DCGAN on MNIST by two train jobs in turn, and draws what the generator makes.

python examples/models/train_dcgan.py --steps 300 --image digits.png
"""

import command_line
import dcgan
import numpy as np
from PIL import Image

import oneflow as flow
import oneflow.typing as tp


def make_jobs(options):
    """Train jobs codes -> loss and (codes, images) -> loss, and a predict job codes -> images."""
    codes = tp.Numpy.Placeholder((options.batch, dcgan.CODE), dtype=flow.float)

    def adam():
        return flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [options.learning_rate]), beta1=0.5)

    @flow.global_function(type="train")
    def train_generator(codes: codes) -> tp.Numpy:
        loss = dcgan.generator_loss(codes, options.width)
        adam().minimize(loss)
        return flow.math.reduce_mean(loss)

    @flow.global_function(type="train")
    def train_discriminator(codes: codes, images: tp.Numpy.Placeholder((options.batch, 1, 28, 28), dtype=flow.float)) -> tp.Numpy:
        loss = dcgan.discriminator_loss(codes, images, options.width)
        adam().minimize(loss)
        return flow.math.reduce_mean(loss)

    @flow.global_function(type="predict")
    def draw(codes: codes) -> tp.Numpy:
        return dcgan.generator(codes, width=options.width)

    return train_generator, train_discriminator, draw


def arguments():
    parser = command_line.make_parser(__doc__, batch=64, steps=300, learning_rate=2e-4)
    parser.add_argument("--width", type=int, default=32, help="a factor of all channels (default: %(default)s)")
    parser.add_argument("--image", "--picture", dest="image", help="where to draw digits that the generator made")
    return parser


def main():
    options = arguments().parse_args()
    train_generator, train_discriminator, draw = make_jobs(options)
    (images, _), _ = flow.data.load_mnist(100, 100)
    digits, rng = 2 * np.reshape(images, (-1, 1, 28, 28)) - 1, np.random.default_rng(0)

    def codes():
        return rng.standard_normal((options.batch, dcgan.CODE), np.float32)

    command_line.load(options)
    for step in range(options.steps):
        second = train_discriminator(codes(), digits[rng.integers(0, len(digits), options.batch)])
        first = train_generator(codes())
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step:4d}  generator {first.item():.4f}  discriminator {second.item():.4f}", flush=True)
    if options.image:
        side = int(options.batch**0.5)
        made = draw(codes())[: side * side].reshape(side, side, 28, 28).transpose(0, 2, 1, 3).reshape(side * 28, side * 28)
        Image.fromarray(((made + 1) * 127.5).astype(np.uint8)).save(options.image)
        print(f"drew {options.image}")
    command_line.save(options)


if __name__ == "__main__":
    main()
