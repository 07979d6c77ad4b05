"""Which convolutions are transformed, by which tile, and what the import reports."""

from unittest import mock

import numpy as np
import pytest

from fewtune.model.import_model import read_lowered
from fewtune.model.import_options import ImportOptions
from fewtune.model.passes import winograd
from fewtune.task.analysis import call_counts
from tests.model.passes.test_winograd import BOUND, convolution_model
from tests.model.test_import_model import imported

pytestmark = pytest.mark.slow


def convolution(size: int, channels: int, filters: int) -> winograd.Convolution:
    return winograd.Convolution((1, size, size, channels), filters, (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("size", "channels", "filters", "m"),
    [
        (28, 128, 128, 4),  # measured 2.4 times as fast as direct convolution (2 cores, AVX-512)
        # Weights in memory, on an EPYC and on an Emerald Rapids, without the transforms' time:
        (14, 256, 256, 2),  # 1.5 and 1.8 times as fast, with tiles of 4 1.7 and 1.5 times
        (7, 512, 512, 2),  # 1.3 and 1.03 times; tiles of 4 need 38 MB of weights, and are slower
        (14, 512, 512, 2),  # 2.1 times on the latter, with tiles of 4 1.6 times
        (13, 64, 256, 2),  # 1.5 times on the latter, with tiles of 4 1.02 times
        (8, 16, 16, 0),  # three kernels cost more than they save
        (224, 3, 64, 0),  # three channels fill no vector
        (1024, 64, 64, 0),  # 1.2 GB of tiles and products
        (32, 1024, 84, 4),  # a detector's head, on 96 columns
    ],
)
def test_the_tile_of_the_lowest_cost_is_chosen(size, channels, filters, m):
    assert winograd.best_tile(convolution(size, channels, filters)) == m


def test_the_import_reports_what_it_transformed(tmp_path):
    model = convolution_model((28, 28), channels=128, filters=128)
    report = imported(model, tmp_path, ImportOptions(most_growth=5))
    plain = convolution(28, 128, 128)
    assert report.winograd == 1
    # 49 tiles of 4 x 4 fill the plane: they need a quarter of the multiplications.
    assert report.saved_flops == plain.flops * 3 / 4
    assert report.max_relative_error < BOUND
    names = call_counts(read_lowered(tmp_path / "import"))
    assert any("winograd_matmul" in name for name in names)


def test_transformed_weights_are_bounded_and_the_report_says_so(tmp_path):
    model = convolution_model((28, 28), channels=128, filters=128)
    report = imported(model, tmp_path)
    # Tiles of 4 hold 36 weights for 9, tiles of 2 hold 16.
    assert report.winograd_bytes == 7 * 128 * 128 * 4
    assert report.weight_bytes + report.winograd_bytes <= 2 * report.weight_bytes
    assert ["compile.most_growth" in line for line in report.left_out] == [True]


def test_the_least_time_for_the_bytes_is_given_up_first():
    counts = {convolution(56, 64, 64): 3, convolution(14, 256, 256): 2}
    best = {each: winograd.best_tile(each) for each in counts}
    assert winograd.tiles_within(counts, float("inf")) == best
    small, large = winograd.tiles_within(counts, 2**21).values()
    # The large one's weights are 16 times as large, and save less time for a byte.
    assert (small, large) == (4, 0)
    assert set(winograd.tiles_within(counts, 0).values()) == {0}


def test_a_model_too_sensitive_for_the_transforms_is_imported_without(tmp_path):
    wrong = {m: (b, g, 2 * np.array(a)) for m, (b, g, a) in winograd.TRANSFORMS.items()}
    with mock.patch.object(winograd, "TRANSFORMS", wrong):
        report = imported(convolution_model((28, 28), channels=64, filters=64), tmp_path)
    assert (report.layout, report.winograd) == ("NHWC", 0)
    assert any("elements differ" in reason for reason in report.left_out)
