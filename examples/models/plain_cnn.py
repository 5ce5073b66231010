"""AlexNet, the single-tower form of Krizhevsky 2014 ("One weird trick"), and VGG-16 (Simonyan and Zisserman 2014).

Layers are named by their number, as PyTorch programs name them, with "-" for ".". The first dense layer is as wide as the
image asks for: variables fit one image size (at 224x224 those of 9216 and 25088 columns).
"""

from vision import Blob, Layers

import oneflow as flow


def _classifier(net: Layers, x: Blob, classes: int, hidden: int, rate: float, numbers: tuple[int, int, int]) -> Blob:
    """Two hidden layers with dropout, and the logits."""
    if net.data_format == "NHWC":  # the dense layer's columns are channels first in both formats
        x = flow.transpose(x, perm=(0, 3, 1, 2))
    x = flow.reshape(x, (x.shape[0], -1))
    with flow.scope.namespace("classifier"):
        for number in numbers[:2]:
            x = flow.nn.relu(net.dense(x, hidden, str(number)))
            x = net.dropout(x, rate, f"dropout{number}")
        return net.dense(x, classes, str(numbers[2]))


def alexnet(images: Blob, classes: int = 1000, net: Layers | None = None, hidden: int = 4096, rate: float = 0.5) -> Blob:
    """Logits (N, classes) of images (N, 3, H, W), or (N, H, W, 3) where net.data_format says so; H, W >= 63."""
    net = net or Layers()
    x = images
    with flow.scope.namespace("features"):
        x = net.max_pool(flow.nn.relu(net.conv2d(x, 64, 11, "0", strides=4, pad=2, bias=True)), 3, 2, name="2")
        x = net.max_pool(flow.nn.relu(net.conv2d(x, 192, 5, "3", pad=2, bias=True)), 3, 2, name="5")
        for number, filters in (("6", 384), ("8", 256), ("10", 256)):
            x = flow.nn.relu(net.conv2d(x, filters, 3, number, pad=1, bias=True))
        x = net.max_pool(x, 3, 2, name="12")
    return _classifier(net, x, classes, hidden, rate, (1, 4, 6))


def vgg16(images: Blob, classes: int = 1000, net: Layers | None = None, hidden: int = 4096, rate: float = 0.5) -> Blob:
    """Logits (N, classes) of images (N, 3, H, W), or (N, H, W, 3) where net.data_format says so; H, W >= 32."""
    net = net or Layers()
    x, number = images, 0
    with flow.scope.namespace("features"):
        for filters, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(layers):
                x = flow.nn.relu(net.conv2d(x, filters, 3, str(number), pad=1, bias=True))
                number += 2
            x = net.max_pool(x, 2, 2, name=str(number))
            number += 1
    return _classifier(net, x, classes, hidden, rate, (0, 3, 6))
