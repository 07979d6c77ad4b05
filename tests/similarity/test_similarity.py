"""Similarity of tuning spaces, against figures worked out by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from fewtune.runtime.tvm import tvm
from fewtune.schedule.tiling import divisors
from fewtune.similarity.similarity import (
    DesignSpace,
    Sampling,
    SpaceTrace,
    design_space,
    sampling_overlap,
    similarity_matrix,
    similarity_rate,
    trace_overlap,
)
from tests.made.products import matrix_product

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def tile(extent: int, parts: int = 4) -> Sampling:
    return Sampling(f"SamplePerfectTile {parts} 64", tuple(divisors(extent)))


def space(*extents: int, form: str = "tiled", traces: int = 1) -> DesignSpace:
    trace = SpaceTrace((form,), tuple(tile(extent) for extent in extents))
    return DesignSpace((trace,) * traces)


@pytest.mark.parametrize(
    ("a", "b", "overlap"),
    [
        (tile(12), tile(12), 1.0),
        (tile(12), tile(18), 4 / 8),  # 1 2 3 6 of 1 2 3 4 6 9 12 18
        (tile(13), tile(27), 1 / 5),
        (tile(12), tile(12, parts=2), 0.0),
        (Sampling("category", (0, 16)), Sampling("category", (0, 64)), 1 / 3),
        (Sampling("location"), Sampling("location"), 1.0),
        (Sampling("location"), tile(12), 0.0),
    ],
)
def test_overlap_of_a_sampling(a, b, overlap):
    assert sampling_overlap(a, b) == pytest.approx(overlap)
    assert sampling_overlap(b, a) == sampling_overlap(a, b)


def test_traces_take_the_geometric_mean():
    a, b = space(12, 13).traces[0], space(18, 27).traces[0]
    assert trace_overlap(a, b) == pytest.approx((0.5 * 0.2) ** 0.5)


def test_rate_is_symmetric_and_one_with_itself():
    spaces = [space(12, 13), space(18, 27), space(56, 64, traces=2), space(7, 7, form="odd")]
    for a in spaces:
        assert similarity_rate(a, a) == 1.0
        for b in spaces:
            assert similarity_rate(a, b) == similarity_rate(b, a)
            assert 0 <= similarity_rate(a, b) <= 1


def test_nothing_to_sample_is_like_nothing():
    empty = DesignSpace((SpaceTrace(("tiled",), ()),))
    assert similarity_rate(empty, empty) == 0.0
    assert similarity_rate(empty, space(12)) == 0.0
    assert similarity_rate(DesignSpace(()), DesignSpace(())) == 0.0


def test_other_forms_and_families_are_unlike():
    assert similarity_rate(space(12), space(12, form="odd")) == 0.0
    tasks = [SimpleNamespace(info=SimpleNamespace(operator=it)) for it in ("conv2d", "dense")]
    np.testing.assert_array_equal(similarity_matrix(tasks, [space(12)] * 2), np.eye(2))


def test_space_of_a_matrix_product():
    first = design_space(matrix_product(32, 48, 64), TARGET)
    assert first == design_space(matrix_product(32, 48, 64), TARGET)
    tiles = [it for it in first.traces[0].samplings if it.kind.startswith("SamplePerfectTile")]
    assert tiles == [tile(32), tile(48), tile(64, parts=2)]
    other = design_space(matrix_product(32, 96, 64), TARGET)
    assert other.traces[0].form == first.traces[0].form
    # Divisors of 48 and 96 overlap 10 in 12; rows, depth and the unrolling are the same.
    assert similarity_rate(first, other) == pytest.approx((10 / 12) ** (1 / 4))
