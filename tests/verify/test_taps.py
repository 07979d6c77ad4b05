"""Values that kernels write are recognised and compared."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fewtune.verify.comparison import Expected
from fewtune.verify.taps import Site, Tap, Written, check_taps, find_sites
from tests.verify import small_models
from tests.verify.imported import Changed, Imported, imported


@pytest.fixture(scope="module")
def gated():
    """A model with a gate."""
    return imported(small_models.gated())


def wrong_at(given: Imported, value: str) -> tuple[str, Changed]:
    """The kernel that writes a value, and a library in which that is off by a hundredth."""
    (kernel,) = {tap.site.kernel for tap in given.reference.taps if tap.expected.name == value}

    def wrong(symbol: str, arguments: Sequence[Any]) -> None:
        if symbol == kernel:
            arguments[-1].copyfrom(arguments[-1].numpy() * np.float32(1.01))

    return kernel, Changed(given.compiled, after=wrong)


def test_most_kernels_write_a_value_of_the_model(gated):
    names = {tap.expected.name for tap in gated.reference.taps}
    assert names == {"c1", "mean", "r", "g", "y"}


def test_a_fault_that_a_bias_hides_is_refused_at_its_kernel(gated):
    kernel, library = wrong_at(gated, "r")
    reference = gated.reference
    assert reference.check(lambda feeds: library.outputs([feeds["x"]])).allowances <= 1
    found = reference.check_library(library, ["x"])
    assert found.allowances > 1
    assert found.text.startswith(f"kernel {kernel}: value 'r' is ")


def test_the_first_wrong_kernel_is_named(gated):
    kernel, library = wrong_at(gated, "c1")
    found = gated.reference.check_library(library, ["x"])
    assert found.text.startswith("output 'y' is ")
    assert f"the first value inside: kernel {kernel}: value 'c1' is " in found.text


def test_a_library_elsewhere_is_compared_by_its_outputs(gated):
    class Elsewhere:
        """A library that only returns outputs."""

        outputs = staticmethod(gated.compiled.outputs)

    assert gated.reference.check_library(Elsewhere(), ["x"]).allowances <= 1


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)])
def test_a_value_is_found_in_another_layout(order):
    value = np.random.default_rng(0).standard_normal((1, 6, 4, 3)).astype("f4")
    other = np.random.default_rng(1).standard_normal((1, 6, 4, 3)).astype("f4")
    written = np.ascontiguousarray(value.transpose(order)) * np.float32(1 + 1e-6)
    ((site, name),) = find_sites([Written("k", 2, written)], {"other": other, "value": value})
    assert (name, site.kernel, site.call) == ("value", "k", 2)
    np.testing.assert_allclose(site.value_of(written, value), value, rtol=1e-5)


def test_other_values_have_no_site():
    generator = np.random.default_rng(0)
    value, other = generator.standard_normal((2, 4, 8, 8)).astype("f4")
    assert find_sites([Written("k", 0, other)], {"value": value}) == []


def test_elements_near_to_each_other_are_not_taken_for_those_of_another_order():
    value = -16 + np.random.default_rng(0).standard_normal((1, 1, 16, 16)).astype("f4") / 2
    # A transposed convolution to one channel, before its channels are in their places.
    phases = value.reshape(8, 2, 8, 2).transpose(0, 2, 1, 3).reshape(1, 8, 8, 4)
    assert find_sites([Written("k", 0, np.ascontiguousarray(phases))], {"value": value}) == []
    ((_, name),) = find_sites([Written("k", 0, value)], {"value": value})
    assert name == "value"


def test_equal_elements_are_recognised_with_their_rounding():
    value = np.full((1, 4, 3, 3), 0.1, "f4")
    assert len(find_sites([Written("k", 0, value * np.float32(1 + 1e-7))], {"v": value})) == 1


def test_a_part_is_found_in_a_larger_buffer():
    generator = np.random.default_rng(0)
    value = generator.standard_normal((1, 4, 5, 5)).astype("f4")
    whole = generator.standard_normal((1, 5, 5, 12)).astype("f4")
    whole[..., 6:10] = value.transpose(0, 2, 3, 1)
    site = Site("k", 0, (1, 5, 5, 4), (0, 2, 3, 1))
    np.testing.assert_array_equal(site.value_of(whole, value), value)
    assert site.value_of(whole[0], value) is None


def test_a_missing_kernel_is_ignored(gated):
    expected = Expected("gone", np.ones(4, "f4"), np.ones(4, "f4"))
    tap = Tap(Site("no_such_kernel", 0, (4,), (0,)), expected)
    found = check_taps(gated.compiled, [gated.reference.feeds["x"]], [tap])
    assert found.allowances == 0
