"""Feature extractors that classifiers and detectors share: MobileNet 1.0 and ResNet V1.

They are those of GluonCV (``gluoncv/model_zoo/mobilenet.py`` and ``resnet.py``), which the RFC
measured.
"""

from __future__ import annotations

from benchmarks.zoo.builder import GraphBuilder

# Channels and stride of the depthwise separable layers after the stem (Howard et al., 2017,
# "MobileNets", table 1).
_MOBILENET = (
    ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    ((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1)),
    ((1024, 2), (1024, 1)),
)

# Channels of the four stages, and by depth the blocks of each (He et al., 2015, "Deep Residual
# Learning", table 1).
_RESNET_CHANNELS = (256, 512, 1024, 2048)
_RESNET_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def normalized_convolution(
    builder: GraphBuilder,
    value: str,
    name: str,
    channels: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    bias: bool = False,
) -> str:
    """Add a convolution and its batch normalisation."""
    value = builder.convolution(
        value, f"{name}_convolution", channels, kernel, stride, groups=groups, bias=bias
    )
    return builder.batch_normalization(value, f"{name}_normalization")


def convolution_unit(
    builder: GraphBuilder,
    value: str,
    name: str,
    channels: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
) -> str:
    """Add a convolution without bias, its batch normalisation and a Relu."""
    value = normalized_convolution(builder, value, name, channels, kernel, stride, groups)
    return builder.activation("Relu", value, f"{name}_relu")


def mobilenet_features(builder: GraphBuilder, image: str) -> list[str]:
    """Add MobileNet 1.0 without its classifier.

    Returns
    -------
    features : list of str
        At 1/8, 1/16 and 1/32 of the image's size, with 256, 512 and 1024 channels.
    """
    value = convolution_unit(builder, image, "stem", 32, kernel=3, stride=2)
    features = []
    for stage, layers in enumerate(_MOBILENET, start=1):
        for layer, (channels, stride) in enumerate(layers, start=1):
            name = f"stage{stage}_layer{layer}"
            inputs = builder.channels(value)
            depthwise = f"{name}_depthwise"
            value = convolution_unit(builder, value, depthwise, inputs, 3, stride, groups=inputs)
            value = convolution_unit(builder, value, f"{name}_pointwise", channels, kernel=1)
        features.append(value)
    return features


def resnet_features(builder: GraphBuilder, image: str, depth: int = 50) -> list[str]:
    """Add ResNet V1 of 50 or 101 layers, without its classifier.

    Returns
    -------
    features : list of str
        Of the four stages: at 1/4 to 1/32 of the image's size, with 256 to 2048 channels.
    """
    value = convolution_unit(builder, image, "stem", 64, kernel=7, stride=2)
    value = builder.pool("MaxPool", value, "stem_pool", kernel=3, stride=2, padding=1)
    features = []
    stages = zip(_RESNET_BLOCKS[depth], _RESNET_CHANNELS, strict=True)
    for stage, (blocks, channels) in enumerate(stages, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            value = _bottleneck(builder, value, f"stage{stage}_block{block}", channels, stride)
        features.append(value)
    return features


def _bottleneck(builder: GraphBuilder, value: str, name: str, channels: int, stride: int) -> str:
    """Add a block of the original form, in which the first 1x1 convolution has the stride.

    In GluonCV the two 1x1 convolutions have a bias, although a batch normalisation follows each.
    The published number of parameters includes it.
    """
    inner = channels // 4
    shortcut = value
    if builder.channels(value) != channels:
        shortcut = builder.convolution(value, f"{name}_shortcut", channels, stride=stride)
        shortcut = builder.batch_normalization(shortcut, f"{name}_shortcut_normalization")
    value = builder.convolution(value, f"{name}_reduce", inner, stride=stride, bias=True)
    value = builder.batch_normalization(value, f"{name}_reduce_normalization")
    value = builder.activation("Relu", value, f"{name}_reduce_relu")
    value = convolution_unit(builder, value, f"{name}_middle", inner, kernel=3)
    value = builder.convolution(value, f"{name}_expand", channels, bias=True)
    value = builder.batch_normalization(value, f"{name}_expand_normalization", ends_branch=True)
    value = builder.node("Add", [value, shortcut], f"{name}_sum")
    return builder.activation("Relu", value, f"{name}_relu")
