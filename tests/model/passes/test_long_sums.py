"""Means and sums over a plane: rows first, then columns, with fewer digits lost."""

import numpy as np
import pytest
from onnx import ModelProto

from fewtune.model.lower import lower
from fewtune.process.optional_steps import OptionalSteps
from fewtune.runtime.tvm import tvm
from tests.made.compiled import compiled
from tests.made.onnx_text import model_of

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
STEP = "long_sums"


def reduced(
    operator: str, shape: tuple[int, ...], axes: list[int] | None, keepdims: int = 1
) -> ModelProto:
    """A model of one reduction."""
    over = "" if axes is None else f", axes = {axes}"
    node = f"y = {operator} <keepdims = {keepdims}{over}> (x)"
    return model_of(f"(float{list(shape)} x) => (float[] y) {{{node}}}", 11)


def kernels(model: ModelProto) -> int:
    """The number of kernels that a model is lowered to."""
    functions = lower(model, TARGET, "NCHW").functions_items()
    return sum(isinstance(function, tvm.tirx.PrimFunc) for _, function in functions)


def off(model: ModelProto, given: np.ndarray, wanted: np.ndarray, left_out: str = "") -> float:
    """The largest relative error of a model's output."""
    module = lower(model, TARGET, "NCHW", steps=OptionalSteps({left_out: ""}))
    (found,) = compiled(module, TARGET).outputs([given])
    assert found.shape == wanted.shape
    return float(np.max(np.abs(found - wanted) / np.abs(wanted)))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("operator", "of"), [("ReduceMean", np.mean), ("ReduceSum", np.sum)])
def test_a_long_sum_keeps_its_digits(operator, of, keepdims):
    given = np.random.default_rng(0).normal(-8, 1, (1, 120, 110, 3)).astype("f4")
    wanted = of(given.astype("f8"), axis=(1, 2), keepdims=bool(keepdims))
    model = reduced(operator, given.shape, [1, 2], keepdims)
    assert off(model, given, wanted) < 1e-6
    assert off(model, given, wanted, STEP) > 2e-6


@pytest.mark.parametrize(
    ("shape", "axes", "count"),
    [
        ((1, 64, 64, 8), [1, 2], 2),
        ((1, 64, 64, 8), [-3, -2], 2),
        ((16, 16, 16, 8), [0, 1, 2], 3),
        ((1, 64, 64, 8), [0, 1, 2], 2),
        # Small, a single axis, and the axis that is contiguous.
        ((1, 8, 8, 8), [1, 2], 1),
        ((1, 4096, 8), [1], 1),
        ((1, 4096, 1, 8), [1, 2], 1),
        ((1, 8, 64, 64), [2, 3], 1),
        ((1, 64, 64, 8), None, 1),
    ],
)
def test_which_sums_are_split(shape, axes, count):
    assert kernels(reduced("ReduceMean", shape, axes)) == count
