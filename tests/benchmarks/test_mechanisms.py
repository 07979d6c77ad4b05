"""The table of mechanisms: each can be switched off, also in child processes, and has its line."""

from pathlib import Path

import pytest

from benchmarks import mechanisms
from fewtune.model.lower_checked import STEPS
from fewtune.steps.sections import sections

SOURCES = "\n".join(
    path.read_text() for path in (Path(__file__).parents[2] / "fewtune").rglob("*.py")
)


@pytest.mark.parametrize("off", mechanisms.OFF, ids=lambda off: off.name)
def test_what_is_switched_off_is_there(off):
    sections(off.options, "selective", 1, None, 0)
    assert off.first in mechanisms.STEPS
    for name in off.switches:
        assert name in STEPS or f'is_on("{name}")' in SOURCES


def test_a_line_holds_the_means_over_models_and_seeds():
    row = {"off": "finals", "seed": 0, "latency_ms": 3.0, "tuning_s": 20.0}
    row |= {"latency_ratio_p10": 1.0, "latency_ratio_p90": 1.2, "time_ratio": 0.5}
    rows = [
        {**row, "model": "a", "latency_ratio": 1.21},
        {**row, "model": "b", "latency_ratio": 1.0},
    ]
    (line,) = mechanisms.table(rows).rows
    assert line[:3] == ["finals", "1.100", "0.500"]
    assert line[3] == "1.210 [1.000 - 1.200], 20.0 s"
