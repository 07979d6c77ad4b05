"""Poolings with ``ceil_mode`` for which ONNX counts a last window that starts behind the end.

onnxruntime leaves that window out, as PyTorch does. ONNX's shape inference does so from operator
set 22 on. Without ``ceil_mode``, such a pooling is the same in every operator set.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto, NodeProto, helper

from fewtune.onnx_graph.graph import attributes_of, opset_of, static_shape

# Since this operator set, shape inference leaves the window out.
_FIRST_CORRECT_OPSET = 22
_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def drop_ceil_mode_once(model: ModelProto) -> bool:
    """Remove ``ceil_mode`` from the first pooling whose inferred size is too large, in place.

    The caller infers shapes again before the next one.

    Returns
    -------
    changed : bool
        Whether there was such a pooling.
    """
    if opset_of(model) >= _FIRST_CORRECT_OPSET:
        return False
    values = [*model.graph.input, *model.graph.value_info, *model.graph.output]
    shapes = {value.name: static_shape(value) for value in values}
    for node in model.graph.node:
        if node.op_type in _POOLINGS and not node.domain:
            shape = shapes.get(node.input[0])
            pads = None if shape is None else _pads_without(node, shape[2:])
            if pads is not None:
                kept = [a for a in node.attribute if a.name not in ("pads", "ceil_mode")]
                del node.attribute[:]
                node.attribute.extend([*kept, helper.make_attribute("pads", pads)])
                return True
    return False


def _pads_without(node: NodeProto, sizes: Sequence[int]) -> list[int] | None:
    """Padding with which a pooling needs no ``ceil_mode``; None if it stays as it is."""
    given = attributes_of(node)
    if not given.get("ceil_mode") or given.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    axes, kernel = len(sizes), given["kernel_shape"]
    strides, dilations = (given.get(name) or [1] * axes for name in ("strides", "dilations"))
    pads = list(given.get("pads") or [0] * 2 * axes)
    is_behind, is_implied = False, False
    for axis, size in enumerate(sizes):
        window, begin = (kernel[axis] - 1) * dilations[axis] + 1, pads[axis]
        free = size + begin + pads[axes + axis] - window
        last = -(-free // strides[axis])
        if last * strides[axis] >= size + begin:
            is_behind = True
        elif last * strides[axis] > free:
            is_implied = True
            pads[axes + axis] += last * strides[axis] - free
    # A mean counts explicit padding, but not the padding that rounding up implies.
    if not is_behind or (is_implied and given.get("count_include_pad")):
        return None
    return pads
