"""SSD with ResNet 50 V1, for the 20 classes of PASCAL VOC at 512x512.

GluonCV's ``ssd_512_resnet50_v1_voc`` (``gluoncv/model_zoo/ssd/ssd.py``; Liu et al., 2015, "SSD:
Single Shot MultiBox Detector"), up to the decoded boxes. GluonCV's non-maximum suppression is left
out, since the shape of its output depends on values.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.zoo.backbones import convolution_unit, resnet_features
from benchmarks.zoo.builder import GraphBuilder

_SIZE = 512
_CLASSES = 21  # the first is the background
_EXTRA_CHANNELS = (512, 512, 256, 256)

# Of each scale: size of the anchors, with the next as the larger size of one square anchor, and
# step of the grid.
_SIDES = (51.2, 102.4, 189.4, 276.4, 363.52, 450.6, 492.0)
_STEPS = (16, 32, 64, 128, 256, 512)
_FEW_RATIOS = (1.0, 2.0, 0.5)
_MANY_RATIOS = (*_FEW_RATIOS, 3.0, 1 / 3)
_RATIOS = (_FEW_RATIOS, _MANY_RATIOS, _MANY_RATIOS, _MANY_RATIOS, _FEW_RATIOS, _FEW_RATIOS)

# Training divides offsets of centers and logarithms of sizes by these.
_CENTER_DEVIATION, _SIZE_DEVIATION = 0.1, 0.2


def ssd512_resnet50(builder: GraphBuilder) -> None:
    """Add SSD512; outputs are ``boxes``, 1 x 6132 x 4, and ``scores``, 1 x 6132 x 21.

    Boxes are corners in pixels: left, top, right, bottom. Scores are probabilities; the background
    is the first class.
    """
    image = builder.input("image", (1, 3, _SIZE, _SIZE))
    scales = resnet_features(builder, image)[2:]
    for extra, channels in enumerate(_EXTRA_CHANNELS, start=1):
        # GluonCV's transition does not reduce: as many channels as the convolution after it.
        value = convolution_unit(builder, scales[-1], f"extra{extra}_transition", channels, 1)
        scales.append(convolution_unit(builder, value, f"extra{extra}", channels, 3, stride=2))
    classes, offsets = [], []
    for scale, (value, step, ratios) in enumerate(zip(scales, _STEPS, _RATIOS, strict=True)):
        name, count, size = f"scale{scale}", len(ratios) + 1, _SIZE // step
        classes.append(_rows(builder, value, f"{name}_classes", count, _CLASSES, size))
        offsets.append(_rows(builder, value, f"{name}_boxes", count, 4, size))
    anchors = _anchors()
    logits = builder.concatenate(classes, "logits")
    scores = builder.node("Softmax", [logits], "scores", axis=2)
    boxes = _decoded(builder, builder.concatenate(offsets, "offsets"), anchors)
    builder.output(boxes, (1, len(anchors), 4))
    builder.output(scores, (1, len(anchors), _CLASSES))


def _rows(
    builder: GraphBuilder, value: str, name: str, anchors: int, values: int, size: int
) -> str:
    """Predict at each position: 1 x (positions x anchors) x values."""
    value = builder.convolution(value, name, anchors * values, kernel=3, bias=True)
    value = builder.transpose(value, f"{name}_by_place", 0, 2, 3, 1)
    return builder.reshape(value, f"{name}_rows", 1, size * size * anchors, values)


def _decoded(builder: GraphBuilder, offsets: str, anchors: np.ndarray) -> str:
    """Decode offsets from the anchors, which are divided by deviations, into corners of boxes."""
    centers, sizes = anchors[np.newaxis, :, :2], anchors[np.newaxis, :, 2:]
    units = builder.constant("center_units", _CENTER_DEVIATION * sizes)
    center = builder.slice(offsets, "center_offsets", 0, 2, axis=2)
    center = builder.node("Mul", [center, units], "center_shift")
    center = builder.node("Add", [center, builder.constant("anchor_centers", centers)], "center")
    deviation = builder.constant("size_deviation", _SIZE_DEVIATION)
    growth = builder.slice(offsets, "size_offsets", 2, 4, axis=2)
    growth = builder.node("Exp", [builder.node("Mul", [growth, deviation], "size_log")], "growth")
    half = builder.node("Mul", [growth, builder.constant("half_anchors", sizes / 2)], "half_size")
    first = builder.node("Sub", [center, half], "first_corner")
    last = builder.node("Add", [center, half], "last_corner")
    return builder.concatenate([first, last], "boxes", axis=2)


def _anchors() -> np.ndarray:
    """Center and size in pixels of every anchor, in the order of the predictions, (anchors, 4)."""
    rows = []
    for step, side, larger, ratios in zip(_STEPS, _SIDES, _SIDES[1:], _RATIOS, strict=False):
        between = math.sqrt(side * larger)
        shapes = [(side, side), (between, between)]
        shapes += [(side * math.sqrt(ratio), side / math.sqrt(ratio)) for ratio in ratios[1:]]
        for top in range(_SIZE // step):
            for left in range(_SIZE // step):
                center = ((left + 0.5) * step, (top + 0.5) * step)
                rows += [(*center, *shape) for shape in shapes]
    return np.array(rows, np.float32)
