"""A debugging session: values are printed from inside a job, a NaN is traced to its line, and a step to where its time goes.

python examples/programs/debugging.py [--steps N]
"""

import argparse
from typing import Annotated

import numpy as np

import oneflow as flow
import oneflow.typing as tp

X = Annotated[tp.Numpy, tp.Numpy.Placeholder((8, 4))]


@flow.global_function("train")
def train(x: X) -> tp.Numpy:
    positive = flow.layers.dense(x, 3, kernel_initializer=flow.ones_initializer(), name="dense")
    flow.print("positive:", positive, every=100)
    loss = flow.math.reduce_mean(flow.math.log(positive))
    flow.optimizer.SGD(0.1).minimize(loss)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="steps that are measured (default: %(default)s)")
    arguments = parser.parse_args()

    x = np.ones((8, 4), np.float32)
    print("loss:", train(x))

    broken = x.copy()
    broken[2] = -100
    report = train.find_nonfinite(broken)
    assert report is not None
    print(report)
    print("the op to look at:", report.name, "at", report.source)

    profile = train.profile(x, steps=3)
    slowest = max(profile.rows, key=lambda row: row.forward_ms + row.backward_ms)
    print(f"{slowest.name} takes {slowest.share:.0%} of a step")

    with train.throughput() as measured:
        results = [train.submit(x) for _ in range(arguments.steps)]
        losses = [result.result().item() for result in results]
    print(f"{measured().steps} steps, the last loss {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
