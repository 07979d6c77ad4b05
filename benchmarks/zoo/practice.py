"""Networks that predictors are trained on: convolutions of random shapes.

A predictor learns about convolutional networks in general from them, without any shape of the
user's network. Shapes are drawn from those of deployed networks: planes from 7x7 to 160x160,
channels in steps of eight or more, kernels of one, three, five and seven, depthwise or not. Each
layer has an input of its own, so that a task can be of any size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.zoo.builder import GraphBuilder

_LAYERS = 56
# Multiply-adds of a layer: smaller ones end before threads have started, larger ones take long to
# measure.
_LEAST, _MOST = 4e6, 3e8
_MOST_WEIGHTS = 2**22


@dataclass(frozen=True)
class _Shapes:
    """A distribution of shapes.

    Attributes
    ----------
    kinds : tuple of (float, int, int, bool)
        Probability of each kind of convolution, its kernel, its stride, and whether it is
        depthwise.
    planes, large_planes : tuple of int
        Heights, which are also the widths; three of four draws are from ``planes``.
    channels, many_channels : tuple of int
        Half of the draws on planes up to 28 are from ``many_channels``.
    """

    kinds: tuple[tuple[float, int, int, bool], ...]
    planes: tuple[int, ...]
    large_planes: tuple[int, ...]
    channels: tuple[int, ...]
    many_channels: tuple[int, ...]


_ANY = _Shapes(
    (
        (0.40, 1, 1, False),
        (0.05, 1, 2, False),
        (0.27, 3, 1, False),
        (0.09, 3, 2, False),
        (0.03, 5, 1, False),
        (0.03, 7, 2, False),
        (0.08, 3, 1, True),
        (0.05, 3, 2, True),
    ),
    (7, 8, 10, 12, 13, 14, 15, 16, 19, 20, 24, 26, 27, 28, 32, 38, 40, 48, 52, 55, 56, 64),
    (75, 76, 80, 96, 104, 112, 128, 150, 160),
    (16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448),
    (512, 576, 640, 768, 960, 1024, 1280, 1536, 2048),
)
# The most frequent shapes of networks for images of 224 to 512 pixels, with more of the 3x3
# convolutions that Winograd's algorithm computes.
_USUAL = _Shapes(
    (
        (0.40, 1, 1, False),
        (0.05, 1, 2, False),
        (0.48, 3, 1, False),
        (0.05, 3, 2, False),
        (0.02, 3, 1, True),
    ),
    (7, 10, 13, 14, 16, 19, 20, 26, 28, 32, 38),
    (52, 56, 64, 75, 104, 112),
    (16, 32, 48, 64, 96, 128, 160, 192, 256),
    (256, 384, 512, 768, 1024, 2048),
)
_FIRST_CHANNELS = 3
_SHORTCUTS = 0.2


def practice(builder: GraphBuilder, seed: int, usual: bool) -> None:
    """Add layers of random shapes.

    Parameters
    ----------
    builder : GraphBuilder
    seed : int
        Seed of the shapes; the builder's own is that of the weights.
    usual : bool
        Whether to draw from the most frequent shapes of networks.
    """
    random = np.random.default_rng([seed, *b"practice"])
    shapes = _USUAL if usual else _ANY
    outputs, filters = [], 0
    for layer in range(1, _LAYERS + 1):
        value = _layer(builder, random, shapes, f"layer{layer}")
        filters += builder.channels(value)
        outputs.append(builder.global_average(value, f"layer{layer}_average"))
    builder.output(builder.concatenate(outputs, "averages"), (1, filters))


def _layer(builder: GraphBuilder, random: np.random.Generator, shapes: _Shapes, name: str) -> str:
    kernel, stride, given, filters, plane, depthwise = _shape(random, shapes)
    groups = given if depthwise else 1
    value = builder.input(f"{name}_input", (1, given, plane, plane))
    value = builder.convolution(value, name, filters, kernel, stride, groups=groups, bias=True)
    if random.random() < _SHORTCUTS:
        out = _results(plane, kernel, stride)
        other = builder.input(f"{name}_shortcut", (1, filters, out, out))
        value = builder.node("Add", [value, other], f"{name}_sum")
    return builder.activation("Relu", value, f"{name}_relu")


def _shape(random: np.random.Generator, shapes: _Shapes) -> tuple[int, int, int, int, int, bool]:
    """Kernel, stride, input channels, filters, plane, and whether depthwise, within the limits."""
    while True:
        often = np.array([kind[0] for kind in shapes.kinds])
        _, kernel, stride, depthwise = shapes.kinds[int(random.choice(len(often), p=often))]
        planes = shapes.planes if random.random() < 0.75 else shapes.large_planes
        plane = int(random.choice(planes))
        few = plane > 28 or random.random() < 0.5
        channels = shapes.channels if few else shapes.many_channels
        given, filters = (int(random.choice(channels)) for _ in range(2))
        if kernel == 7:
            given = _FIRST_CHANNELS
        if depthwise:
            filters = given
        weights = kernel * kernel * filters * (1 if depthwise else given)
        # A depthwise convolution computes less, but reads as much memory.
        cost = (10 if depthwise else 1) * weights * _results(plane, kernel, stride) ** 2
        if _LEAST <= cost <= _MOST and kernel <= plane and weights <= _MOST_WEIGHTS:
            return kernel, stride, given, filters, plane, depthwise


def _results(plane: int, kernel: int, stride: int) -> int:
    """Height and width of a convolution's output with padding of half a kernel."""
    return math.floor((plane + 2 * (kernel // 2) - kernel) / stride) + 1
