"""Inception-v3 (Szegedy et al. 2015, "Rethinking the Inception Architecture for Computer Vision").

Layers are named as PyTorch programs name them, with "-" for ".". Average pooling inside blocks does not count padding, as in
the authors' program (PyTorch's usual copy counts it).
"""

from dataclasses import replace

from vision import Blob, Layers, Sizes

import oneflow as flow


def _unit(net: Layers, x: Blob, filters: int, kernel: Sizes, name: str, strides: int = 1, pad: Sizes = 0) -> Blob:
    """Convolution, normalization, relu."""
    with flow.scope.namespace(name):
        return flow.nn.relu(net.batch_norm(net.conv2d(x, filters, kernel, "conv", strides, pad), "bn"))


def _pooled(net: Layers, x: Blob, filters: int) -> Blob:
    return _unit(net, net.avg_pool(x, 3, 1, "SAME", name="pool"), filters, 1, "branch_pool")


def _joined(net: Layers, *branches: Blob) -> Blob:
    return flow.concat(list(branches), axis=net.channel_axis)


def _block_a(net: Layers, x: Blob, pooled: int) -> Blob:
    """1x1, 5x5, twice 3x3, and pooling."""
    five = _unit(net, _unit(net, x, 48, 1, "branch5x5_1"), 64, 5, "branch5x5_2", pad=2)
    three = _unit(net, _unit(net, x, 64, 1, "branch3x3dbl_1"), 96, 3, "branch3x3dbl_2", pad=1)
    three = _unit(net, three, 96, 3, "branch3x3dbl_3", pad=1)
    return _joined(net, _unit(net, x, 64, 1, "branch1x1"), five, three, _pooled(net, x, pooled))


def _block_b(net: Layers, x: Blob) -> Blob:
    """Half the height and width."""
    twice = _unit(net, _unit(net, x, 64, 1, "branch3x3dbl_1"), 96, 3, "branch3x3dbl_2", pad=1)
    twice = _unit(net, twice, 96, 3, "branch3x3dbl_3", strides=2)
    return _joined(net, _unit(net, x, 384, 3, "branch3x3", strides=2), twice, net.max_pool(x, 3, 2, name="pool"))


def _block_c(net: Layers, x: Blob, width: int) -> Blob:
    """7x7 in steps of 1x7 and 7x1, once and twice."""
    flat, tall = (0, 3), (3, 0)
    once = _unit(net, _unit(net, x, width, 1, "branch7x7_1"), width, (1, 7), "branch7x7_2", pad=flat)
    once = _unit(net, once, 192, (7, 1), "branch7x7_3", pad=tall)
    twice = _unit(net, x, width, 1, "branch7x7dbl_1")
    twice = _unit(net, twice, width, (7, 1), "branch7x7dbl_2", pad=tall)
    twice = _unit(net, twice, width, (1, 7), "branch7x7dbl_3", pad=flat)
    twice = _unit(net, twice, width, (7, 1), "branch7x7dbl_4", pad=tall)
    twice = _unit(net, twice, 192, (1, 7), "branch7x7dbl_5", pad=flat)
    return _joined(net, _unit(net, x, 192, 1, "branch1x1"), once, twice, _pooled(net, x, 192))


def _block_d(net: Layers, x: Blob) -> Blob:
    """Half the height and width again."""
    three = _unit(net, _unit(net, x, 192, 1, "branch3x3_1"), 320, 3, "branch3x3_2", strides=2)
    seven = _unit(net, _unit(net, x, 192, 1, "branch7x7x3_1"), 192, (1, 7), "branch7x7x3_2", pad=(0, 3))
    seven = _unit(net, seven, 192, (7, 1), "branch7x7x3_3", pad=(3, 0))
    seven = _unit(net, seven, 192, 3, "branch7x7x3_4", strides=2)
    return _joined(net, three, seven, net.max_pool(x, 3, 2, name="pool"))


def _block_e(net: Layers, x: Blob) -> Blob:
    """3x3 as 1x3 beside 3x1, once and behind another 3x3."""

    def crossed(y: Blob, name: str) -> tuple[Blob, Blob]:
        return (
            _unit(net, y, 384, (1, 3), f"{name}a", pad=(0, 1)),
            _unit(net, y, 384, (3, 1), f"{name}b", pad=(1, 0)),
        )

    three = crossed(_unit(net, x, 384, 1, "branch3x3_1"), "branch3x3_2")
    twice = _unit(net, _unit(net, x, 448, 1, "branch3x3dbl_1"), 384, 3, "branch3x3dbl_2", pad=1)
    return _joined(net, _unit(net, x, 320, 1, "branch1x1"), *three, *crossed(twice, "branch3x3dbl_3"), _pooled(net, x, 192))


def inception_v3(images: Blob, classes: int = 1000, net: Layers | None = None, rate: float = 0.5) -> Blob:
    """Logits (N, classes) of images (N, 3, H, W), or (N, H, W, 3) where net.data_format says so; H, W >= 75.

    rate: of dropout before the last layer. The auxiliary classifier of the paper is left out.
    """
    net = net or Layers()
    net = replace(net, epsilon=1e-3)  # outputs are shared
    x = _unit(net, images, 32, 3, "Conv2d_1a_3x3", strides=2)
    x = _unit(net, x, 32, 3, "Conv2d_2a_3x3")
    x = net.max_pool(_unit(net, x, 64, 3, "Conv2d_2b_3x3", pad=1), 3, 2, name="maxpool1")
    x = _unit(net, x, 80, 1, "Conv2d_3b_1x1")
    x = net.max_pool(_unit(net, x, 192, 3, "Conv2d_4a_3x3"), 3, 2, name="maxpool2")
    blocks = [("5b", _block_a, 32), ("5c", _block_a, 64), ("5d", _block_a, 64), ("6a", _block_b)]
    blocks += [("6b", _block_c, 128), ("6c", _block_c, 160), ("6d", _block_c, 160), ("6e", _block_c, 192)]
    blocks += [("7a", _block_d), ("7b", _block_e), ("7c", _block_e)]
    for name, block, *more in blocks:
        with flow.scope.namespace(f"Mixed_{name}"):
            x = block(net, x, *more)
        net.outputs[f"Mixed_{name}"] = x
    return net.dense(net.dropout(net.global_pool(x), rate, "dropout"), classes, "fc")
