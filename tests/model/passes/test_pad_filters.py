"""Convolutions with padded filters give the same results."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from onnx import helper

from fewtune.model.import_model import read_lowered
from fewtune.model.import_options import ImportOptions
from fewtune.model.passes import winograd
from fewtune.model.passes.pad_filters import Filters
from fewtune.task.calls import call_counts
from fewtune.task.extract import extract_tasks
from tests import tuned_tiny
from tests.model.passes.test_winograd import convolution_model
from tests.model.test_import_model import imported
from tests.tiny_models import make_model, random_weight

BOUND = 2e-5


@pytest.mark.parametrize(
    ("size", "channels", "filters", "lanes", "gains"),
    [
        (13, 512, 1000, 16, True),  # SqueezeNet's classifier: 125 half vectors
        (13, 512, 1000, 8, False),  # 125 full ones
        (52, 256, 75, 16, True),  # a detector's head: no vector at all
        (
            56,
            144,
            24,
            16,
            False,
        ),  # half vectors, but a third of padding, and one more pass over the result
        (56, 64, 64, 16, False),  # four full vectors
        (13, 16, 8, 16, False),  # not worth another kernel
    ],
)
def test_filters_are_padded_where_that_is_expected_to_pay(
    size: int, channels: int, filters: int, lanes: int, gains: bool
) -> None:
    assert Filters(filters, channels, size**2, size**2 * channels, lanes).gains is gains


def test_padding_is_counted() -> None:
    filters = Filters(75, 256, 10, 2560, 16)
    assert filters.padded == 80
    assert filters.flops == 2 * 10 * 256 * 75
    assert filters.added_flops == 2 * 10 * 256 * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "depth"),
    [
        ({"kernel_shape": [1, 1], "pads": [0, 0, 0, 0]}, 128),
        ({"strides": [2, 2]}, 9 * 128),
    ],
)
def test_a_padded_convolution_gives_the_same_result(
    settings: dict[str, object], depth: int, tmp_path: Path
) -> None:
    model = convolution_model((40, 40), channels=128, filters=75, **settings)
    report = imported(model, tmp_path)
    assert (report.padded, report.winograd) == (1, 0)
    assert report.max_relative_error < BOUND
    points = int(np.prod(report.outputs[0].shape)) // 75
    assert report.saved_flops == -2 * points * depth * 5
    lowered = read_lowered(tmp_path / "import")
    tasks = {task.info.operator: task.info for task in extract_tasks(lowered, tuned_tiny.target())}
    assert tasks["conv2d"].shapes[-1][-1] == 80
    # The kernel that drops the padding computes bias and activation.
    (rest,) = [name for name in call_counts(lowered) if "unpadded" in name]
    assert "add" in rest
    assert "relu" in rest


@pytest.mark.slow
def test_a_grouped_convolution_is_left_alone(tmp_path: Path) -> None:
    model = convolution_model((40, 40), channels=130, filters=130, group=2)
    assert imported(model, tmp_path).padded == 0


@pytest.mark.slow
def test_padding_stays_if_transforms_are_left_out(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    weights = {
        "first": random_weight(generator, 64, 64, 3, 3),
        "second": random_weight(generator, 75, 64, 1, 1),
    }
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["between"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["between", "second"], ["y"]),
    ]
    model = make_model(nodes, {"x": [1, 64, 40, 40]}, {"y": None}, weights)
    wrong = {m: (b, g, 2 * np.array(a)) for m, (b, g, a) in winograd.TRANSFORMS.items()}
    with mock.patch.object(winograd, "TRANSFORMS", wrong):
        report = imported(model, tmp_path)
    assert (report.layout, report.winograd, report.padded) == ("NHWC", 0, 1)
    assert len(report.left_out) == 1
    assert report.left_out[0].startswith("winograd: ")


def test_never_pads_no_filters(tmp_path: Path) -> None:
    model = convolution_model((40, 40), 128, 75, kernel_shape=[1, 1], pads=[0, 0, 0, 0])
    report = imported(model, tmp_path, ImportOptions(pad_filters="never"))
    assert (report.padded, report.saved_flops) == (0, 0)
    assert not [n for n in call_counts(read_lowered(tmp_path / "import")) if "unpadded" in n]
