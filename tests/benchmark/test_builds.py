"""What a benchmark builds before there is a tuned library."""

from types import SimpleNamespace

import psutil
import pytest

from fewtune.artifacts import ImportReport
from fewtune.benchmark import variants as variants_module
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.benchmark.variants import Builds, has_room
from tests import tuned_tiny
from tests.benchmark.test_benchmark import tiny_variants


@pytest.mark.slow
def test_the_benchmark_runs_what_was_built_before(monkeypatch):
    monkeypatch.setattr(variants_module, "openvino_version", lambda: None)
    infos = [task.info for task in tuned_tiny.tasks()]
    made = Builds.of(tuned_tiny.imported(), infos, tuned_tiny.fingerprint())
    assert made.meter is not None
    variants = tiny_variants(BenchmarkOptions(copies=1), untuned=made.untuned)
    assert [run.__self__ for run in variants.runs["untuned"]] == [made.untuned]  # type: ignore[attr-defined]
    made.untuned.run()
    assert variants.difference("tuned").allowances <= 1


def test_room_for_the_builds_is_left_to_the_process_that_compiles(monkeypatch):
    parameters = ImportReport.read(tuned_tiny.imported()).parameters
    for copies, fits in ((16, True), (15, False)):
        memory = SimpleNamespace(available=copies * 4 * parameters)
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        assert has_room(tuned_tiny.imported()) == fits
