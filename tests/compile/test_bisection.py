"""Bisection finds wrong members of a group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest

from fewtune.compile.bisection import find_by_halves

MANY = [f"kernel_{number}" for number in range(64)]


@pytest.mark.parametrize("wrong", [(), (0,), (63,), (17,), (0, 63), (30, 31), (5, 6, 40)])
def test_wrong_ones_are_found_among_many(wrong: tuple[int, ...]) -> None:
    names = [MANY[place] for place in wrong]
    tested: list[Sequence[str]] = []

    def is_wrong(some: Sequence[str]) -> bool:
        tested.append(some)
        return bool(set(some) & set(names))

    assert find_by_halves(MANY, is_wrong) == names
    # Two tests for each halving of 64, for each wrong member, and the first test.
    assert len(tested) <= 1 + 2 * 6 * len(names)


def test_every_set_of_a_few_is_found() -> None:
    names = MANY[:7]
    for count in range(4):
        for wrong in combinations(names, count):
            found = find_by_halves(names, lambda some, wrong=wrong: bool(set(some) & set(wrong)))
            assert found == list(wrong)


def test_what_is_wrong_only_together_is_named_together() -> None:
    pair = {MANY[1], MANY[6]}
    assert find_by_halves(MANY[:8], lambda some: pair <= set(some)) == MANY[:8]
