"""How fast the shared cache is: where that is measured, of what, and where it is told."""

from __future__ import annotations

import pytest

from fewtune.artifacts import Spread
from fewtune.machine import last_level_cache as module
from fewtune.machine.last_level_cache import SharedCache, shared_cache
from fewtune.measure.interleave import rate_stats
from fewtune.report.machine_state import shared_cache_lines
from fewtune.report.tables import comparisons_markdown
from fewtune.runtime.tvm import tvm
from tests import made_results as made
from tests import tuned_tiny

_THREADS = 2


def with_caches(
    monkeypatch: pytest.MonkeyPatch, own_bytes: int | None, shared_bytes: int | None
) -> SharedCache | None:
    """What measures on a machine of such caches."""
    monkeypatch.setattr(module, "own_caches_bytes", lambda _: own_bytes)
    monkeypatch.setattr(module, "last_level_cache_bytes", lambda: shared_bytes)
    return shared_cache(tuned_tiny.target(), _THREADS)


def test_the_triad_outgrows_the_cores_own_caches_and_fits_the_shared_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = with_caches(monkeypatch, 2**18, 2**24)
    assert found is not None
    # Three buffers of whole vectors: nearly four times the cores' own.
    moved_bytes = found.rate_gb_s(1.0) * 1e9
    assert 0.95 * 2**20 < moved_bytes <= 2**20
    assert found.rate_gb_s(0.5) == pytest.approx(2 * found.rate_gb_s(1.0))
    assert found.now_gb_s() > 0


@pytest.mark.parametrize(
    ("own_bytes", "shared_bytes"), [(None, 2**24), (2**20, None), (2**22, 2**24)]
)
def test_a_cache_that_is_not_known_or_not_shared_is_not_measured(
    own_bytes: int | None, shared_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_caches(monkeypatch, own_bytes, shared_bytes) is None


def test_a_device_of_its_own_has_none() -> None:
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    assert shared_cache(cuda, _THREADS) is None


def test_rates_are_summed_up_where_there_are_any() -> None:
    assert rate_stats([]) is None
    assert rate_stats([60.0] * 9 + [20.0]) == Spread(median=60.0, p10=56.0, p90=60.0)


def test_a_comparison_tells_in_which_state_it_was_made() -> None:
    known = made.comparison("net").model_copy(
        update={"shared_cache_gb_s": Spread(median=60.0, p10=24.5, p90=61.0)}
    )
    assert shared_cache_lines([made.comparison("older")]) == []
    (line,) = shared_cache_lines([known, made.comparison("older")])
    assert line.endswith("(triad): net 60.0 [24.5 - 61.0].")
    assert line in comparisons_markdown([known]).splitlines()
