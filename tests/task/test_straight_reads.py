"""Which weights may be laid out anew, by how their kernel reads them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.defaults import apply_default_schedules
from fewtune.task.weight_layout import FREE, fold, mark, reads_straight
from tests import tuned_tiny

Read = Callable[[Any, Any, Any], Any]
SUMMED = 16


def product(shape: tuple[int, ...], read: Read, columns: int = 16) -> tvm.tirx.PrimFunc:
    """A product of a matrix with weights, whose element (row, column) ``read`` gives."""
    data = te.placeholder((32, SUMMED), "float32", "data")
    weights = te.placeholder(shape, "float32", "weights")
    row = te.reduce_axis((0, SUMMED), "row")
    made = te.compute(
        (32, columns), lambda i, j: te.sum(data[i, row] * read(weights, row, j), axis=row)
    )
    return te.create_prim_func([data, weights, made])


def transposed_convolution(inputs: int, outputs: int) -> tvm.tirx.PrimFunc:
    """A 2x2 transposed convolution of stride 2: it reads its weights flipped."""
    data = te.placeholder((1, inputs, 4, 4), "float32", "data")
    weights = te.placeholder((inputs, outputs, 2, 2), "float32", "weights")
    made = tvm.topi.nn.conv2d_transpose_nchw(data, weights, (2, 2), (0, 0, 0, 0), "float32", (0, 0))
    return te.create_prim_func([data, weights, made])


def table_of_places() -> tvm.tirx.PrimFunc:
    """A gather by pairs of places, which are transposed first."""
    data = te.placeholder((4, 64), "float32", "data")
    places = te.placeholder((64, 2), "int64", "places")
    transposed = te.compute((2, 64), lambda i, j: places[j, i], "transposed")
    made = te.compute((64,), lambda j: data[transposed[0, j], transposed[1, j]])
    return te.create_prim_func([data, places, made])


def converted_weights() -> tvm.tirx.PrimFunc:
    """A product with weights of 8 bits, converted first."""
    data = te.placeholder((32, SUMMED), "float32", "data")
    weights = te.placeholder((SUMMED, 16), "int8", "weights")
    wide = te.compute((SUMMED, 16), lambda i, j: weights[i, j].astype("float32"), "wide")
    row = te.reduce_axis((0, SUMMED), "row")
    made = te.compute((32, 16), lambda i, j: te.sum(data[i, row] * wide[row, j], axis=row))
    return te.create_prim_func([data, weights, made])


STRAIGHT = {
    "converted": converted_weights(),
    "as they lie": product((16, 16), lambda w, r, j: w[r, j]),
    "transposed": product((16, 16), lambda w, r, j: w[j, r]),
    "axes of one element": product((1, 16, 1, 16), lambda w, r, j: w[0, r, 0, j]),
    "one column": product((16, 1), lambda w, r, j: w[r, j], columns=1),
}
AWKWARD = {
    "a table of places, transposed": table_of_places(),
    "rows flipped": product((16, 16), lambda w, r, j: w[15 - r, j]),
    "one column flipped": product((16, 1), lambda w, r, j: w[15 - r, j], columns=1),
    "one column of many": product((16, 4), lambda w, r, j: w[r, 2], columns=1),
    "a slice": product((32, 16), lambda w, r, j: w[r + 8, j]),
    "every second row": product((32, 16), lambda w, r, j: w[r * 2, j]),
    "rows over and over": product((4, 16), lambda w, r, j: w[r % 4, j]),
    "a diagonal": product((31, 16), lambda w, r, j: w[r + j, j]),
    "in two places": product((16, 16), lambda w, r, j: w[r, j] + w[j, r]),
    "with a border": product(
        (12, 16), lambda w, r, j: te.if_then_else(r < 12, w[te.min(r, 11), j], 0.0)
    ),
    "transposed convolution": transposed_convolution(16, 16),
}


def called(function: tvm.tirx.PrimFunc) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """A model that calls one kernel with constant weights, and an input for it."""
    random = np.random.default_rng(1)
    data, weights = (
        random.uniform(-1, 1, [int(extent) for extent in buffer.shape]).astype("float32")
        for buffer in function.params[:2]
    )
    builder = relax.BlockBuilder()
    given = relax.Var("data", relax.TensorType(data.shape, "float32"))
    with builder.function("main", [given]):
        kernel = builder.add_func(function.with_attr("tirx.noalias", True), "kernel")
        result = relax.TensorType([int(e) for e in function.params[2].shape], "float32")
        made = builder.emit(relax.call_tir(kernel, [given, relax.const(weights)], result))
        builder.emit_func_output(made)
    return builder.get(), [data]


@pytest.mark.parametrize("kind", STRAIGHT)
def test_weights_read_by_the_axes_themselves_are_free(kind):
    assert reads_straight(STRAIGHT[kind], STRAIGHT[kind].params[1])


@pytest.mark.parametrize("kind", AWKWARD)
def test_weights_read_in_any_other_way_are_not(kind):
    assert not reads_straight(AWKWARD[kind], AWKWARD[kind].params[1])
    model, _ = called(AWKWARD[kind])
    assert FREE not in (mark(model)["kernel"].attrs or {})


@pytest.mark.parametrize("kind", ["as they lie", "one column of many", "a slice"])
def test_a_kernel_computes_the_same_with_its_weights_laid_out(kind):
    target = tuned_tiny.target()
    model, inputs = called({**STRAIGHT, **AWKWARD}[kind])
    (expected,) = CompiledModel(build_executable(model, target), target).outputs(inputs)
    scheduled = apply_default_schedules(mark(model), ["kernel"], target)
    executable = build_executable(fold(scheduled), target)
    (made,) = CompiledModel(executable, target).outputs(inputs)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
