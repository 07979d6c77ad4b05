"""EfficientNet-B0 and MobileNet V3 Large: 1x3x224x224 images to 1000 logits.

Networks of inverted residuals with squeeze-and-excitation (Hu et al., 2017, "Squeeze-and-Excitation
Networks"), with the layers of torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.zoo.backbones import normalized_convolution
from benchmarks.zoo.builder import GraphBuilder

Activation = Callable[[GraphBuilder, str, str], str]

_IMAGE = (1, 3, 224, 224)
_CLASSES = 1000
_LOGITS = (1, _CLASSES)

# Expansion, channels, repetitions, first stride and kernel (Tan and Le, 2019, "EfficientNet",
# table 1).
_EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)

# Kernel, expanded channels, channels, whether there is an excitation, whether the activation is a
# hard swish, and stride (Howard et al., 2019, "Searching for MobileNetV3", table 1).
_MOBILENET_V3 = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)


class _Excitation(NamedTuple):
    """A squeeze-and-excitation: its inner channels and activation, and its gate."""

    channels: int
    activation: Activation
    gate: str


class _Block(NamedTuple):
    """An inverted residual: its expanded channels, its channels, and its depthwise convolution."""

    inner: int
    channels: int
    kernel: int
    stride: int
    activation: Activation
    excitation: _Excitation | None


def efficientnet_b0(builder: GraphBuilder) -> None:
    """Add EfficientNet-B0."""
    value = normalized_convolution(builder, builder.input("image", _IMAGE), "stem", 32, 3, 2)
    value = _swish(builder, value, "stem_swish")
    for stage, row in enumerate(_EFFICIENTNET_B0, start=1):
        expansion, channels, blocks, first_stride, kernel = row
        for block in range(1, blocks + 1):
            before = builder.channels(value)
            stride = first_stride if block == 1 else 1
            excitation = _Excitation(before // 4, _swish, "Sigmoid")
            made = _Block(expansion * before, channels, kernel, stride, _swish, excitation)
            value = _inverted_residual(builder, value, f"stage{stage}_block{block}", made)
    value = _swish(builder, normalized_convolution(builder, value, "last", 1280), "last_swish")
    value = builder.global_average(value, "average")
    builder.output(builder.dense(value, "logits", _CLASSES), _LOGITS)


def mobilenet_v3(builder: GraphBuilder) -> None:
    """Add MobileNet V3 Large 1.0."""
    value = normalized_convolution(builder, builder.input("image", _IMAGE), "stem", 16, 3, 2)
    value = _hard_swish(builder, value, "stem_swish")
    for block, row in enumerate(_MOBILENET_V3, start=1):
        kernel, inner, channels, is_weighted, is_swish, stride = row
        excitation = _Excitation(_multiple_of_8(inner // 4), _relu, "HardSigmoid")
        activation = _hard_swish if is_swish else _relu
        made = _Block(
            inner, channels, kernel, stride, activation, excitation if is_weighted else None
        )
        value = _inverted_residual(builder, value, f"block{block}", made)
    value = _hard_swish(builder, normalized_convolution(builder, value, "last", 960), "last_swish")
    value = builder.dense(builder.global_average(value, "average"), "dense", 1280)
    value = _hard_swish(builder, value, "dense_swish")
    builder.output(builder.dense(value, "logits", _CLASSES), _LOGITS)


def _inverted_residual(builder: GraphBuilder, value: str, name: str, block: _Block) -> str:
    """Add a block: a 1x1 expansion, a depthwise convolution, an excitation, and a projection."""
    inner, channels, kernel, stride, activation, excitation = block
    before = builder.channels(value)
    shortcut = value if stride == 1 and before == channels else None
    if inner != before:
        value = normalized_convolution(builder, value, f"{name}_expand", inner)
        value = activation(builder, value, f"{name}_expand_activation")
    depthwise = f"{name}_depthwise"
    value = normalized_convolution(builder, value, depthwise, inner, kernel, stride, groups=inner)
    value = activation(builder, value, f"{depthwise}_activation")
    if excitation is not None:
        value = _weighted(builder, value, f"{name}_excitation", excitation)
    value = builder.convolution(value, f"{name}_project", channels)
    ends_branch = shortcut is not None
    value = builder.batch_normalization(value, f"{name}_project_normalization", ends_branch)
    return builder.node("Add", [value, shortcut], f"{name}_sum") if shortcut else value


def _weighted(builder: GraphBuilder, value: str, name: str, excitation: _Excitation) -> str:
    """Multiply each channel by a gate, which two layers compute from the means of all channels."""
    means = builder.node("GlobalAveragePool", [value], f"{name}_means")
    inner = builder.convolution(means, f"{name}_squeeze", excitation.channels, bias=True)
    inner = excitation.activation(builder, inner, f"{name}_activation")
    inner = builder.convolution(inner, f"{name}_expand", builder.channels(value), bias=True)
    # PyTorch's slope of a hard sigmoid, which is not ONNX's default.
    slope = {"alpha": 1 / 6} if excitation.gate == "HardSigmoid" else {}
    gate = builder.node(excitation.gate, [inner], f"{name}_gate", None, **slope)
    return builder.node("Mul", [value, gate], name)


def _swish(builder: GraphBuilder, value: str, name: str) -> str:
    gate = builder.node("Sigmoid", [value], f"{name}_gate")
    return builder.rectified(builder.node("Mul", [value, gate], name))


def _hard_swish(builder: GraphBuilder, value: str, name: str) -> str:
    return builder.activation("HardSwish", value, name)


def _relu(builder: GraphBuilder, value: str, name: str) -> str:
    return builder.activation("Relu", value, name)


def _multiple_of_8(channels: int) -> int:
    """The next multiple of eight, which equals the paper's rule for the channels used here."""
    return (channels + 7) // 8 * 8
