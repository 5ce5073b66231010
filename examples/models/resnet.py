"""ResNet-50 and its deeper sisters (He et al. 2015, "Deep Residual Learning for Image Recognition").

The stride of a stage's first block sits in its 3x3 convolution, as in most of today's implementations ("v1.5"). Layers are
named as PyTorch programs name them, with "-" for ".".
"""

from vision import Blob, Layers

import oneflow as flow

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def _bottleneck(net: Layers, x: Blob, width: int, strides: int) -> Blob:
    """1x1, 3x3, 1x1 convolutions, added to a shortcut that is projected where shapes differ; at first they add nothing."""
    shortcut = x
    if strides != 1 or x.shape[net.channel_axis] != 4 * width:
        shortcut = net.batch_norm(net.conv2d(x, 4 * width, 1, "downsample-0", strides), "downsample-1")
    y = flow.nn.relu(net.batch_norm(net.conv2d(x, width, 1, "conv1"), "bn1"), name="relu1")
    y = flow.nn.relu(net.batch_norm(net.conv2d(y, width, 3, "conv2", strides, pad=1), "bn2"), name="relu2")
    y = net.batch_norm(net.conv2d(y, 4 * width, 1, "conv3"), "bn3", gamma=0.0)
    return flow.nn.relu(flow.math.add(y, shortcut, name="add"), name="relu3")


def resnet(images: Blob, classes: int = 1000, depth: int = 50, net: Layers | None = None) -> Blob:
    """Logits (N, classes) of images (N, 3, H, W), or (N, H, W, 3) where net.data_format says so; any H, W."""
    net = net or Layers()
    x = flow.nn.relu(net.batch_norm(net.conv2d(images, 64, 7, "conv1", strides=2, pad=3), "bn1"), name="relu1")
    x = net.max_pool(x, 3, 2, pad=1)
    for stage, blocks in enumerate(BLOCKS[depth]):
        for block in range(blocks):
            name = f"layer{stage + 1}-{block}"
            with flow.scope.namespace(name):
                x = _bottleneck(net, x, 64 * 2**stage, strides=2 if stage > 0 and block == 0 else 1)
            net.outputs[name] = x
    return net.dense(net.global_pool(x), classes, "fc")


def resnet50(images: Blob, classes: int = 1000, net: Layers | None = None) -> Blob:
    """ResNet of depth 50."""
    return resnet(images, classes, 50, net)
