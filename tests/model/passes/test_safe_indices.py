"""Indices that only a run knows never reach beyond their tensor."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.expanded_models import node_model
from tests.made.compiled import outputs
from tests.made.outputs import run_onnxruntime

FAR = 10**7
GENERATOR = np.random.default_rng(3)
TABLE = GENERATOR.standard_normal((5, 4, 3)).astype("float32")
ROWS = GENERATOR.standard_normal((2, 4, 3)).astype("float32")


def read(operator: str, indices: np.ndarray, further: dict | None = None, **attributes):
    """A model that reads or writes a table at its input ``indices``, and what to feed."""
    arrays = {"table": TABLE, "indices": indices, **(further or {})}
    node = helper.make_node(operator, list(arrays), ["y"], **attributes)
    return node_model(node, arrays, constants=[name for name in arrays if name != "indices"])


CASES = {
    "Gather": read("Gather", np.array([[4, -5], [0, 3]])),
    "Gather of an axis": read("Gather", np.array([3, -4], np.int32), axis=1),
    "GatherElements": read("GatherElements", np.array([[[-3, 2, 0]], [[1, 1, -1]]]), axis=2),
    "GatherND": read("GatherND", np.array([[4, -4], [-5, 3], [0, 0]])),
    "GatherND of rows": read(
        "GatherND", np.array([[[3]], [[-4]], [[0]], [[1]], [[2]]]), batch_dims=1
    ),
    "ScatterElements": read(
        "ScatterElements", np.full((2, 4, 3), -5) + [[[0]], [[9]]], {"rows": ROWS}, axis=0
    ),
    "ScatterND": read("ScatterND", np.array([[4], [-4]]), {"rows": ROWS}),
    "ScatterND of pairs": read("ScatterND", np.array([[4, -4], [-5, 3]]), {"rows": ROWS[0, :2]}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_index_beyond_its_table_is_the_nearest_one(case):
    model, feeds = CASES[case]
    indices = feeds["indices"]
    far = np.where(indices < 0, -FAR, FAR).astype(indices.dtype)
    (known,), (beyond,) = outputs(model, [indices], [far])
    (expected,) = run_onnxruntime(model, feeds, 1)
    np.testing.assert_array_equal(known, expected)
    assert np.isfinite(beyond).all()
    assert np.isin(beyond, np.concatenate([TABLE.reshape(-1), ROWS.reshape(-1)])).all()
