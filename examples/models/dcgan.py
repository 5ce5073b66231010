"""DCGAN (Radford et al. 2015) for images of 28x28: a generator and a discriminator.

Both are called in both train jobs; each job trains one of them (trainable=True) and only uses the other.
"""

import oneflow as flow

Blob = flow.Blob
CODE = 100


def _weight(name: str, shape: tuple[int, ...], trainable: bool) -> Blob:
    initializer = flow.random_normal_initializer(stddev=0.02)
    return flow.get_variable(f"{name}-weight", shape, flow.float, initializer, trainable=trainable)


def _bias(name: str, size: int, trainable: bool) -> Blob:
    return flow.get_variable(f"{name}-bias", (size,), flow.float, flow.zeros_initializer(), trainable=trainable)


def _dense(x: Blob, units: int, name: str, trainable: bool) -> Blob:
    weight = _weight(name, (units, x.shape[1]), trainable)
    return flow.nn.bias_add(flow.matmul(x, weight, transpose_b=True), _bias(name, units, trainable))


def _normalized(x: Blob, name: str, trainable: bool) -> Blob:
    """Batch statistics where the generator is trained, the moving ones where it is only used."""
    x = flow.layers.batch_normalization(x, axis=1, momentum=0.9, epsilon=1e-5, trainable=trainable, name=name)
    return flow.nn.leaky_relu(x, alpha=0.2)


def generator(codes: Blob, trainable: bool = True, width: int = 64) -> Blob:
    """Images (N, 1, 28, 28) in (-1, 1) of codes (N, CODE)."""
    batch = codes.shape[0]
    with flow.scope.namespace("generator"):
        x = flow.reshape(_dense(codes, 4 * width * 7 * 7, "fc", trainable), (batch, 4 * width, 7, 7))
        x = _normalized(x, "bn0", trainable)
        weight = _weight("deconv1", (4 * width, 2 * width, 4, 4), trainable)
        x = flow.nn.conv2d_transpose(x, weight, (batch, 2 * width, 14, 14), strides=2, padding="SAME", name="deconv1")
        x = _normalized(x, "bn1", trainable)
        weight = _weight("deconv2", (2 * width, 1, 4, 4), trainable)
        x = flow.nn.conv2d_transpose(x, weight, (batch, 1, 28, 28), strides=2, padding="SAME", name="deconv2")
        return flow.math.tanh(x)


def discriminator(images: Blob, trainable: bool = True, width: int = 64) -> Blob:
    """Logits (N, 1): > 0 says that an image (N, 1, 28, 28) is real. It may be called several times in a job."""
    x, pad = images, [0, 0, (1, 1), (1, 1)]
    with flow.scope.namespace("discriminator"):
        for i, filters in enumerate((width, 2 * width)):
            weight = _weight(f"conv{i}", (filters, x.shape[1], 4, 4), trainable)
            x = flow.nn.bias_add(flow.nn.conv2d(x, weight, 2, pad), _bias(f"conv{i}", filters, trainable), "NCHW")
            x = flow.nn.leaky_relu(x, alpha=0.2)
        return _dense(flow.reshape(x, (x.shape[0], -1)), 1, "fc", trainable)


def generator_loss(codes: Blob, width: int = 64) -> Blob:
    """(N, 1): small where the discriminator takes what the generator made for real."""
    logits = discriminator(generator(codes, True, width), False, width)
    return flow.nn.sigmoid_cross_entropy_with_logits(flow.ones_like(logits), logits)


def discriminator_loss(codes: Blob, images: Blob, width: int = 64) -> Blob:
    """(N, 1): small if the discriminator distinguishes real images from the generator's."""
    made, real = discriminator(generator(codes, False, width), True, width), discriminator(images, True, width)
    loss = flow.nn.sigmoid_cross_entropy_with_logits
    return loss(flow.zeros_like(made), made) + loss(flow.ones_like(real), real)
