"""Non-maximum suppression as one kernel, whose output is padded to its largest size."""

# ruff: noqa: ANN001, ANN202 (of the macros, which are TVMScript: they are parsed, not run)

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.model.passes.relax_calls import FLOAT, extents_of
from fewtune.runtime.tvm import relax, tvm
from fewtune.tvm_compat.values import array_of


def converted(bb: Any, inputs: list[Any], attributes: dict[str, Any], _opset: int) -> relax.Expr:
    """Convert a NonMaxSuppression: TVM's own converter gives an output of dynamic size.

    Raises
    ------
    ValueError
        If a number of boxes or a threshold is not constant, or boxes and scores are not float32.
    """
    boxes, scores, *bounds = [*inputs, None, None, None][:5]
    arrays = [array_of(bound) for bound in bounds]
    if [bound is None for bound in bounds] != [array is None for array in arrays]:
        raise ValueError("its largest number of boxes or a threshold is not constant")
    most, overlap, least = (None if each is None else each.reshape(-1)[0] for each in arrays)
    if {str(each.ty.dtype) for each in (boxes, scores)} != {FLOAT}:
        raise ValueError("its boxes and scores are not float32")
    if attributes.get("center_point_box", 0):
        raise ValueError("its boxes are given by their centers")
    batch, classes, count = shape = extents_of(scores)
    most = min(int(most or 0), count)
    made = kernel(shape, most, float(overlap or 0), None if least is None else float(least))
    name = bb.add_func(made, "non_max_suppression")
    result = relax.TensorType((batch * classes * most, 3), "int64")
    return relax.call_tir(name, relax.Tuple([boxes, scores]), result)


@T.macro
def _corners(given, image, corners, areas, boxes):  # type: ignore[no-untyped-def]
    for box in T.serial(boxes):
        for side in T.serial(2):
            corners[side, box] = T.min(given[image, box, side], given[image, box, side + 2])
            corners[side + 2, box] = T.max(given[image, box, side], given[image, box, side + 2])
        areas[box] = (corners[2, box] - corners[0, box]) * (corners[3, box] - corners[1, box])


@T.macro
def _drop_overlapping(alive, corners, areas, best, boxes, overlap):  # type: ignore[no-untyped-def]
    for box in T.serial(boxes):
        if alive[box] == 1:
            down = T.min(corners[2, box], corners[2, best]) - T.max(
                corners[0, box], corners[0, best]
            )
            across = T.min(corners[3, box], corners[3, best]) - T.max(
                corners[1, box], corners[1, best]
            )
            if down > T.float32(0) and across > T.float32(0):
                shared = down * across
                union = areas[box] + areas[best] - shared
                if union > T.float32(0) and shared / union > T.float32(overlap):
                    alive[box] = 0


def kernel(
    shape: list[int], most: int, overlap: float, least_score: float | None
) -> tvm.tirx.PrimFunc:
    """The kernel of non-maximum suppression.

    It reads boxes, shape (batch, boxes, 4), and scores, shape (batch, classes, boxes). It writes
    int64 numbers: the indices of image, class and box. Their order is that of onnxruntime 1.31:
    within a class by falling score, then by index. The remaining rows are -1.

    Parameters
    ----------
    shape : list of int
        Of the scores.
    most : int
        Most boxes that are selected per class and image.
    overlap : float
        Above this intersection over union, the box with the lower score is dropped.
    least_score : float or None
        Only boxes with a higher score are selected.
    """
    batch, classes, boxes = shape
    rows = batch * classes * most
    overlap, scored = float(np.float32(overlap)), least_score is not None
    least = float(np.float32(least_score or 0))

    @T.prim_func(s_tir=True)
    def suppress(
        given: T.Buffer((batch, boxes, 4), "float32"),
        scores: T.Buffer((batch, classes, boxes), "float32"),
        selected: T.Buffer((rows, 3), "int64"),
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        with T.sblock("suppress"):
            corners = T.sblock_alloc_buffer((4, boxes), "float32")
            areas = T.sblock_alloc_buffer((boxes,), "float32")
            alive = T.sblock_alloc_buffer((boxes,), "int32")
            best_score = T.sblock_alloc_buffer((1,), "float32")
            # The best box, the boxes selected of its class, the rows written, whether to continue.
            state = T.sblock_alloc_buffer((4,), "int32")
            state[2] = 0
            for image in T.serial(batch):
                _corners(given, image, corners, areas, boxes)
                for kind in T.serial(classes):
                    for box in T.serial(boxes):
                        alive[box] = T.int32(1)
                        if scored:
                            alive[box] = T.Cast("int32", scores[image, kind, box] > least)
                    state[1] = 0
                    state[3] = 1
                    while state[3] == 1:
                        state[0] = -1
                        best_score[0] = T.float32(0)
                        for box in T.serial(boxes):
                            score = scores[image, kind, box]
                            if alive[box] == 1 and (state[0] < 0 or score > best_score[0]):
                                state[0] = box
                                best_score[0] = score
                        if state[0] < 0:
                            state[3] = 0
                        else:
                            selected[state[2], 0] = T.Cast("int64", image)
                            selected[state[2], 1] = T.Cast("int64", kind)
                            selected[state[2], 2] = T.Cast("int64", state[0])
                            state[2] = state[2] + 1
                            state[1] = state[1] + 1
                            alive[state[0]] = 0
                            if state[1] == most:
                                state[3] = 0
                            else:
                                _drop_overlapping(alive, corners, areas, state[0], boxes, overlap)
            while state[2] < rows:
                for place in T.serial(3):
                    selected[state[2], place] = T.int64(-1)
                state[2] = state[2] + 1

    return suppress
