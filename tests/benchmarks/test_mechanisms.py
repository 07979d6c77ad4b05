"""The table of mechanisms: each can be switched off, also in child processes, and has its line."""

from pathlib import Path

import pytest

from benchmarks import mechanisms
from fewtune.api import sections
from fewtune.model.lower import STEPS

SOURCES = "\n".join(
    path.read_text() for path in (Path(__file__).parents[2] / "fewtune").rglob("*.py")
)


@pytest.mark.parametrize("off", mechanisms.OFF, ids=lambda off: off.name)
def test_what_is_switched_off_is_there(off):
    sections(off.options, "selective", 1, None, 0)
    assert off.first in mechanisms.STEPS
    for name in off.switches:
        assert name in STEPS or f'is_on("{name}")' in SOURCES
