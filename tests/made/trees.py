"""Random ensembles of decision trees as ONNX holds them."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper

DOMAIN = "ai.onnx.ml"
FEATURES = 5
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def grown(
    kind: str,
    targets: int,
    ids: list[int],
    modes: tuple[str, ...],
    low: float,
    trees: int = 3,
    deepest: int = 3,
) -> dict:
    """Attributes of random trees whose leaves add to the targets of these numbers."""
    draws = np.random.default_rng(3)
    nodes: list[tuple] = []
    leaves: list[tuple] = []
    begins: list[int] = []

    def grow(tree: int, depth: int) -> int:
        number = len(nodes) - begins[tree]
        nodes.append(())
        place = len(nodes) - 1
        nodes[place] = (tree, number, "LEAF", 0, 0.0, 0, 0, 0)
        if depth == 0 or (depth < deepest and draws.random() < 0.3):
            leaves.extend((tree, number, each, draws.uniform(low, 1)) for each in ids)
            return number
        true, false = grow(tree, depth - 1), grow(tree, depth - 1)
        feature, mode = int(draws.integers(FEATURES)), modes[int(draws.integers(len(modes)))]
        split = float(draws.integers(-1, 2))
        nodes[place] = (tree, number, mode, feature, split, true, false, int(draws.integers(2)))
        return number

    for tree in range(trees):
        begins.append(len(nodes))
        grow(tree, deepest)
    names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    names += ("missing_value_tracks_true",)
    given = {f"nodes_{name}": [node[i] for node in nodes] for i, name in enumerate(names)}
    parts = ("treeids", "nodeids", "ids", "weights")
    given |= {f"{kind}_{name}": [leaf[i] for leaf in leaves] for i, name in enumerate(parts)}
    return given | ({"n_targets": targets} if kind == "target" else {})


def modelled(
    operator: str, attributes: dict, outputs: int, element_type: int = TensorProto.FLOAT, opset=3
) -> ModelProto:
    """A model of one ensemble of 40 rows."""
    names = ["y", "z"][:outputs]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], names, "trees", domain=DOMAIN, **attributes)],
        "trees",
        [helper.make_tensor_value_info("x", element_type, [40, FEATURES])],
        [helper.make_empty_tensor_value_info(name) for name in names],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def rows(dtype: type = np.float32) -> np.ndarray:
    """Data for it: whole numbers, since what lies on a split tells comparisons apart; some NaN."""
    data = np.random.default_rng(0).integers(-2, 3, (40, FEATURES)).astype(dtype)
    data[::7, 1] = np.nan
    return data


def sparse(targets: int, aggregate: str, trees: int = 3, deepest: int = 3) -> ModelProto:
    """A regressor: half of the leaves have no weight for a target, and none for the last one."""
    given = grown("target", targets, list(range(targets)), MODES, -1, trees, deepest)
    draws = np.random.default_rng(5)
    ids = given["target_ids"]
    kept = [bool(draws.random() < 0.5) and (each == 0 or each < targets - 1) for each in ids]
    for part in ("treeids", "nodeids", "ids", "weights"):
        values = given[f"target_{part}"]
        given[f"target_{part}"] = [v for v, is_kept in zip(values, kept, strict=True) if is_kept]
    return modelled("TreeEnsembleRegressor", given | {"aggregate_function": aggregate}, 1)
