"""The ablation of mechanisms: each can be turned off, also in child processes, and has its line."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.parts import without
from benchmarks.parts.mechanisms import table
from fewtune.model.lower import LOWERINGS
from fewtune.steps.sections import sections


@pytest.mark.parametrize("off", without.OFF, ids=lambda off: off.name)
def test_what_is_turned_off_is_there(off: without.Off) -> None:
    sections(off.options, "selective", 1, None, 0)
    assert off.first in without.STEPS
    assert set(off.steps) <= set(LOWERINGS)
    for place in off.replaced:
        module, _, name = place.partition(":")
        owner = importlib.import_module(module)
        for each in name.split("."):
            owner = getattr(owner, each)


def test_a_child_process_has_the_mechanism_off() -> None:
    statement = "from fewtune.timing import calibration as c; assert c._MOST_REPEATS == 0"
    command = [sys.executable, Path(without.__file__), "calibration"]
    timed = ["-m", "timeit", "-n", "1", "-r", "1", statement]
    done = subprocess.run([*command, *timed], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    on = subprocess.run([sys.executable, *timed], capture_output=True, text=True)
    assert "AssertionError" in on.stderr


def test_a_line_holds_the_means_over_models_and_seeds() -> None:
    row = {"off": "finals", "seed": 0, "latency_ms": 3.0, "tuning_s": 20.0}
    row |= {"latency_ratio_p10": 1.0, "latency_ratio_p90": 1.2, "time_ratio": 0.5}
    rows = [
        {**row, "model": "zoo:a", "latency_ratio": 1.21},
        {**row, "model": "zoo:b", "latency_ratio": 1.0},
    ]
    (line,) = table(rows).rows
    assert line[:3] == ["finals", "1.100", "0.500"]
    assert line[3] == "1.210 [1.000 - 1.200], 3.00, 20.0"
