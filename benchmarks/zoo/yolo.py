"""YOLOv3 with MobileNet 1.0, for the 20 classes of PASCAL VOC at 416x416.

GluonCV's ``yolo3_mobilenet1.0_voc`` (``gluoncv/model_zoo/yolo/yolo3.py``; Redmon and Farhadi, 2018,
"YOLOv3: An Incremental Improvement"), up to the decoded boxes. GluonCV's non-maximum suppression is
left out, since the shape of its output depends on values.
"""

from __future__ import annotations

import numpy as np

from benchmarks.zoo.backbones import mobilenet_features, normalized_convolution
from benchmarks.zoo.builder import GraphBuilder

_SIZE = 416
_CLASSES = 20
_VALUES = 4 + 1 + _CLASSES  # of each anchor: the box, objectness, and class scores

# From the coarsest scale to the finest: stride, channels of the head, anchors in pixels.
_SCALES = (
    (32, 512, ((116, 90), (156, 198), (373, 326))),
    (16, 256, ((30, 61), (62, 45), (59, 119))),
    (8, 128, ((10, 13), (16, 30), (33, 23))),
)
_ANCHORS = sum(len(anchors) * (_SIZE // stride) ** 2 for stride, _, anchors in _SCALES)


def yolov3_mobilenet(builder: GraphBuilder) -> None:
    """Add YOLOv3; outputs are ``boxes``, 1 x 10647 x 4, and ``scores``, 1 x 10647 x 20.

    Boxes are corners in pixels: left, top, right, bottom. A score is the class's times the
    objectness.
    """
    *finer, value = mobilenet_features(builder, builder.input("image", (1, 3, _SIZE, _SIZE)))
    predictions = []
    for scale, (stride, channels, anchors) in enumerate(_SCALES):
        name = f"scale{stride}"
        if scale:
            value = _unit(builder, value, f"{name}_transition", channels)
            value = _upsampled(builder, value, f"{name}_upsampled")
            value = builder.concatenate([value, finer.pop()], f"{name}_concatenation")
        for layer in (1, 2):
            value = _unit(builder, value, f"{name}_reduce{layer}", channels)
            value = _unit(builder, value, f"{name}_expand{layer}", 2 * channels, kernel=3)
        value = _unit(builder, value, f"{name}_reduce3", channels)
        tip = _unit(builder, value, f"{name}_tip", 2 * channels, kernel=3)
        predictions.append(_predictions(builder, tip, name, len(anchors), _SIZE // stride))
    _decode(builder, builder.concatenate(predictions, "predictions"))


def _unit(builder: GraphBuilder, value: str, name: str, channels: int, kernel: int = 1) -> str:
    value = normalized_convolution(builder, value, name, channels, kernel)
    return builder.activation("LeakyRelu", value, f"{name}_relu", alpha=0.1)


def _upsampled(builder: GraphBuilder, value: str, name: str) -> str:
    """Double height and width by repeating each value."""
    scales = builder.constant(f"{name}_scales", np.array([1.0, 1.0, 2.0, 2.0], np.float32))
    return builder.node(
        "Resize",
        [value, "", scales],
        name,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _predictions(builder: GraphBuilder, value: str, name: str, anchors: int, size: int) -> str:
    """Predict at each position: 1 x (positions x anchors) x values."""
    value = builder.convolution(value, f"{name}_prediction", anchors * _VALUES, bias=True)
    value = builder.reshape(value, f"{name}_places", 1, anchors * _VALUES, size * size)
    value = builder.transpose(value, f"{name}_by_place", 0, 2, 1)
    return builder.reshape(value, f"{name}_rows", 1, size * size * anchors, _VALUES)


def _decode(builder: GraphBuilder, rows: str) -> None:
    """Decode the predictions of all scales, 1 x anchors x values, into boxes and scores."""
    strides, origins, sizes = _grid()
    raw_center = builder.slice(rows, "raw_center", 0, 2, axis=2)
    center = builder.node("Sigmoid", [raw_center], "cell_center")
    center = builder.node("Mul", [center, builder.constant("strides", strides)], "scaled_center")
    center = builder.node("Add", [center, builder.constant("origins", origins)], "center")
    raw_size = builder.slice(rows, "raw_size", 2, 4, axis=2)
    growth = builder.node("Exp", [raw_size], "growth")
    half = builder.node("Mul", [growth, builder.constant("half_anchors", sizes / 2)], "half_size")
    first = builder.node("Sub", [center, half], "first_corner")
    last = builder.node("Add", [center, half], "last_corner")
    boxes = builder.concatenate([first, last], "boxes", axis=2)
    objectness = builder.slice(rows, "raw_objectness", 4, 5, axis=2)
    objectness = builder.node("Sigmoid", [objectness], "objectness")
    classes = builder.slice(rows, "raw_classes", 5, _VALUES, axis=2)
    classes = builder.node("Sigmoid", [classes], "classes")
    scores = builder.node("Mul", [classes, objectness], "scores")
    builder.output(boxes, (1, _ANCHORS, 4))
    builder.output(scores, (1, _ANCHORS, _CLASSES))


def _grid() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stride, top left corner of the cell, and anchor of every row, each 1 x rows x 2."""
    strides, origins, sizes = [], [], []
    for stride, _, anchors in _SCALES:
        places = _SIZE // stride
        rows = places * places * len(anchors)
        top, left = np.divmod(np.arange(places * places), places)
        corners = stride * np.stack([left, top], axis=1)
        strides.append(np.full((rows, 2), stride, np.float32))
        origins.append(np.repeat(corners, len(anchors), axis=0).astype(np.float32))
        sizes.append(np.tile(np.array(anchors, np.float32), (places * places, 1)))
    all_strides, all_origins, all_sizes = (
        np.concatenate(p)[np.newaxis] for p in (strides, origins, sizes)
    )
    return all_strides, all_origins, all_sizes
