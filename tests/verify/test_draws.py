"""Inputs within what their use allows, and the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewtune.artifacts import TensorSpec
from fewtune.errors import InputError
from fewtune.verify.draws import drawn_inputs, given_inputs, integer_limits
from fewtune.verify.session import tensor_specs
from tests import tiny_models
from tests.verify import small_models

SPECS = [TensorSpec(name="x", shape=[2, 3], dtype="float32")]


def test_integers_lie_within_the_table_that_they_read() -> None:
    model = small_models.embedding()
    assert integer_limits(model) == {"ids": 50}
    first, second = drawn_inputs(model, tensor_specs(model)[0], 0)
    for draw in (first, second):
        assert 1 < draw.feeds["ids"].max() < 50
    assert set(np.unique(first.feeds["mask"])) == {0, 1}
    assert (second.feeds["mask"] == 1).all()


def test_floats_are_drawn_in_three_ways_and_again_the_same() -> None:
    model = tiny_models.tiny_convolutional_model()
    draws = drawn_inputs(model, tensor_specs(model)[0], 3)
    low = [float(draw.feeds["input"].min()) for draw in draws]
    assert low[0] < 0 <= low[1]
    assert low[2] > 0
    assert draws[2].feeds["input"].max() > 1
    for draw, again in zip(draws, drawn_inputs(model, tensor_specs(model)[0], 3), strict=True):
        np.testing.assert_array_equal(draw.feeds["input"], again.feeds["input"])


def test_the_users_own_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 3)))
    draw = given_inputs(tmp_path / "inputs.npz", SPECS)
    assert draw.feeds["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((3, 2))}, r"'x' has shape \[3, 2\]"),
        ({"y": np.ones((2, 3))}, "holds 'y', which is no input"),
        ({}, "has no array for input 'x'"),
        ({"x": np.ones((2, 3), complex)}, "holds complex128"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "inputs.npz", **arrays)
    with pytest.raises(InputError, match=message):
        given_inputs(tmp_path / "inputs.npz", SPECS)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inputs.npz").write_text("no arrays")
    with pytest.raises(InputError, match="numpy.savez"):
        given_inputs(tmp_path / "inputs.npz", SPECS)
