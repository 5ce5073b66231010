"""Runs a tutorial's program as ``python program.py`` would, but on the first batches only.

    python runner.py PROGRAM TRAIN_BATCHES TEST_BATCHES

Neither the program is edited nor the library asked for anything: the two functions that give data are wrapped from
outside. A slice of what they return is of the same kind of array.
"""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def bounded(load: Callable[..., Any], train_batches: int, test_batches: int) -> Callable[..., Any]:
    """``load``, returning fewer batches."""

    def load_fewer(*args: Any, **kwargs: Any) -> Any:
        (train_images, train_labels), (test_images, test_labels) = load(*args, **kwargs)
        train = train_images[:train_batches], train_labels[:train_batches]
        test = test_images[:test_batches], test_labels[:test_batches]
        assert type(train[0]) is type(train_images) and type(test[1]) is type(test_labels)
        return train, test

    return load_fewer


def main() -> None:
    program, train_batches, test_batches = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    sys.argv = [str(program)]
    sys.path[0] = str(program.parent)

    import oneflow as flow

    flow.manual_seed(1)  # the same first weights in every run of the tests
    flow.data.load_mnist = bounded(flow.data.load_mnist, train_batches, test_batches)
    if importlib.util.find_spec("mnist_util"):
        mnist_util = importlib.import_module("mnist_util")
        mnist_util.load_data = bounded(mnist_util.load_data, train_batches, test_batches)
    left = runpy.run_path(str(program), run_name="__main__")
    if "g_total" in left:
        print(f"images counted: {left['g_total']}", file=sys.stderr)


if __name__ == "__main__":
    main()
