"""Fourier transforms: values that cancel may be rounded, and wrong ones are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.verify.draws import drawn_inputs
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Reference
from fewtune.verify.session import tensor_specs

ROWS, LENGTH, FRAME, STEP = 3, 12, 8, 2


def transform(opset: int, axis: int | None) -> ModelProto:
    """A transform of real signals: the imaginary part of their mean is exactly zero."""
    named = ["x"] if axis is None or opset < 20 else ["x", "", "axis"]
    attributes = {"axis": axis} if axis is not None and opset < 20 else {}
    constants = [numpy_helper.from_array(np.array(axis), "axis")] if len(named) > 1 else []
    node = helper.make_node("DFT", named, ["y"], **attributes)
    return model_of(node, [ROWS, LENGTH, 1], [ROWS, LENGTH, 2], constants, opset)


def model_of(
    node: object, given: list[int], result: list[int], constants: list[TensorProto], opset: int
) -> ModelProto:
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def reference_of(model: ModelProto) -> Reference:
    inputs, outputs = tensor_specs(model)
    return make_reference(model, model, outputs, drawn_inputs(model, inputs, 0), 1, 0)


def product(axis: int) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    """The transform as a product with a table, with rounded partial sums."""

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        signals = np.moveaxis(feeds["x"][..., 0], axis, -1)
        length = signals.shape[-1]
        angles = -2 * np.pi * np.outer(np.arange(length), np.arange(length)) / length
        parts = [
            np.moveaxis(signals @ table(angles).astype(np.float32), -1, axis)
            for table in (np.cos, np.sin)
        ]
        return [np.stack(parts, -1)]

    return run


@pytest.mark.parametrize(
    ("opset", "axis"), [(17, None), (19, 1), (19, 0), (20, None), (20, 1), (20, 0)]
)
def test_values_that_cancel_may_be_rounded(opset: int, axis: int | None) -> None:
    run = product(1 if axis is None else axis)
    assert reference_of(transform(opset, axis)).check(run).allowances <= 1


@pytest.mark.parametrize("place", [(0, 0, 0), (2, 3, 1)])
def test_a_number_off_by_a_thousandth_is_refused(place: tuple[int, ...]) -> None:
    def wrong(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        (found,) = product(1)(feeds)
        found[place] *= 1.001
        return [found]

    assert reference_of(transform(17, 1)).check(wrong).allowances > 1


def test_a_loud_signal_does_not_hide_a_fault_in_a_quiet_one() -> None:
    quiet = np.array([[1.0], [1e6], [1.0]], np.float32)

    def louder(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": feeds["x"] * quiet[..., None]}

    model = transform(17, 1)
    inputs, outputs = tensor_specs(model)
    draws = [each._replace(feeds=louder(each.feeds)) for each in drawn_inputs(model, inputs, 0)]
    reference = make_reference(model, model, outputs, draws, 1, 0)

    def wrong(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        (found,) = product(1)(feeds)
        found[0] *= 1.001
        return [found]

    assert reference.check(product(1)).allowances <= 1
    assert reference.check(wrong).allowances > 1


def test_short_transforms_are_rounded_by_frame() -> None:
    constants = [
        numpy_helper.from_array(np.array(value), name)
        for name, value in (("step", STEP), ("frame", FRAME))
    ]
    node = helper.make_node("STFT", ["x", "step", "", "frame"], ["y"], onesided=0)
    frames = (LENGTH - FRAME) // STEP + 1
    model = model_of(node, [ROWS, LENGTH, 1], [ROWS, frames, FRAME, 2], constants, 17)

    def run(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        starts = range(0, LENGTH - FRAME + 1, STEP)
        cut = np.stack([feeds["x"][:, start : start + FRAME] for start in starts], 1)
        return product(2)({"x": cut})

    assert reference_of(model).check(run).allowances <= 1
