"""Decision trees, traversed from their roots: each step compares one feature."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.model.passes.op_patterns import OPAQUE
from fewtune.onnx_graph.operators.classical.forest import EXTREMES, Forest, forest_of
from fewtune.runtime.tvm import relax, tvm

# Results of comparing a feature with its node's threshold, as bits; `_MISSING` is NaN.
_LESS, _EQUAL, _MORE, _MISSING = 1, 2, 4, 8
# The results that satisfy the condition of a node, by its mode.
_SATISFYING = {
    "BRANCH_LEQ": _LESS | _EQUAL,
    "BRANCH_LT": _LESS,
    "BRANCH_GTE": _EQUAL | _MORE,
    "BRANCH_GT": _MORE,
    "BRANCH_EQ": _EQUAL,
    "BRANCH_NEQ": _LESS | _MORE | _MISSING,
}


def kernel(rows: int, features: int, forest: Forest, dtype: str) -> tvm.tirx.PrimFunc:
    """The kernel that finds the leaf of each tree that a row of data reaches.

    Its first argument is the data, shape (rows, features); its last the leaves, shape (rows,
    trees). Those between describe the forest.
    """
    inner, trees, depth = len(forest.children), len(forest.roots), forest.depth
    less, equal, more, missing = _LESS, _EQUAL, _MORE, _MISSING
    opaque = OPAQUE

    @T.prim_func(s_tir=True)
    def walk(
        data: T.Buffer((rows, features), dtype),
        feature: T.Buffer((inner,), "int32"),
        split: T.Buffer((inner,), dtype),
        fulfilled: T.Buffer((inner,), "int32"),
        children: T.Buffer((inner, 2), "int32"),
        roots: T.Buffer((trees,), "int32"),
        leaves: T.Buffer((rows, trees), "int32"),
    ) -> None:
        T.func_attr({"tirx.noalias": True, "op_pattern": opaque})
        with T.sblock("walk"):
            T.reads(
                data[0:rows, 0:features],
                feature[0:inner],
                split[0:inner],
                fulfilled[0:inner],
                children[0:inner, 0:2],
                roots[0:trees],
            )
            T.writes(leaves[0:rows, 0:trees])
            place = T.sblock_alloc_buffer((1,), "int32")
            read = T.sblock_alloc_buffer((1,), "int32")
            relation = T.sblock_alloc_buffer((1,), "int32")
            for row in T.serial(rows):
                for tree in T.serial(trees):
                    place[0] = roots[tree]
                    for _step in T.serial(depth):
                        if place[0] >= 0 and place[0] < inner:
                            # A kernel that is measured alone gets random numbers.
                            read[0] = T.max(T.min(feature[place[0]], features - 1), 0)
                            relation[0] = missing
                            if data[row, read[0]] < split[place[0]]:
                                relation[0] = less
                            if data[row, read[0]] == split[place[0]]:
                                relation[0] = equal
                            if data[row, read[0]] > split[place[0]]:
                                relation[0] = more
                            if T.bitwise_and(fulfilled[place[0]], relation[0]) > 0:
                                place[0] = children[place[0], 0]
                            else:
                                place[0] = children[place[0], 1]
                    leaves[row, tree] = place[0] - inner

    return walk


def converted(operator: str, bb: Any, inputs: list[Any], attributes: dict[str, Any]) -> relax.Expr:
    """Call the kernel, and sum up the weights of the leaves that it finds.

    Parameters
    ----------
    operator : {"TreeEnsemble", "TreeEnsembleRegressor"}
    bb : BlockBuilder
    inputs : list of Expr
        The data, shape (rows, features).
    attributes : dict

    Raises
    ------
    ValueError
        If `fewtune.onnx_graph.operators.classical.trees` has not simplified the node.
    """
    (data,) = inputs
    rows, features = (int(each) for each in data.ty.shape)
    dtype = str(data.ty.dtype)
    forest = forest_of(operator, attributes)
    if forest.transform != "NONE" or len(forest.base) or not forest.depth or forest.members.size:
        raise ValueError("it does more than add up leaves")
    fulfilled = np.array([_SATISFYING[each] for each in forest.modes], np.int32)
    fulfilled |= _MISSING * forest.missing.astype(np.int32)
    arrays = [
        forest.features.astype(np.int32),
        forest.splits.astype(dtype),
        fulfilled,
        forest.children.astype(np.int32),
        forest.roots.astype(np.int32),
    ]
    name = bb.add_func(kernel(rows, features, forest, dtype), "walk")
    given = relax.Tuple([data, *(relax.const(each, str(each.dtype)) for each in arrays)])
    shape = relax.TensorType((rows, len(forest.roots)), "int32")
    leaves = bb.emit(relax.call_tir(name, given, shape))
    given = forest.weights.astype(dtype)
    if forest.aggregate in EXTREMES:
        given = np.where(forest.weighted, given, EXTREMES[forest.aggregate]).astype(dtype)
    weights = relax.const(given, dtype)
    added = bb.normalize(relax.op.take(weights, leaves, axis=0, mode="clip"))
    reduce = {"MIN": relax.op.min, "MAX": relax.op.max, "AVERAGE": relax.op.mean}
    total = bb.normalize(reduce.get(forest.aggregate, relax.op.sum)(added, axis=1))
    if forest.aggregate in EXTREMES and not forest.weighted.all():
        # A target that no leaf gives anything gets zero.
        is_any = bb.normalize(relax.op.isfinite(total))
        total = bb.normalize(relax.op.where(is_any, total, relax.const(0, dtype)))
    return total if operator == "TreeEnsemble" else relax.op.astype(total, "float32")
