"""The ablation's selections, worked out by hand, and what a variant takes from the full run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tvm import te, topi

from benchmarks.parts import ablation, ablation_variants, selections
from benchmarks.parts.ablation_table import write_results
from benchmarks.parts.selections import Candidates
from fewtune.artifacts import Selection, TaskInfo, TuneReport
from fewtune.errors import InputError
from fewtune.storage.database import best_trials, read_database
from fewtune.task.extract import task_module
from tests import tuned_tiny
from tests.made import results as made_results


def task(name: str, share: float, operator: str = "conv2d", mod: object = None) -> SimpleNamespace:
    info = TaskInfo(
        name=name, workload=name, weight=1, anchor=operator, operator=operator,
        shapes=[[1]], dtype="float32", flops=1.0, bytes=4, share=share,
    )  # fmt: skip
    return SimpleNamespace(info=info, mod=mod)


def candidates() -> Candidates:
    """Four convolutions, a b c alike and d like none; two products, e and f, alike."""
    matrix = np.eye(6)
    for i, j, value in [(0, 1, 0.9), (0, 2, 0.7), (1, 2, 0.8), (4, 5, 0.9)]:
        matrix[i, j] = matrix[j, i] = value
    shares = [0.3, 0.25, 0.15, 0.14, 0.1, 0.06]
    operators = ["conv2d"] * 4 + ["dense"] * 2
    tasks = [task(*each) for each in zip("abcdef", shares, operators, strict=True)]
    return Candidates(tasks, matrix, 0.6)


def products(*tails: str) -> list[SimpleNamespace]:
    """Matrix products of one shape with another tail each, and one of another shape."""
    found = []
    for place, tail in enumerate([*tails, ""]):
        extent = 16 if place < len(tails) else 32
        left = te.placeholder((8, extent), name="left")
        right = te.placeholder((extent, 8), name="right")
        product = topi.matmul(left, right)
        output = getattr(topi, tail)(product) if tail else product
        module = task_module(te.create_prim_func([left, right, output]))
        found.append(task(f"product{place}", 0.4 - 0.1 * place, "dense", module))
    return found


def test_the_cliques_are_those_of_the_default_way() -> None:
    assert selections.cliques(candidates()) == [(1, [0, 1, 2]), (4, [4, 5]), (3, [3])]


def test_as_many_average_linkage_clusters_as_cliques() -> None:
    clusters = selections.agglomerative(candidates())
    assert sorted(clusters) == [(1, [0, 1, 2]), (3, [3]), (4, [4, 5])]


@pytest.mark.parametrize("seed", range(8))
def test_random_representatives_serve_all_by_the_most_similar_one(seed: int) -> None:
    found = candidates()
    clusters = selections.random_representatives(found, seed)
    assert clusters == selections.random_representatives(found, seed)
    assert sorted(index for _, group in clusters for index in group) == list(range(6))
    leaders = [leader for leader, _ in clusters]
    assert len(leaders) >= 3
    # d is like none, e and f only like each other: one of each must be there.
    assert {3} <= set(leaders)
    assert {4, 5} & set(leaders)
    for leader, group in clusters:
        for index in set(group) - {leader}:
            assert found.matrix[index, leader] == max(found.matrix[index, i] for i in leaders) > 0


def test_another_seed_draws_others() -> None:
    drawn = {str(selections.random_representatives(candidates(), seed)) for seed in range(8)}
    assert len(drawn) > 1


def test_one_a_family_is_the_largest_and_keeps_strangers() -> None:
    assert selections.one_a_family(candidates()) == [(0, [0, 1, 2, 3]), (4, [4, 5])]


def test_equal_anchors_are_those_that_differ_only_in_the_tail() -> None:
    tasks = products("tanh", "exp")
    clusters = selections.equal_anchors(Candidates(tasks, np.ones((3, 3)), 0.6))
    assert clusters == [(0, [0, 1]), (2, [2])]


def test_a_selection_has_every_task_once_and_the_largest_cluster_first() -> None:
    found = candidates()
    base = Selection(
        model="net", strategy="x", method="cliques", clusters=[], set_aside=["pool"],
        set_aside_rule="by hand",
    )  # fmt: skip
    made = selections.as_selection(base, found, [(4, [4, 5]), (1, [2, 0, 1])], "v", "by_hand")
    assert made.representatives == ["b", "e"]
    assert made.dependents == {"a": "b", "c": "b", "f": "e"}
    assert (made.strategy, made.method, made.set_aside) == ("v", "by_hand", ["pool"])
    assert made.clusters[0].similarity_sum == pytest.approx(1.7)


def test_the_variants_are_distinct_and_default_options_come_first() -> None:
    names = [variant.name for variant in ablation_variants.VARIANTS]
    assert len(set(names)) == len(names)
    assert (ablation_variants.VARIANTS[0].share, ablation_variants.VARIANTS[0].choose) == (
        {},
        selections.cliques,
    )


def test_a_variant_of_an_option_that_is_not_there_is_left_out() -> None:
    assert ablation_variants.Variant("a", share={"draws": 0}).possible
    assert not ablation_variants.Variant("b", share={"magic": 0}).possible
    assert not ablation_variants.Variant("c", arguments={"magic": None}).possible


@pytest.mark.slow
def test_a_variant_takes_its_representatives_records_and_seconds(tmp_path: Path) -> None:
    selection, tuned = tuned_tiny.selection(), tuned_tiny.tuned()
    report = ablation_variants.write_tuned(
        tuned, tuned_tiny.tasks(), selection, tuned_tiny.fingerprint(), tmp_path / "tune"
    )
    full = TuneReport.read(tuned)
    assert report == TuneReport.read(tmp_path / "tune")
    assert report.tasks == full.tasks
    assert report.tuning_s == round(sum(line.tuning_s for line in full.tasks), 3)
    module = tuned_tiny.convolutions()["b"].mod
    ours, theirs = (read_database(path) for path in (tmp_path / "tune", tuned))
    count = 1000
    assert [float(r.run_secs[0]) for r in best_trials(ours, module, count)] == [
        float(r.run_secs[0]) for r in best_trials(theirs, module, count)
    ]
    assert not ours.has_workload(tuned_tiny.convolutions()["d"].mod)


@pytest.mark.slow
def test_a_representative_that_full_tuning_left_out_is_refused(tmp_path: Path) -> None:
    other = tuned_tiny.convolutions()["d"].info.name
    cluster = (
        tuned_tiny.selection()
        .clusters[0]
        .model_copy(update={"representative": other, "members": [other]})
    )
    selection = tuned_tiny.selection().model_copy(update={"clusters": [cluster]})
    with pytest.raises(InputError, match=f"did not tune {other}"):
        ablation_variants.write_tuned(
            tuned_tiny.tuned(), tuned_tiny.tasks(), selection, tuned_tiny.fingerprint(),
            tmp_path / "tune",
        )  # fmt: skip


def test_results_hold_each_variant_against_full_of_its_own_group(tmp_path: Path) -> None:
    row = {
        "method": "cliques", "representatives": 2, "dependents": 3, "selecting_s": 1.0,
        "representative_tuning_s": 10.0, "sharing_s": 4.0, "used_time_pct": 15.0, "trials": 20,
        "max_relative_error": 1e-6,
    }  # fmt: skip
    rows = {name: {"variant": name, **row} for name in ("one", "two")}
    groups = [
        {"full": [1.0, 1.0, 1.0], "one": [2.0, 2.0, 2.0], "onnxruntime": [1.0] * 3},
        {"full": [2.0, 2.0, 2.0], "two": [2.0, 2.0, 2.0], "onnxruntime": [1.0] * 3},
    ]
    write_results("net", rows, groups, made_results.metrics(), made_results.conditions(), tmp_path)
    told = json.loads((tmp_path / "net.json").read_text())
    achieved = {each["variant"]: each["achieved_perf_pct"] for each in told["variants"]}
    assert achieved == {"one": 50.0, "two": 100.0}
    assert told["full_latency_ms"] == 1500.0
    text = (tmp_path / "net.md").read_text()
    assert "| one | 2 | 3 |" in text
    assert "Test CPU" in text
    assert "64 trials a task" in text


def test_libraries_are_measured_so_many_at_a_time() -> None:
    assert list(ablation.batches(iter("abcde"), 2)) == [["a", "b"], ["c", "d"], ["e"]]
