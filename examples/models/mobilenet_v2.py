"""MobileNet-v2 (Sandler et al. 2018): blocks that widen, convolve each channel by itself, and narrow again.

Layers are named by their number, as PyTorch programs name them, with "-" for ".".
"""

from vision import Blob, Layers

import oneflow as flow

# (how much wider inside, channels, blocks, stride of the first block)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _rounded(channels: float) -> int:
    """The nearest multiple of 8 that does not take away more than a tenth."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


def _unit(net: Layers, x: Blob, filters: int, kernel: int, strides: int = 1, groups: int = 1) -> Blob:
    """Convolution, normalization, relu6."""
    x = net.conv2d(x, filters, kernel, "0", strides, pad=kernel // 2, groups=groups)
    return flow.nn.relu6(net.batch_norm(x, "1"))


def _block(net: Layers, x: Blob, channels: int, widening: int, strides: int) -> Blob:
    inside = x.shape[net.channel_axis] * widening
    y, number = x, 0
    with flow.scope.namespace("conv"):
        if widening != 1:
            with flow.scope.namespace("0"):
                y = _unit(net, y, inside, 1)
            number = 1
        with flow.scope.namespace(str(number)):
            y = _unit(net, y, inside, 3, strides, groups=inside)
        y = net.batch_norm(net.conv2d(y, channels, 1, str(number + 1)), str(number + 2))
    return y + x if strides == 1 and x.shape[net.channel_axis] == channels else y


def mobilenet_v2(images: Blob, classes: int = 1000, net: Layers | None = None, width: float = 1.0, rate: float = 0.2) -> Blob:
    """Logits (N, classes) of images (N, 3, H, W), or (N, H, W, 3) where net.data_format says so; any H, W.

    width: a factor of all numbers of channels. rate: of dropout before the last layer.
    """
    net = net or Layers()
    with flow.scope.namespace("features-0"):
        x = _unit(net, images, _rounded(32 * width), 3, strides=2)
    number = 1
    for widening, channels, blocks, strides in STAGES:
        for block in range(blocks):
            with flow.scope.namespace(f"features-{number}"):
                x = _block(net, x, _rounded(channels * width), widening, strides if block == 0 else 1)
            net.outputs[f"features-{number}"] = x
            number += 1
    with flow.scope.namespace(f"features-{number}"):
        x = _unit(net, x, _rounded(1280 * max(1.0, width)), 1)
    x = net.dropout(net.global_pool(x), rate, "dropout")
    with flow.scope.namespace("classifier"):
        return net.dense(x, classes, "1")
