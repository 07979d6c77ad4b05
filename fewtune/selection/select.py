"""Task selection: a few tasks to tune, and for every other one the task it takes schedules from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fewtune.artifacts import Cluster, PredictReport, Selection
from fewtune.options import PREDICT, SelectOptions
from fewtune.prediction.worth import UNKNOWN
from fewtune.selection.cluster import cliques, similarity_sum
from fewtune.similarity.similarity import SimilarityMatrix, design_space, similarity_matrix
from fewtune.task.extract import is_worth_searching, searched_twins

if TYPE_CHECKING:
    from fewtune.bank.bank import Bank
    from fewtune.runtime.tvm import tvm
    from fewtune.task.extract import Task

# Donors named for a task that the bank serves: if one's schedules do not fit, another's may.
_MOST_DONORS = 3
# A search for a single task pays only if it is a large part of the model.
_LONE_TIMES = 4


def select_tasks(  # noqa: PLR0913 (what a stage reads)
    tasks: Sequence[Task],
    options: SelectOptions,
    *,
    target: tvm.target.Target,
    model: str,
    strategy: str,
    bank: Bank | None = None,
    predicted: PredictReport | None = None,
) -> tuple[Selection, SimilarityMatrix]:
    """Cluster the tasks by the similarity of their tuning spaces.

    Tasks that have no tuning space, or one that samples nothing, are set aside.

    Parameters
    ----------
    tasks : sequence of Task
        All tasks of the model.
    options : SelectOptions
    target : tvm.target.Target
        What the tuning spaces are generated for.
    model, strategy : str
        Named in the selection.
    bank : Bank, optional
        Schedules of models tuned before. A task as similar to a workload of it as two tasks of a
        cluster are to one another takes its schedules from there and is not clustered. Method
        ``all`` tunes every task, whatever the bank holds.
    predicted : PredictReport, optional
        Which tasks are known before anything is measured.

    Returns
    -------
    selection : Selection
        Clusters in the order of their members' total share, largest first; members by share.
    matrix : SimilarityMatrix
        Similarities of the clustered tasks.
    """
    bank = None if options.method in ("all", PREDICT) else bank
    able = [task for task in tasks if is_worth_searching(task.info, options.min_share)]
    given = [task.info for task in tasks]
    twins = {} if options.method == "all" else searched_twins(given, options.min_share)
    worth = [task for task in able if task.info.name not in twins]
    worth.sort(key=lambda task: (-task.info.share, task.info.name))
    # To predict, no space has to be generated: nothing is compared.
    compared = [] if options.method == PREDICT else worth
    spaces = {}
    for task in compared:
        # That of one the bank holds itself need not be generated.
        own = bank.entry(task.info.workload) if bank is not None else None
        spaces[task.info.name] = design_space(task.mod, target) if own is None else own.space
    searched = [task for task in compared if spaces[task.info.name].has_samplings]
    banked = {}
    if bank is not None:
        least, infos = options.min_similarity, [task.info for task in searched]
        near = {i.name: bank.nearest(i, spaces[i.name], least, _MOST_DONORS) for i in infos}
        banked = {name: donors for name, donors in near.items() if donors}
    chosen = [task for task in searched if task.info.name not in banked]
    names = [task.info.name for task in chosen]
    matrix = SimilarityMatrix(
        tuple(names), similarity_matrix(chosen, [spaces[name] for name in names])
    )
    clusters = _clusters(chosen, matrix, options)
    lines = predicted.tasks if predicted is not None else []
    used = {*names, *banked, *(line.task for line in lines if options.method == PREDICT)}
    twins = {name: twin for name, twin in twins.items() if twin in used}
    selection = Selection(
        model=model,
        strategy=strategy,
        method=options.method,
        clusters=clusters,
        worth=[each.representative for each in clusters if _is_worth_it(each, chosen, options)],
        known=[line.task for line in lines if line.spread < UNKNOWN],
        set_aside=[t.info.name for t in tasks if t.info.name not in {*used, *twins}],
        banked=banked,
        twins=twins,
    )
    return selection, matrix


def _clusters(
    tasks: Sequence[Task], matrix: SimilarityMatrix, options: SelectOptions
) -> list[Cluster]:
    """The clusters, that with the largest share of the model's time first."""
    names, values, shares = matrix.names, matrix.values, [task.info.share for task in tasks]
    groups = [[index] for index in range(len(names))]
    if options.method != "all":
        groups = cliques(values, options.min_similarity, names)
    found = []
    for group in groups:
        # Most similar to the rest of its group; ties go to the larger share, then by name.
        leader = min(group, key=lambda i: (-similarity_sum(i, group, values), -shares[i], names[i]))
        members = [names[index] for index in group]
        found.append((-sum(shares[index] for index in group), names[leader], members))
    return [Cluster(representative=name, members=members) for _, name, members in sorted(found)]


def _is_worth_it(cluster: Cluster, tasks: Sequence[Task], options: SelectOptions) -> bool:
    """Whether a representative is worth a search.

    Those of clusters below a share are not, and those whose time memory decides.
    """
    members = [task.info for task in tasks if task.info.name in cluster.members]
    least = options.min_cluster_share * (_LONE_TIMES if len(members) == 1 else 1)
    is_streamed = all(info.is_streamed for info in members)
    is_large = sum(info.share for info in members) >= least
    return options.method == "all" or (is_large and not is_streamed)
