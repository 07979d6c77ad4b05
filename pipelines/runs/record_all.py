"""Records results that `dvc repro` or `dvc exp run` made (``fewtune record``)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from fewtune.errors import InputError
from pipelines.checkout.results import read_results
from pipelines.dvc_repo.dag import Dag, Result
from pipelines.dvc_repo.read_dag import read_dag
from pipelines.records.record import record_finished
from pipelines.runs.run_plan import log_paths
from stages.params import COMPARED


def record_all(root: Path, models: Collection[str] | None, say: Callable[[str], None]) -> int:
    """Record every result on disk that is not in MLflow; comparisons come after their results.

    Parameters
    ----------
    root : Path
        The checkout.
    models : collection of str, optional
        Only those.
    say : callable
        Gets a line about each that cannot be recorded.

    Returns
    -------
    code : int
        0, or the exit code of the first failure.

    Raises
    ------
    InputError
        If no result is on disk.
    MachineError
        If MLflow cannot be reached.
    """
    dag, code = read_dag(root), 0
    found = read_results(root, say, models)
    if not found:
        raise InputError("no result is on disk: make one with `fewtune run` or `dvc repro`")
    for model in dict.fromkeys(result.model for result in found):
        own = [result for result in found if result.model == model]
        joined = any(result.comparison and result.strategy == COMPARED[0] for result in own)
        wanted = [Result(model, result.strategy) for result in own] + [Result(model)] * joined
        for result in wanted:
            stages = _stages(dag, result)
            try:
                print(record_finished(root, result, stages, log_paths(root, stages), say))
            except InputError as error:
                say(f"fewtune: {result} is not recorded: {error}")
                code = code or error.exit_code
    return code


def _stages(dag: Dag, result: Result) -> list[str]:
    own = [name for name, stage in dag.stages.items() if stage.result == result]
    return dag.ordered(dag.upstream(own))
