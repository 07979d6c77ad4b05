"""ImageNet classifiers: 1x3x224x224 images to 1000 logits.

All are those of GluonCV, which the RFC measured, or close relatives. Each function adds the layers
to a builder.
"""

from __future__ import annotations

from benchmarks.zoo.backbones import convolution_unit, normalized_convolution, resnet_features
from benchmarks.zoo.builder import GraphBuilder

_IMAGE = (1, 3, 224, 224)
_CLASSES = 1000
_LOGITS = (1, _CLASSES)

# Expansion, channels, repetitions and first stride (Sandler et al., 2018, "MobileNetV2", table 2).
_MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

# Convolutions and channels of the five stages, each of which ends in a pool (Simonyan and
# Zisserman, 2014, table 1, E).
_VGG19 = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))

# Layers of the four blocks by depth (Huang et al., 2016, "Densely Connected Convolutional
# Networks", table 1).
_DENSENET = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32)}
_GROWTH = 32


def resnet_v1(builder: GraphBuilder, depth: int) -> None:
    """Add ResNet V1 of 50 or 101 layers."""
    value = resnet_features(builder, builder.input("image", _IMAGE), depth)[-1]
    value = builder.global_average(value, "average")
    builder.output(builder.dense(value, "logits", _CLASSES), _LOGITS)


def vgg19_bn(builder: GraphBuilder) -> None:
    """Add VGG 19 with batch normalisation; its convolutions have biases as well."""
    value = builder.input("image", _IMAGE)
    for stage, (layers, channels) in enumerate(_VGG19, start=1):
        for layer in range(1, layers + 1):
            name = f"stage{stage}_layer{layer}"
            value = normalized_convolution(builder, value, name, channels, kernel=3, bias=True)
            value = builder.activation("Relu", value, f"{name}_relu")
        value = builder.pool("MaxPool", value, f"stage{stage}_pool", kernel=2, stride=2)
    value = builder.reshape(value, "features", 1, -1, channels=512 * 7 * 7)
    for layer in (1, 2):
        value = builder.dense(value, f"dense{layer}", 4096)
        value = builder.activation("Relu", value, f"dense{layer}_relu")
    builder.output(builder.dense(value, "logits", _CLASSES), _LOGITS)


def mobilenet_v2(builder: GraphBuilder) -> None:
    """Add MobileNet V2 1.0.

    Two things differ from the paper: the first block has a 1x1 convolution although it does not
    expand, and the classifier, a 1x1 convolution, has no bias.
    """
    value = builder.input("image", _IMAGE)
    value = _clipped_unit(builder, value, "stem", 32, kernel=3, stride=2)
    for stage, (expansion, channels, blocks, first_stride) in enumerate(_MOBILENET_V2, start=1):
        for block in range(1, blocks + 1):
            stride = first_stride if block == 1 else 1
            name = f"stage{stage}_block{block}"
            value = _inverted_residual(builder, value, name, expansion, channels, stride)
    value = _clipped_unit(builder, value, "last", 1280)
    pooled = builder.node("GlobalAveragePool", [value], "average")
    value = builder.convolution(pooled, "classifier", _CLASSES)
    builder.output(builder.node("Flatten", [value], "logits", axis=1), _LOGITS)


def _clipped_unit(
    builder: GraphBuilder, value: str, name: str, channels: int, **further: int
) -> str:
    value = normalized_convolution(builder, value, name, channels, **further)
    return builder.relu6(value, f"{name}_relu6")


def _inverted_residual(
    builder: GraphBuilder, value: str, name: str, expansion: int, channels: int, stride: int
) -> str:
    shortcut = value if stride == 1 and builder.channels(value) == channels else None
    inner = expansion * builder.channels(value)
    value = _clipped_unit(builder, value, f"{name}_expand", inner)
    depthwise = {"kernel": 3, "stride": stride, "groups": inner}
    value = _clipped_unit(builder, value, f"{name}_depthwise", inner, **depthwise)
    value = builder.convolution(value, f"{name}_project", channels)
    ends_branch = shortcut is not None
    value = builder.batch_normalization(value, f"{name}_project_normalization", ends_branch)
    return builder.node("Add", [value, shortcut], f"{name}_sum") if shortcut else value


def densenet(builder: GraphBuilder, depth: int) -> None:
    """Add DenseNet of 121 or 169 layers."""
    value = convolution_unit(builder, builder.input("image", _IMAGE), "stem", 64, 7, stride=2)
    value = builder.pool("MaxPool", value, "stem_pool", kernel=3, stride=2, padding=1)
    for block, layers in enumerate(_DENSENET[depth], start=1):
        for layer in range(1, layers + 1):
            name = f"block{block}_layer{layer}"
            inner = _normalized_relu(builder, value, f"{name}_reduce")
            inner = builder.convolution(inner, f"{name}_reduce", 4 * _GROWTH)
            inner = _normalized_relu(builder, inner, f"{name}_grow")
            inner = builder.convolution(inner, f"{name}_grow", _GROWTH, kernel=3)
            value = builder.concatenate([value, inner], f"{name}_concatenation")
        if block < len(_DENSENET[depth]):
            name = f"transition{block}"
            value = _normalized_relu(builder, value, name)
            value = builder.convolution(value, name, builder.channels(value) // 2)
            value = builder.pool("AveragePool", value, f"{name}_pool", kernel=2, stride=2)
    value = _normalized_relu(builder, value, "last")
    value = builder.global_average(value, "average")
    builder.output(builder.dense(value, "logits", _CLASSES), _LOGITS)


def _normalized_relu(builder: GraphBuilder, value: str, name: str) -> str:
    value = builder.batch_normalization(value, f"{name}_normalization")
    return builder.activation("Relu", value, f"{name}_relu")
