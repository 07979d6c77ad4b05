"""The flow: stages in the order that DVC's graph gives, results shown and recorded as they come.

A stage that fails keeps the stages that need it from running; other models and strategies go on,
and the run's end says what failed and why.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipelines import environment  # noqa: F401  (before Prefect, which reads it when imported)

# isort: split
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed, State

from fewtune.errors import FewtuneError, InputError, MachineError
from pipelines.dag import Dag, DvcBusyError, Plan, Result, Stage, outdated, read_dag
from pipelines.outcome import Outcome
from pipelines.project import find_root
from pipelines.publish import StageProgress, publish_result, publish_results
from pipelines.results import read_result, read_results
from pipelines.run_lock import turn
from pipelines.stage_process import Ending, run_stage
from stages.paths import Places

# Another DVC process may hold what a stage writes for as long as it tunes: wait six hours.
BUSY_RETRIES, BUSY_DELAY_S = 720, 30
# A tracking server may be away for a moment.
RECORD_RETRIES, RECORD_DELAY_S = 2, 10


class StageFailedError(Exception):
    """A stage ended with an error, which `ending` tells. Prefect wants an exception for it."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.error)
        self.ending = ending


class RunFailedError(Exception):
    """A run in which something failed, which `outcome` tells."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message())
        self.outcome = outcome


def _was_busy(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Only a stage that never began is tried again: a retry would hide a fault in measuring."""
    return isinstance(state.result(raise_on_failure=False), DvcBusyError)


def _was_away(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Recording is tried again where the store was at fault, not the results."""
    return isinstance(state.result(raise_on_failure=False), MachineError)


def _run_name() -> str:
    given = flow_run.parameters
    models, strategies = given.get("models") or ["all"], given.get("strategies") or ["all"]
    return f"{'+'.join(models)} {'+'.join(strategies)}"


@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=BUSY_RETRIES,
    retry_delay_seconds=BUSY_DELAY_S,
    retry_condition_fn=_was_busy,
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
    """What follows a stage, by the file in which it leaves where it stands."""
    name = stage.split("@")[0]
    return StageProgress(Places(root).progress(result.model, result.strategy, name), stage)


@task(cache_policy=NO_CACHE, persist_result=False)
def pass_over(reason: str) -> State[None]:
    """Stand for a stage that cannot run."""
    return Cancelled(name="Skipped", message=reason)


@task(
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=RECORD_RETRIES,
    retry_delay_seconds=RECORD_DELAY_S,
    retry_condition_fn=_was_away,
)
def record(root: Path, result: Result, stages: Sequence[str]) -> State[Any]:
    """Record a result in MLflow, or what joins a model's results, unless it is there."""
    from pipelines.record import record_comparison, record_result

    logs = [log_path(root, stage) for stage in stages]
    try:
        if result.strategy:
            line = record_result(root, result, stages, logs)
        else:
            line = record_comparison(root, result.model, get_run_logger().warning)
    except InputError as error:
        return Failed(message=str(error), data=error)
    get_run_logger().info("%s", line)
    return Completed(message=line)


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
    """
    _hide_what_is_on_screen()
    logger = get_run_logger()
    outcome = Outcome()
    try:
        root = find_root()
        purpose = f"run {' '.join(models or ['all models'])}"
        with turn(root, purpose, logger.warning):
            dag = read_dag(root)
            plan = dag.plan(_wanted(dag, models, strategies))
            for name, missing in plan.left_out.items():
                logger.info("%s is left out: %s has not run", name, missing[-1])
            _run_plan(root, dag, plan, outcome, recording, force)
            publish_results(read_results(root, logger.warning))
    except FewtuneError as error:
        outcome.refuse(str(error), error.exit_code)
    if outcome.failed:
        return Failed(message=outcome.message(), data=RunFailedError(outcome))
    return Completed(message=outcome.message(), data=outcome)


def outcome_of(state: State[Any]) -> Outcome:
    """What a run came to, from the state that it ended in."""
    result = state.result(raise_on_failure=False)
    if isinstance(result, RunFailedError):
        return result.outcome
    if isinstance(result, Outcome):
        return result
    crashed = Outcome()
    crashed.refuse(f"the flow ended as {state.name}: {state.message}", 1)
    return crashed


def _wanted(dag: Dag, models: list[str] | None, strategies: list[str] | None) -> list[Result]:
    listed = dag.results
    models = models or list(dict.fromkeys(result.model for result in listed))
    strategies = strategies or list(dict.fromkeys(result.strategy for result in listed))
    return [Result(model, strategy) for model in models for strategy in strategies]


def _run_plan(
    root: Path, dag: Dag, plan: Plan, outcome: Outcome, recording: bool, force: bool
) -> None:
    states: dict[str, State[Any]] = {}
    ends = plan.ends()
    for stage in plan.stages:
        named: dict[str, Any] = {"name": stage.name.split("@")[0], "task_run_name": stage.name}
        blocked = outcome.blocked_by(stage)
        stale = [] if blocked else _outdated(root, plan.presumed.get(stage.name, ()))
        if blocked or stale:
            reason = f"{blocked} failed" if blocked else f"{stale[0]} is not up to date"
            pass_over.with_options(**named)(reason, return_state=True)
            if blocked:
                outcome.skipped[stage.name] = blocked
            continue
        states[stage.name] = state = bring_up_to_date.with_options(**named)(
            root,
            stage.name,
            stage.result,
            force,
            wait_for=[states[need] for need in stage.needs if need in states],
            return_state=True,
        )
        if not state.is_completed():
            outcome.fail(stage, *_why(state))
        elif stage.name in ends:
            _finish(root, dag, ends[stage.name], stage, outcome, recording)


def _outdated(root: Path, names: Sequence[str]) -> list[str]:
    """Which stages DVC would run again, once no other DVC process is at work."""
    for tried in range(BUSY_RETRIES):
        try:
            return outdated(root, names)
        except DvcBusyError as busy:
            if not tried:
                get_run_logger().warning("waiting: %s", busy)
            time.sleep(BUSY_DELAY_S)
    return outdated(root, names)


def _why(state: State[Any]) -> tuple[str, int]:
    """A failed stage's line and exit code."""
    result = state.result(raise_on_failure=False)
    if isinstance(result, StageFailedError):
        return result.ending.error, result.ending.exit_code
    if isinstance(result, FewtuneError):
        return str(result), result.exit_code
    return str(state.message or state.name), 1


def _finish(
    root: Path, dag: Dag, result: Result, stage: Stage, outcome: Outcome, recording: bool
) -> None:
    """Record and show a result whose last stage has run, or was up to date."""
    try:
        found = read_result(root, result.model, result.strategy) if result.strategy else None
    except InputError as error:
        # Of another version, and not to be made anew by a run that is not told to.
        outcome.fail(stage, f"{error}, with --force", error.exit_code)
        return
    outcome.finished.append(result)
    if recording:
        stages = dag.ordered(dag.upstream([stage.name]))
        name = f"record {result}"
        state = record.with_options(name="record", task_run_name=name)(
            root, result, stages, return_state=True
        )
        if not state.is_completed():
            outcome.fail(Stage(name, result, (), ()), *_why(state))
    if found is not None:
        publish_result(found)


def log_path(root: Path, stage: str) -> Path:
    """The file that keeps all output of a stage's last run."""
    return Places(root).scratch / "logs" / f"{stage.replace('/', '-')}.log"


def _hide_what_is_on_screen() -> None:
    """Keep lines off the console that a stage has written to the terminal itself."""
    unseen: Callable[[logging.LogRecord], bool] = _unseen
    for handler in logging.getLogger().handlers:
        if unseen not in handler.filters:
            handler.addFilter(unseen)


def _unseen(line: logging.LogRecord) -> bool:
    return not getattr(line, "on_screen", False)
