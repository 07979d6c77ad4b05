"""Clusters, representatives and what is set aside, on small graphs worked out by hand."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from fewtune.artifacts import Selection
from fewtune.options import SelectOptions
from fewtune.selection.cluster import cliques
from fewtune.selection.heat_map import write_similarity
from fewtune.selection.select import select_tasks
from tests.made.banks import entry, made_bank, task_info
from tests.made.banks import tiles as space

NAMES = list("abcdefghij")


def symmetric(count: int, pairs: dict[tuple[int, int], float]) -> np.ndarray:
    matrix = np.eye(count)
    for (i, j), value in pairs.items():
        matrix[i, j] = matrix[j, i] = value
    return matrix


def task(name: str, share: float, operator: str = "conv2d", flops: float = 1e3) -> SimpleNamespace:
    info = task_info(name, workload=name, operator=operator, share=share, flops=flops)
    return SimpleNamespace(info=info, mod=name)


# Two cliques, a b c and c d, that share c; e is alone.
BRIDGE = symmetric(5, {(0, 1): 0.9, (0, 2): 0.8, (1, 2): 0.7, (2, 3): 0.95, (3, 4): 0.2})
TASKS = [
    task("wide", 0.35),
    task("near", 0.3),
    task("pool", 0.1, "pool"),
    task("far", 0.2),
    task("tiny", 0.001),
    task("rigid", 0.05),
]
SPACES = {
    "wide": space(64, 64),
    "near": space(64, 32),
    "far": space(13, 11),
    "tiny": space(64, 64),
    "rigid": space(),
}


def select(tasks=TASKS, spaces=SPACES, bank=None, **options: object):
    given = {"target": None, "model": "net", "strategy": "selective", "bank": bank}
    # A task's module is its name here.
    with mock.patch("fewtune.selection.select.design_space", lambda name, _: spaces[name]):
        return select_tasks(tasks, SelectOptions(**options), **given)


def test_a_task_in_two_cliques_goes_to_the_larger_sum():
    assert cliques(BRIDGE, 0.5, NAMES) == [[0, 1, 2], [3], [4]]
    # With c closer to d than to both others together, the pair has the larger sum.
    strong = symmetric(4, {(0, 1): 0.1, (0, 2): 0.2, (1, 2): 0.2, (2, 3): 0.95})
    assert cliques(strong, 0.1, NAMES) == [[2, 3], [0, 1]]


def test_tasks_with_nothing_in_common_are_never_joined():
    assert cliques(np.eye(3), 0.0, NAMES) == [[0], [1], [2]]
    assert cliques(np.eye(0), 0.5, NAMES) == []


def test_greedy_rounds_place_every_task_once():
    generator = np.random.default_rng(0)
    values = generator.uniform(size=(10, 10))
    matrix = np.maximum(values, values.T)
    np.fill_diagonal(matrix, 1.0)
    for threshold in (0.0, 0.3, 0.6, 0.9, 1.0):
        groups = cliques(matrix, threshold, NAMES)
        assert sorted(index for group in groups for index in group) == list(range(10))
        assert groups == cliques(matrix, threshold, NAMES)
        for group in groups:
            assert (matrix[np.ix_(group, group)] >= threshold).all()


def test_selection_and_what_is_set_aside():
    selection, matrix = select()
    assert [(it.representative, it.members) for it in selection.clusters] == [
        ("wide", ["wide", "near"]),
        ("far", ["far"]),
    ]
    assert selection.dependents == {"near": "wide"}
    assert selection.set_aside == ["pool", "tiny", "rigid"]
    assert matrix.names == ("wide", "near", "far")
    everything, _ = select(method="all", min_share=0)
    assert everything.representatives == ["wide", "near", "far", "tiny"]
    assert everything.dependents == {}


def test_a_small_cluster_is_not_worth_a_search_but_its_donors_serve():
    # A search for one task, which serves nobody else, has to be worth four times as much.
    assert select(min_cluster_share=0.05)[0].worth == ["wide", "far"]
    selection, _ = select(min_cluster_share=0.051)
    assert (selection.representatives, selection.worth) == (["wide", "far"], ["wide"])
    assert select(min_cluster_share=1.0)[0].worth == []
    everything, _ = select(method="all", min_cluster_share=1.0)
    assert everything.worth == ["wide", "near", "far"]


def test_what_memory_decides_is_not_searched():
    # Less than one operation for each of their four bytes, as in a matrix-vector product.
    vector = [task("vector", 0.6, "dense", flops=2.0), task("more", 0.2, "dense", flops=2.0)]
    spaces = {**SPACES, "vector": space(1, 4096), "more": space(1, 1024)}
    assert select([*vector, *TASKS], spaces)[0].worth == ["wide", "far"]
    assert select(vector, spaces)[0].worth == []
    assert select([*vector, *TASKS], spaces, method="all")[0].worth[0] == "vector"


def test_only_what_no_predictor_knows_is_searched():
    selection = select()[0].model_copy(update={"known": ["wide", "near"]})
    assert (selection.worth, selection.unknown) == (["wide", "far"], ["far"])


def test_what_the_bank_serves_is_not_clustered(tmp_path):
    bank = made_bank(
        entry("thin", space(64, 16)),
        entry("wider", space(64, 128)),
        entry("widest", space(64, 256)),
        entry("product", space(13, 11), operator="dense"),
    )
    selection, matrix = select(bank=bank, min_similarity=0.9)
    # 64 and 128 have 7 of 8 divisors in common: (1 * 7/8) ** 0.5 is 0.94; 64 and 256 7 of 9: 0.88;
    # 32 and 16 5 of 6: 0.91; 32 and 128 6 of 8: 0.87. The extents of far are another family's.
    assert {name: [it.workload for it in found] for name, found in selection.banked.items()} == {
        "wide": ["wider"],
        "near": ["thin"],
    }
    assert selection.banked["wide"][0].origin == "donor"
    assert selection.banked["near"][0].similarity == pytest.approx((5 / 6) ** 0.5)
    assert (selection.representatives, selection.dependents) == (["far"], {})
    assert selection.set_aside == ["pool", "tiny", "rigid"]
    assert matrix.names == ("far",)
    selection.write(tmp_path)
    assert Selection.read(tmp_path) == selection
    write_similarity(selection, matrix, tmp_path)
    everything, _ = select(bank=bank, method="all")
    assert everything.banked == {}
    assert everything.representatives == ["wide", "near", "far"]


def test_what_the_bank_holds_itself_comes_first():
    own = next(task.info.workload for task in TASKS if task.info.name == "wide")
    bank = made_bank(entry(own, space(64, 128)), entry("other", space(64, 128)))
    selection, _ = select(bank=bank)
    first, second = selection.banked["wide"]
    assert (first.workload, first.similarity, second.workload) == (own, 1.0, "other")


def test_an_empty_selection_has_files_too(tmp_path):
    selection, matrix = select(min_share=0.9)
    write_similarity(selection, matrix, tmp_path)
    assert (tmp_path / "similarity.csv").read_text() == "task\n"
    assert (tmp_path / "similarity.png").stat().st_size > 0
