"""Probabilities of several classes from those of pairs of classes, by iteration.

Source: Wu, Lin, Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling",
JMLR 5 (2004), second method. The bounds of the iteration are those of onnxruntime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.runtime.tvm import relax, tvm

_MOST_STEPS = 100
_LEAST_SHARE = 1e-7


def kernel(rows: int, classes: int, slopes: np.ndarray, shifts: np.ndarray) -> tvm.tirx.PrimFunc:
    """The kernel that turns scores of pairs into probabilities of classes.

    It reads scores, shape (rows, pairs), slopes and shifts, and writes probabilities, shape (rows,
    classes).

    Parameters
    ----------
    rows, classes : int
    slopes, shifts : numpy.ndarray
        Shape (pairs,). The probability of the first class of a pair is ``1 - sigmoid(slope * score
        + shift)``.
    """
    pairs, bound = len(slopes), float(np.float32(0.005) / np.float32(classes))
    least, most_steps = float(np.float32(_LEAST_SHARE)), _MOST_STEPS

    @T.prim_func(s_tir=True)
    def couple(
        scores: T.Buffer((rows, pairs), "float32"),
        slope: T.Buffer((pairs,), "float32"),
        shift: T.Buffer((pairs,), "float32"),
        shares: T.Buffer((rows, classes), "float32"),
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        with T.sblock("couple"):
            T.reads(scores[0:rows, 0:pairs], slope[0:pairs], shift[0:pairs])
            T.writes(shares[0:rows, 0:classes])
            won = T.sblock_alloc_buffer((classes, classes), "float32")
            matrix = T.sblock_alloc_buffer((classes, classes), "float32")
            product = T.sblock_alloc_buffer((classes,), "float32")
            # The quadratic form, the largest error, a step, the probability of a pair.
            value = T.sblock_alloc_buffer((4,), "float32")
            # The pair, the number of steps, whether to continue.
            state = T.sblock_alloc_buffer((3,), "int32")
            for row in T.serial(rows):
                state[0] = 0
                for first in T.serial(classes):
                    for second in T.serial(classes):
                        if second > first:
                            value[3] = T.float32(1) / (
                                T.float32(1)
                                + T.exp(scores[row, state[0]] * slope[state[0]] + shift[state[0]])
                            )
                            value[3] = T.min(
                                T.max(value[3], T.float32(least)), T.float32(1 - least)
                            )
                            won[first, second] = value[3]
                            won[second, first] = T.float32(1) - value[3]
                            state[0] = state[0] + 1
                for first in T.serial(classes):
                    shares[row, first] = T.float32(1) / T.float32(classes)
                    matrix[first, first] = T.float32(0)
                    for second in T.serial(classes):
                        if second != first:
                            matrix[first, first] = (
                                matrix[first, first] + won[second, first] * won[second, first]
                            )
                            matrix[first, second] = -won[second, first] * won[first, second]
                state[1] = 0
                state[2] = 1
                while state[2] == 1:
                    value[0] = T.float32(0)
                    for first in T.serial(classes):
                        product[first] = T.float32(0)
                        for second in T.serial(classes):
                            product[first] = (
                                product[first] + matrix[first, second] * shares[row, second]
                            )
                        value[0] = value[0] + shares[row, first] * product[first]
                    value[1] = T.float32(0)
                    for first in T.serial(classes):
                        value[1] = T.max(value[1], T.fabs(product[first] - value[0]))
                    if value[1] < T.float32(bound):
                        state[2] = 0
                    else:
                        for first in T.serial(classes):
                            value[2] = (value[0] - product[first]) / matrix[first, first]
                            shares[row, first] = shares[row, first] + value[2]
                            value[0] = (
                                (
                                    value[0]
                                    + value[2]
                                    * (
                                        value[2] * matrix[first, first]
                                        + T.float32(2) * product[first]
                                    )
                                )
                                / (T.float32(1) + value[2])
                                / (T.float32(1) + value[2])
                            )
                            for second in T.serial(classes):
                                product[second] = (
                                    product[second] + value[2] * matrix[first, second]
                                ) / (T.float32(1) + value[2])
                                shares[row, second] = shares[row, second] / (
                                    T.float32(1) + value[2]
                                )
                        state[1] = state[1] + 1
                        if state[1] == most_steps:
                            state[2] = 0

    return couple


def converted(bb: Any, inputs: list[Any], attributes: dict[str, Any]) -> relax.Expr:
    """Call the kernel.

    Parameters
    ----------
    bb : BlockBuilder
    inputs : list of Expr
        The scores of pairs, shape (rows, pairs).
    attributes : dict

    Returns
    -------
    outputs : relax.Tuple
        Labels that nothing reads, and probabilities, shape (rows, classes).

    Raises
    ------
    ValueError
        If `fewtune.onnx_graph.operators.classical.support_vectors` has not simplified the node.
    """
    (scores,) = inputs
    slopes, shifts = (np.array(attributes[f"prob_{each}"], np.float32) for each in "ab")
    rows, pairs = (int(each) for each in scores.ty.shape)
    classes = len(attributes["classlabels_ints"])
    if pairs != len(slopes) or pairs != classes * (classes - 1) // 2:
        raise ValueError("its scores are not those of pairs of classes")
    name = bb.add_func(kernel(rows, classes, slopes, shifts), "couple")
    given = [scores, relax.const(slopes, "float32"), relax.const(shifts, "float32")]
    shares = bb.emit(
        relax.call_tir(name, relax.Tuple(given), relax.TensorType((rows, classes), "float32"))
    )
    return relax.Tuple([relax.const(np.zeros(rows, np.int64), "int64"), shares])
