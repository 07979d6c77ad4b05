"""The tiny model benchmarked for real, what is built before, and its start."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fewtune.artifacts import (
    BenchmarkReport,
    Comparison,
    CompileReport,
    ImportReport,
    Metrics,
    SelectionTiming,
    TunedTask,
    TuneReport,
)
from fewtune.benchmark import variants as variants_module
from fewtune.benchmark.benchmark import benchmark_model, start_figures
from fewtune.benchmark.compare import compare_strategies
from fewtune.benchmark.variants import Builds, Variants, has_room
from fewtune.machine.host import cores_off_the_pool
from fewtune.options import BenchmarkOptions, CompareOptions
from fewtune.report.tables import Result
from fewtune.task.extract import write_tasks
from tests import tuned_tiny
from tests.made.results import share_report

pytestmark = pytest.mark.slow

OPTIONS = BenchmarkOptions(rounds=3, wait_s=0)


def refined() -> TunedTask:
    """The representative, as the refinement has it: twice as fast as tuning left it."""
    (line,) = TuneReport.read(tuned_tiny.tuned()).tasks
    figures = {"trials": 4, "default_ms": None, "best_ms": line.known_ms / 2}
    return line.model_copy(update={**figures, "failures": {"build_timeout": 3}})


@pytest.fixture(autouse=True)
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same variants whether or not the optional peer is installed."""
    monkeypatch.setattr(variants_module, "openvino_version", lambda: None)


def folders(directory: Path) -> dict[str, Path]:
    """The folders of a result of the tiny model, whose sharing refined the representative."""
    target = tuned_tiny.fingerprint().target
    write_tasks(tuned_tiny.tasks(), tuned_tiny.NAME, target, directory)
    tuned_tiny.selection().write(directory)
    SelectionTiming(selecting_s=1.5).write(directory)
    share_report(tuned_tiny.NAME, representatives=[refined()]).write(directory)
    return {
        "import_model": tuned_tiny.imported(),
        "extract_tasks": directory,
        "predict": tuned_tiny.predicted(),
        "select_tasks": directory,
        "tune": tuned_tiny.tuned(),
        "share_schedules": directory,
        "compile": tuned_tiny.compiled(),
    }


def tiny_variants(options: BenchmarkOptions, **given: object) -> Variants:
    """The variants of the tiny model."""
    library = tuned_tiny.compiled() / CompileReport.read(tuned_tiny.compiled()).library
    own = tuned_tiny.fingerprint()
    return Variants(tuned_tiny.imported(), {"tuned": library}, own, options, **given)


@cache
def benchmarked() -> tuple[BenchmarkReport, Path]:
    directory = tuned_tiny.scratch() / "benchmark"
    directory.mkdir()
    steps = tuned_tiny.scratch() / "steps"
    steps.mkdir()
    report = benchmark_model(folders(steps), tuned_tiny.fingerprint(), OPTIONS, directory)
    return report, directory


def test_figures_follow_from_what_was_measured() -> None:
    report, directory = benchmarked()
    assert BenchmarkReport.read(directory) == report
    assert Metrics.read(directory).peak_pct == report.peak_pct
    assert "of the machine's measured peak" in (directory / "report.md").read_text()
    flops = sum(task.info.flops * task.info.weight for task in tuned_tiny.tasks())
    tuned_s = report.variants["tuned"].median_ms / 1e3
    assert report.model_gflops == pytest.approx(flops / tuned_s / 1e9)
    assert report.peak_gflops is not None
    # A model of such small kernels is far from what the machine can do.
    assert 0 < report.model_gflops < report.peak_gflops
    assert report.peak_pct == pytest.approx(100 * report.model_gflops / report.peak_gflops)
    known = [row for row in report.kernels if row.latency_ms is not None]
    # What only gives a tensor another shape is no kernel.
    assert {row.task for row in report.kernels if row not in known} == {
        row.task for row in report.kernels if "reshape" in row.task
    }
    assert sum(row.share for row in known) == pytest.approx(1)
    assert report.kernels_ms == pytest.approx(sum(row.latency_ms * row.weight for row in known))
    by_name = {task.info.name: task.info for task in tuned_tiny.tasks()}
    for row in known:
        moved_bytes = by_name[row.task].bytes
        assert row.gb_s == pytest.approx(moved_bytes / row.latency_ms / 1e6)
        assert (row.peak_pct is not None) == row.is_searched


def test_a_refined_representative_counts_as_the_refinement_left_it() -> None:
    report, _ = benchmarked()
    rows = {row.task: row for row in report.kernels}
    assert rows[refined().task].schedule == "tuned"
    assert report.failures["build_timeout"] == 3


def test_variants_have_copies_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = benchmarked()
    assert report.conditions.copies == OPTIONS.copies == 3
    parameters = ImportReport.read(tuned_tiny.imported()).parameters
    # Half of it holds two copies: of the library, of its session, and of onnxruntime.
    room = SimpleNamespace(available=2 * 4 * parameters * 3 * 2)
    monkeypatch.setattr(variants_module.psutil, "virtual_memory", lambda: room)
    variants = tiny_variants(OPTIONS)
    assert {name: len(runs) for name, runs in variants.runs.items()} == {
        "untuned": 1,
        "tuned": 2,
        "onnxruntime": 2,
    }
    assert variants.options.copies == 2
    assert {name: len(taken) for name, taken in variants.measured(3).items()} == {
        "untuned": 3,
        "tuned": 3,
        "onnxruntime": 3,
    }


def test_libraries_and_onnxruntime_run_where_the_system_likes_and_untuned_off_the_pool() -> None:
    infos = [task.info for task in tuned_tiny.tasks()]
    untuned = Builds.of(tuned_tiny.imported(), infos, tuned_tiny.fingerprint()).untuned
    variants = tiny_variants(OPTIONS, untuned=untuned)
    seen: dict[str, set[frozenset[int]]] = {name: set() for name in variants.runs}

    def noting(name: str, run: Callable[[], object]) -> object:
        seen[name].add(frozenset(os.sched_getaffinity(0)))
        return run()

    # The pool is there by now.
    untuned.run()
    before = os.sched_getaffinity(0)
    apart, anywhere = {frozenset(cores_off_the_pool())}, {frozenset(before)}
    untuned.run = partial(noting, "untuned", untuned.run)  # type: ignore[method-assign]
    for name in ("tuned", "onnxruntime"):
        variants.runs[name] = [partial(noting, name, run) for run in variants.runs[name]]
    variants.measured(3)
    assert os.sched_getaffinity(0) == before
    assert seen == {"untuned": apart, "tuned": anywhere, "onnxruntime": anywhere}


def test_a_comparison_has_ratios_to_onnxruntime(tmp_path: Path) -> None:
    report, directory = benchmarked()
    metrics = Metrics.read(directory)
    comparison = compare_strategies(
        tuned_tiny.imported(),
        dict.fromkeys(("selective", "full"), (tuned_tiny.compiled(), Result(report, metrics))),
        tuned_tiny.fingerprint(),
        CompareOptions(rounds=5, copies=2, processes=2, wait_s=0),
        tmp_path,
    )
    assert comparison.used_time_pct == 100.0
    assert comparison.speedup_over_onnxruntime > 0
    # Five rounds are three in each of two processes, of which one has untuned TVM beside them.
    conditions = comparison.conditions
    assert (conditions.rounds, conditions.copies, conditions.processes) == (6, 2, 2)
    assert Comparison.read(tmp_path) == comparison
    assert "6 rounds of 2 copies in 2 processes" in (tmp_path / "report.md").read_text()


def test_both_runtimes_give_a_first_output():
    onnx = tuned_tiny.imported() / "model.onnx"
    figures = start_figures(tuned_tiny.compiled() / "model.so", onnx, rounds=1)
    assert min(figures.values()) > 0


def test_a_model_that_does_not_start_is_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(RuntimeError, match="onnxruntime could not start"):
        start_figures(tuned_tiny.compiled() / "model.so", tmp_path / "model.onnx", rounds=1)


def test_the_benchmark_runs_what_was_built_before():
    infos = [task.info for task in tuned_tiny.tasks()]
    made = Builds.of(tuned_tiny.imported(), infos, tuned_tiny.fingerprint())
    assert made.meter is not None
    variants = tiny_variants(BenchmarkOptions(copies=1), untuned=made.untuned)
    assert [run.args[0] for run in variants.runs["untuned"]] == [made.untuned]  # type: ignore[attr-defined]
    made.untuned.run()
    assert variants.difference("tuned").allowances <= 1


def test_room_for_the_builds_is_left_to_the_process_that_compiles(monkeypatch):
    parameters = ImportReport.read(tuned_tiny.imported()).parameters
    for copies, fits in ((16, True), (15, False)):
        memory = SimpleNamespace(available=copies * 4 * parameters)
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        assert has_room(tuned_tiny.imported()) == fits
