"""The benchmark of tasks that are set aside: one is really measured, and the rows count right."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts import set_aside
from benchmarks.parts.set_aside import Tried
from fewtune.errors import InputError
from fewtune.measure.measurer import Measurer
from stages.paths import Places
from tests import tuned_tiny


def test_a_row_counts_calls_and_never_a_loss() -> None:
    found = [
        Tried("pool", "pool", 2, 1.0, 0.75, 7),
        Tried("copy", "transpose", 1, 0.5, 0.5, 1),
        Tried("sum", "reduce", 3, 0.1, 0.2, 4),
    ]
    row = set_aside.row_of("net", found, 10.0)
    assert (row["tasks"], row["with_choices"]) == (3, 2)
    assert row["default_pct"] == pytest.approx(28.0)
    assert row["saved_pct"] == pytest.approx(5.0)
    (line,) = set_aside.table_of([row]).rows
    assert line == ["net", "3", "2", "28.0", "5.00", "pool 1.00 to 0.750 ms"]
    (line,) = set_aside.table_of([set_aside.row_of("net", found[1:], 10.0)]).rows
    assert line[-1] == "-"


@pytest.mark.slow
def test_a_task_measures_its_default_and_random_programs() -> None:
    convolution = tuned_tiny.convolutions()["d"]
    measurer = Measurer(tuned_tiny.pool())
    found = set_aside.tried(convolution, tuned_tiny.target(), measurer, 4)
    assert found is not None
    assert (found.task, found.calls) == (convolution.info.name, convolution.info.weight)
    assert 1 <= found.programs <= 4
    assert 0 < found.best_ms <= found.default_ms


def test_a_model_without_a_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="net has no result: run `fewtune run net` first"):
        set_aside.measured("net", Places(tmp_path), 4)
