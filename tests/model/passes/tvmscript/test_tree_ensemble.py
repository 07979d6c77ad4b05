"""Imported tree ensembles that are traversed, compared with onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.binding.bind import bind_shapes
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower_checked import lower_checked
from fewtune.model.passes.tvmscript.tree_ensemble import kernel
from fewtune.onnx_graph.operators.classical.forest import forest_of
from fewtune.runtime.target import resolve_target
from fewtune.runtime.tvm import tvm
from fewtune.verify.session import run_onnxruntime
from tests.made.trees import FEATURES, MODES, grown, modelled, rows, sparse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("element_type", "dtype", "more"),
    [
        (TensorProto.FLOAT, np.float32, {}),
        (TensorProto.FLOAT, np.float32, {"aggregate_function": "MIN"}),
        (TensorProto.DOUBLE, np.float64, {"base_values": [0.5]}),
    ],
)
def test_sums_of_leaves_are_onnxruntimes(element_type, dtype, more):
    trees = grown("target", 1, [0], MODES, -1, trees=60, deepest=10)
    model = modelled("TreeEnsembleRegressor", trees | more, 1, element_type)
    assert_compiled(model, {"x": rows(dtype)})


@pytest.mark.slow
def test_trees_that_give_a_target_nothing_do_not_count():
    assert_compiled(sparse(3, "MAX", trees=60, deepest=10), {"x": rows()})


def assert_compiled(model, feeds):
    wanted = run_onnxruntime(model, feeds, 1)[0]
    made = []
    lower_checked(
        bind_shapes(model, {}, {}),
        resolve_target("auto", 1),
        ImportOptions(),
        lambda compiled: made.append(compiled.outputs(list(feeds.values()))[0]),
    )
    assert len(np.unique(wanted)) > 4
    np.testing.assert_allclose(made[-1], wanted, rtol=1e-5, atol=1e-6)


def test_a_kernel_given_any_numbers_reads_and_writes_within_its_arrays():
    trees = grown("target", 1, [0], MODES, -1, trees=4)
    (node,) = modelled("TreeEnsembleRegressor", trees, 1).graph.node
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    forest = forest_of("TreeEnsembleRegressor", given)
    draws, count = np.random.default_rng(0), len(forest.children)

    def anything(*shape):
        return draws.integers(-(2**31), 2**31 - 1, shape).astype(np.int32)

    numbers, splits = np.zeros((2, FEATURES), np.float32), np.zeros(count, np.float32)
    arrays = [anything(count), splits, anything(count), anything(count, 2), anything(4)]
    leaves = tvm.runtime.tensor(np.full((2, 4), -1, np.int32))
    module = tvm.IRModule({"walk": kernel(2, FEATURES, forest, "float32")})
    built = tvm.compile(module, target="llvm")
    built["walk"](*map(tvm.runtime.tensor, [numbers, *arrays]), leaves)
    roots = arrays[-1][(arrays[-1] < 0) | (arrays[-1] >= count)]
    assert set(roots.astype(np.int64) - count) & set(leaves.numpy().reshape(-1).tolist())
