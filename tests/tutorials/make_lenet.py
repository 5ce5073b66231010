"""Trains and saves the model that page 1 offered for download, with the page's own ``lenet`` function.

    python make_lenet.py PROGRAM TRAIN_BATCHES

``PROGRAM`` is imported, so its main part does not run.
"""

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    program, train_batches = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    sys.path[0] = str(program.parent)
    spec = importlib.util.spec_from_file_location("evaluation", program)
    assert spec is not None and spec.loader is not None
    evaluation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(evaluation)

    import mnist_util
    import oneflow as flow
    import oneflow.typing as tp

    flow.manual_seed(1)
    batch_size = evaluation.BATCH_SIZE

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder((batch_size, 1, 28, 28), dtype=flow.float),
        labels: tp.Numpy.Placeholder((batch_size,), dtype=flow.int32),
    ) -> tp.Numpy:
        logits = evaluation.lenet(images)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    check_point = flow.train.CheckPoint()
    check_point.init()
    (train_images, train_labels), _ = mnist_util.load_data(batch_size)
    for images, labels in zip(train_images[:train_batches], train_labels[:train_batches], strict=True):
        loss = train_job(images, labels)
    print(loss.mean())
    check_point.save("./lenet_models_1")


if __name__ == "__main__":
    main()
