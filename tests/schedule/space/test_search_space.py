"""Points of a search space are drawn, changed, applied and read back; and the prior."""

import math
from functools import cache

import numpy as np
import pytest

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.space.design_space import TILE, Point
from fewtune.schedule.space.prior import Prior, tile_speed
from fewtune.schedule.space.search_space import SearchSpace
from tests import tuned_tiny
from tests.made.products import product_with_permuted_bias


@cache
def space(letter: str) -> SearchSpace:
    return SearchSpace(tuned_tiny.convolutions()[letter].mod, tuned_tiny.target())


def made(letter: str, point: Point) -> tvm.s_tir.Schedule:
    result = space(letter).make(point)
    assert result.schedule is not None, result.reason
    return result.schedule


@pytest.mark.parametrize("letter", ["a", "b", "c", "d"])
def test_random_points_apply_and_are_read_back(letter):
    random = np.random.default_rng(0)
    for seed in range(1, 9):
        result = space(letter).make(space(letter).random_point(random), seed)
        assert result.schedule is not None, result.reason
        assert None not in result.point.decisions
        assert space(letter).read(result.schedule.trace) == result.point
        again = space(letter).make(result.point, seed + 100)
        assert again.point == result.point
        tvm.ir.assert_structural_equal(again.schedule.mod, result.schedule.mod)


def test_a_product_beside_which_tvm_finds_another_block_has_a_space():
    module, target = product_with_permuted_bias(), tuned_tiny.target()
    stock = ms.TuneContext(mod=module, target=target, space_generator="post-order-apply")
    with pytest.raises(Exception, match="producer"):
        stock.generate_design_space()
    found = SearchSpace(module, target)
    random = np.random.default_rng(0)
    results = [found.make(found.random_point(random), seed) for seed in (1, 2, 3)]
    assert all(each.schedule is not None for each in results)
    given = [random.integers(-9, 9, shape).astype("int32") for shape in ((32, 16), (16, 64))]
    bias = random.normal(0, 9, 64).astype("float32")
    for each in results:
        output = tvm.runtime.tensor(np.zeros((32, 64), "int32"))
        code = tvm.compile(each.schedule.mod, target)
        code["main"](*(tvm.runtime.tensor(array) for array in (*given, bias)), output)
        expected = given[0] @ given[1] + np.floor(bias).astype("int32")
        assert (output.numpy() == expected).all()


def test_a_trace_of_another_task_is_no_point():
    random = np.random.default_rng(0)
    other = made("b", space("b").random_point(random)).trace
    assert space("c").read(other) is None
    assert space("b").read(tvm.s_tir.Schedule(space("b").module).trace) is None


def test_a_changed_point_differs_in_one_choice():
    random = np.random.default_rng(1)
    point = space("b").make(space("b").random_point(random)).point
    differences = []
    for _ in range(40):
        changed = space("b").changed(point, random)
        assert changed.program == point.program
        pairs = zip(changed.decisions, point.decisions, strict=True)
        differences.append(sum(new != old for new, old in pairs))
        for choice, decision in zip(
            space("b").programs[point.program].choices, changed.decisions, strict=True
        ):
            if choice.kind == TILE:
                assert math.prod(decision) == choice.extent
                assert decision[-1] <= choice.innermost
    assert set(differences) <= {0, 1}
    assert sum(differences) > 20


@pytest.mark.parametrize("letter", ["a", "b", "c", "d"])
def test_the_prior_fills_registers_and_keeps_all_threads_busy(letter):
    prior = Prior(space(letter))
    assert prior.informed
    random = np.random.default_rng(0)
    for _ in range(12):
        point = prior.draw(random)
        made(letter, point)
        choices = space(letter).programs[point.program].choices
        spatial = [
            decision
            for choice, decision in zip(choices, point.decisions, strict=True)
            if choice.kind == TILE and len(choice.default) == 4
        ]
        vector = spatial[-1]
        # Whole vectors, or all of a narrow axis; a power of two inside.
        assert vector[3] & (vector[3] - 1) == 0
        accumulators = math.prod(tile[2] * tile[3] for tile in spatial)
        assert accumulators <= 28 * 16
        assert math.prod(tile[0] for tile in spatial) % tuned_tiny.fingerprint().threads == 0


@pytest.mark.parametrize("letter", ["b", "c"])
def test_another_register_tile_leaves_the_rest_as_it_was(letter):
    prior = Prior(space(letter))
    random = np.random.default_rng(2)
    first = prior.draw(random)
    others = [prior.retiled(first, random) for _ in range(8)]
    assert len({prior.tile_of(point) for point in others}) > 1
    for point in others:
        made(letter, point)
        choices = space(letter).programs[point.program].choices
        for choice, before, after in zip(choices, first.decisions, point.decisions, strict=True):
            if choice.kind == TILE and len(choice.default) == 4:
                assert math.prod(after) == choice.extent
            else:
                assert after == before


@pytest.mark.parametrize(
    ("mcpu", "fits"),
    [
        # Accumulators, operands that stay, and one that passes: 15, 16, 16, 16 and 15 registers.
        ("haswell", {(13, 1): True, (14, 1): True, (4, 3): True, (3, 4): True, (6, 2): True}),
        ("znver3", {(7, 2): False, (2, 7): False, (5, 3): False, (15, 1): False}),
        # Seven rows of four vectors, and four vectors of weights: no register is left.
        ("znver4", {(7, 4): False, (14, 2): True, (28, 1): True, (5, 5): True, (15, 2): False}),
    ],
)
def test_a_tile_leaves_registers_to_its_operands(mcpu, fits):
    traits = cpu(mcpu)
    lanes = traits.lanes("float32")
    found = {
        (rows, vectors): tile_speed(rows, vectors * lanes, lanes, 256, traits) > 0
        for rows, vectors in fits
    }
    assert found == fits


def cpu(mcpu: str) -> CpuTraits:
    return CpuTraits.of(tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2}))
