"""Non-maximum suppression as one kernel, whose output is padded to its largest size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.runtime.tvm import relax, tvm


class Suppression(NamedTuple):
    """The parameters of a node.

    Attributes
    ----------
    batch, classes, boxes : int
    most : int
        Most boxes that are selected per class and image.
    overlap : float
        Above this intersection over union, the box with the lower score is dropped.
    least_score : float or None
        Only boxes with a higher score are selected.
    centred : bool
        Whether a box is its centre and size, (x, y, width, height). Otherwise it is two opposite
        corners, (y, x, y, x).
    """

    batch: int
    classes: int
    boxes: int
    most: int
    overlap: float
    least_score: float | None
    centred: bool

    @property
    def rows(self) -> int:
        """Rows of the output."""
        return self.batch * self.classes * self.most

    def kernel(self) -> tvm.tirx.PrimFunc:
        """The kernel.

        It reads boxes, shape (batch, boxes, 4), and scores, shape (batch, classes, boxes). It
        writes int64 numbers, shape (rows, 3): the indices of image, class and box. Their order is
        that of onnxruntime 1.31: within a class by falling score, then by index. The remaining rows
        are -1.
        """
        batch, classes, boxes, most, rows = *self[:4], self.rows
        overlap = float(np.float32(self.overlap))
        centred, scored = self.centred, self.least_score is not None
        least = float(np.float32(self.least_score or 0))

        @T.prim_func(s_tir=True)
        def suppress(
            given: T.Buffer((batch, boxes, 4), "float32"),
            scores: T.Buffer((batch, classes, boxes), "float32"),
            selected: T.Buffer((rows, 3), "int64"),
        ) -> None:
            T.func_attr({"tirx.noalias": True})
            with T.sblock("suppress"):
                T.reads(given[0:batch, 0:boxes, 0:4], scores[0:batch, 0:classes, 0:boxes])
                T.writes(selected[0:rows, 0:3])
                corners = T.sblock_alloc_buffer((4, boxes), "float32")
                areas = T.sblock_alloc_buffer((boxes,), "float32")
                alive = T.sblock_alloc_buffer((boxes,), "int32")
                best_score = T.sblock_alloc_buffer((1,), "float32")
                # The best box, the boxes selected of its class, the rows written, whether to
                # continue.
                state = T.sblock_alloc_buffer((4,), "int32")
                state[2] = 0
                for image in T.serial(batch):
                    for box in T.serial(boxes):
                        for side in T.serial(2):
                            if centred:
                                middle = given[image, box, 1 - side]
                                half = given[image, box, 3 - side] / T.float32(2)
                                corners[side, box] = middle - half
                                corners[side + 2, box] = middle + half
                            else:
                                corners[side, box] = T.min(
                                    given[image, box, side], given[image, box, side + 2]
                                )
                                corners[side + 2, box] = T.max(
                                    given[image, box, side], given[image, box, side + 2]
                                )
                        areas[box] = (corners[2, box] - corners[0, box]) * (
                            corners[3, box] - corners[1, box]
                        )
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
                                    for box in T.serial(boxes):
                                        if alive[box] == 1:
                                            down = T.min(
                                                corners[2, box], corners[2, state[0]]
                                            ) - T.max(corners[0, box], corners[0, state[0]])
                                            across = T.min(
                                                corners[3, box], corners[3, state[0]]
                                            ) - T.max(corners[1, box], corners[1, state[0]])
                                            if down > T.float32(0) and across > T.float32(0):
                                                shared = down * across
                                                union = areas[box] + areas[state[0]] - shared
                                                if union > T.float32(
                                                    0
                                                ) and shared / union > T.float32(overlap):
                                                    alive[box] = 0
                while state[2] < rows:
                    for place in T.serial(3):
                        selected[state[2], place] = T.int64(-1)
                    state[2] = state[2] + 1

        return suppress


def converted(bb: Any, inputs: list[Any], attributes: dict[str, Any]) -> relax.Expr:
    """Call a node's kernel.

    Parameters
    ----------
    bb : BlockBuilder
    inputs : list of Expr or None
        Boxes, scores, and up to three constants: the most boxes per class, the overlap, the least
        score.
    attributes : dict

    Raises
    ------
    ValueError
        If a number of boxes or a threshold is not constant, or boxes and scores are not float32.
    """
    boxes, scores, *bounds = [*inputs, None, None, None][:5]
    numbers = []
    for bound in bounds:
        if bound is not None and not isinstance(bound, tvm.ir.expr.GenericConst):
            raise ValueError("its largest number of boxes or a threshold is not constant")
        numbers.append(None if bound is None else bound.value.numpy().reshape(-1)[0])
    if {str(each.ty.dtype) for each in (boxes, scores)} != {"float32"}:
        raise ValueError("its boxes and scores are not float32")
    batch, classes, count = (int(each) for each in scores.ty.shape)
    node = Suppression(
        batch,
        classes,
        count,
        min(int(numbers[0] or 0), count),
        float(numbers[1] or 0),
        None if numbers[2] is None else float(numbers[2]),
        bool(attributes.get("center_point_box", 0)),
    )
    name = bb.add_func(node.kernel(), "non_max_suppression")
    shape = relax.TensorType((node.rows, 3), "int64")
    return relax.call_tir(name, relax.Tuple([boxes, scores]), shape)
