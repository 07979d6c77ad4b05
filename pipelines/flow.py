"""The flow: the run of `pipelines.runs.run_plan`, its steps as tasks of Prefect.

It is used for schedules, workers, and runs with a server in `PREFECT_API_URL`. Without a server, a
command does the same without Prefect: a server of its own takes ten seconds to start, and disturbs
measurements.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipelines.checkout import environment  # noqa: F401  (before Prefect, which reads it when imported)

# isort: split
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed, State

from fewtune.errors import FewtuneError, InputError
from fewtune.report import tables
from pipelines.checkout.project import find_root
from pipelines.checkout.results import listed
from pipelines.dvc_repo.dag import Result, Stage
from pipelines.dvc_repo.read_dag import DvcBusyError
from pipelines.runs.outcome import Outcome
from pipelines.runs.publish import StageProgress, publish_fleet, publish_result, publish_results
from pipelines.runs.run_plan import BUSY_DELAY_S, BUSY_RETRIES, log_path, log_paths, run_all
from pipelines.runs.stage_process import Ending, run_stage
from stages.params import LISTS
from stages.paths import Places

# Most models in a run's name; the others are counted.
_MOST_NAMED = 4


class StageFailedError(Exception):
    """A stage ended with the error in `ending`. Prefect needs an exception for it."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.error)
        self.ending = ending


class RunFailedError(Exception):
    """A run in which something failed; `outcome` says what."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message())
        self.outcome = outcome


def was_busy(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Retry only a stage that never began: other retries would hide faults in measuring."""
    return isinstance(state.result(raise_on_failure=False), DvcBusyError)


def _run_name() -> str:
    """Models and strategies of a run; those of params.yaml if none are given."""
    given = flow_run.parameters
    try:
        known = listed(find_root())
    except FewtuneError:
        # The run itself reports the error.
        known = ["all"], ["all"]
    models, strategies = (given.get(key) or names for key, names in zip(LISTS, known, strict=True))
    return f"{_joined(models)} {_joined(strategies)}"


def _joined(names: Sequence[str]) -> str:
    shown = "+".join(names[:_MOST_NAMED])
    return f"{shown}+{len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else shown


@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=BUSY_RETRIES,
    retry_delay_seconds=BUSY_DELAY_S,
    retry_condition_fn=was_busy,
)
def bring_up_to_date(
    root: Path, stage: str, result: Result | None, force: bool = False
) -> State[Any]:
    """Run one stage through DVC, which skips it if nothing changed, unless it is forced."""
    logger = get_run_logger()
    live = sys.stdout.isatty()
    progress = _progress(root, stage, result) if result else None

    def say(line: str) -> None:
        logger.info("%s", line, extra={"on_screen": live})

    ending = run_stage(
        root,
        stage,
        log_path(root, stage),
        say,
        progress.poll if progress else lambda: None,
        live,
        force,
    )
    if ending.busy:
        raise DvcBusyError(f"{stage} waits: another DVC process is at work here")
    if ending.exit_code:
        return Failed(message=ending.error, data=StageFailedError(ending))
    return Completed(name="Cached" if ending.unchanged else "Completed")


def _progress(root: Path, stage: str, result: Result) -> StageProgress:
    """Follows a stage by its progress file."""
    name = stage.split("@")[0]
    return StageProgress(Places(root).progress(result.model, result.strategy, name), stage)


@task(cache_policy=NO_CACHE, persist_result=False)
def keep() -> State[None]:
    """Represents a stage that is up to date."""
    return Completed(name="Cached")


@task(cache_policy=NO_CACHE, persist_result=False)
def pass_over(reason: str) -> State[None]:
    """Represents a stage that cannot run."""
    return Cancelled(name="Skipped", message=reason)


@task(cache_policy=NO_CACHE, persist_result=False)
def record(root: Path, result: Result, stages: Sequence[str]) -> State[Any]:
    """Record a result or a model's comparison in MLflow, unless it is there."""
    from pipelines.records.record import record_finished

    logger = get_run_logger()
    try:
        line = record_finished(root, result, stages, log_paths(root, stages), logger.warning)
    except FewtuneError as error:
        return Failed(message=str(error), data=error)
    logger.info("%s", line)
    return Completed(message=line)


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="watch")
def watch_results(root: Path, models: list[str] | None) -> State[Any]:
    """Compare the latest recorded results with those before; show the fleet over time."""
    from pipelines.records.fleet import fleet_markdown, fleet_picture
    from pipelines.records.watch import raise_if_slower, watch

    try:
        every = watch(root, fleet=True)
        publish_fleet(fleet_markdown(every), fleet_picture(every))
        raise_if_slower(watch(root, models))
    except FewtuneError as error:
        return Failed(message=str(error), data=error)
    return Completed(message="nothing became slower")


class FlowSteps:
    """Steps as tasks of the present flow run."""

    def __init__(self) -> None:
        self._states: dict[str, State[Any]] = {}
        self._logger = get_run_logger()

    def say(self, line: str) -> None:
        self._logger.info("%s", line)

    def warn(self, line: str) -> None:
        self._logger.warning("%s", line)

    def stage(self, root: Path, stage: Stage, force: bool) -> Ending:
        self._states[stage.name] = state = bring_up_to_date.with_options(**_named(stage))(
            root,
            stage.name,
            stage.result,
            force,
            wait_for=[self._states[need] for need in stage.needs if need in self._states],
            return_state=True,
        )
        if state.is_completed():
            return Ending(0)
        found = state.result(raise_on_failure=False)
        if isinstance(found, StageFailedError):
            return found.ending
        code = found.exit_code if isinstance(found, FewtuneError) else 1
        message = str(found) if isinstance(found, FewtuneError) else state.message or state.name
        return Ending(code, str(message))

    def keep(self, stage: Stage) -> None:
        self._states[stage.name] = keep.with_options(**_named(stage))(return_state=True)

    def skip(self, stage: Stage, reason: str) -> None:
        pass_over.with_options(**_named(stage))(reason, return_state=True)

    def record(self, root: Path, result: Result, stages: Sequence[str]) -> FewtuneError | None:
        state = record.with_options(name="record", task_run_name=f"record {result}")(
            root, result, stages, return_state=True
        )
        if state.is_completed():
            return None
        found = state.result(raise_on_failure=False)
        return found if isinstance(found, FewtuneError) else InputError(str(state.message))

    def show(self, results: Sequence[tables.Result], every: bool) -> None:
        if every:
            publish_results(results)
        else:
            for result in results:
                publish_result(result)


def _named(stage: Stage) -> dict[str, Any]:
    return {"name": stage.name.split("@")[0], "task_run_name": stage.name}


@flow(
    name="selective-tuning",
    flow_run_name=_run_name,
    persist_result=False,
    validate_parameters=True,
)
def selective_tuning(
    models: list[str] | None = None,
    strategies: list[str] | None = None,
    recording: bool = True,
    force: bool = False,
    watch: bool = False,
) -> State[Any]:
    """Bring results up to date.

    Parameters
    ----------
    models, strategies : list of str, optional
        Of those that params.yaml lists; all of them unless given.
    recording : bool
        Whether results are recorded in MLflow.
    force : bool
        Whether every stage of these models, and of what they share, runs again, even if nothing
        changed.
    watch : bool
        Whether recorded results are compared with those before them; one that became slower by
        more than the noise ends the flow as failed.
    """
    _hide_what_is_on_screen()
    outcome = run_all(models, strategies, FlowSteps(), recording, force)
    if watch:
        state = watch_results(find_root(), models, return_state=True)
        if not state.is_completed():
            error = state.result(raise_on_failure=False)
            code = error.exit_code if isinstance(error, FewtuneError) else 1
            outcome.refuse(str(state.message), code)
    if outcome.failed:
        return Failed(message=outcome.message(), data=RunFailedError(outcome))
    return Completed(message=outcome.message(), data=outcome)


def outcome_of(state: State[Any]) -> Outcome:
    """A run's outcome, from the state that it ended in."""
    result = state.result(raise_on_failure=False)
    if isinstance(result, RunFailedError):
        return result.outcome
    if isinstance(result, Outcome):
        return result
    crashed = Outcome()
    crashed.refuse(f"the flow ended as {state.name}: {state.message}", 1)
    return crashed


def _hide_what_is_on_screen() -> None:
    """Keep lines off the console that a stage wrote to the terminal itself."""
    unseen: Callable[[logging.LogRecord], bool] = _unseen
    for handler in logging.getLogger().handlers:
        if unseen not in handler.filters:
            handler.addFilter(unseen)


def _unseen(line: logging.LogRecord) -> bool:
    return not getattr(line, "on_screen", False)
