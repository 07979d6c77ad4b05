"""The flow: the run of `pipelines.runs.run_plan`, its steps as tasks of Prefect.

It is used for schedules, workers, and runs with a server in `PREFECT_API_URL`. Without a server, a
command does the same without Prefect: a server of its own takes ten seconds to start, and disturbs
measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipelines.checkout import environment  # noqa: F401  (before Prefect, which reads it when imported)

# isort: split
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed, State

from fewtune.errors import FAULT, FewtuneError, one_line
from fewtune.report import kernel_tables, tables
from pipelines.checkout.project import find_root
from pipelines.checkout.results import listed
from pipelines.dvc_repo.dag import Stage
from pipelines.runs.outcome import Outcome
from pipelines.runs.publish import StageProgress, publish
from pipelines.runs.run_plan import Steps, run_all
from pipelines.runs.stage_process import Ending
from stages.params import LISTS
from stages.paths import Places

# Most models in a run's name; the others are counted.
_MOST_NAMED = 4


class RunFailedError(Exception):
    """A run in which something failed; `outcome` says what. Prefect needs an exception for it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message())
        self.outcome = outcome


class FlowSteps(Steps):
    """Steps as tasks of the present flow run."""

    def __init__(self) -> None:
        # Lines go to Prefect's log, which shows them in a terminal, too.
        self.live = False
        self._states: dict[str, State[Any]] = {}

    def say(self, line: str) -> None:
        """Show a line of progress in the log of the present task or flow."""
        get_run_logger().info("%s", line)

    def warn(self, line: str) -> None:
        """Show a warning there."""
        get_run_logger().warning("%s", one_line(line))

    def do(self, name: str, needs: Sequence[str], work: Callable[[], Ending]) -> Ending:
        """Carry out a step as a task, which is not tried again: that would hide faults."""
        endings: list[Ending] = []

        @task(
            name=name.split("@")[0].split()[0],
            task_run_name=name,
            cache_policy=NO_CACHE,
            persist_result=False,
        )
        def step() -> State[Any]:
            endings.append(work())
            return _state(endings[0])

        # A task does not begin after one that failed: its step says so itself.
        known = [self._states[need] for need in needs if need in self._states]
        known = [state for state in known if state.is_completed()]
        state = self._states[name] = step(wait_for=known, return_state=True)
        if endings:
            return endings[0]
        error = state.result(raise_on_failure=False)
        return Ending(getattr(error, "exit_code", FAULT), one_line(state.message or state.name))

    def follow(self, root: Path, stage: Stage) -> Callable[[], None]:
        """Show the progress file of a running stage on Prefect's page."""
        if stage.result is None:
            return super().follow(root, stage)
        name = stage.name.split("@")[0]
        path = Places(root).progress(stage.result.model, stage.result.strategy, name)
        return StageProgress(path, stage.name).poll

    def show(self, results: Sequence[tables.Result], every: bool) -> None:
        """Show results on Prefect's page."""
        if every and results:
            publish("results", tables.results_markdown(results), "All results on disk")
        for result in results if not every else ():
            name, text = f"{result.model}-{result.strategy}", result.benchmark
            described = f"Latencies and kernels of {name}"
            publish(f"result-{name}", kernel_tables.benchmark_markdown(text), described)


def _state(ending: Ending) -> State[Any]:
    if ending.exit_code:
        return Failed(message=ending.error)
    if ending.skipped:
        return Cancelled(name="Skipped", message=ending.skipped)
    return Completed(name="Cached" if ending.unchanged else "Completed")


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
    steps = FlowSteps()
    outcome = run_all(models, strategies, steps, recording, force)
    if watch:
        ending = steps.do("watch", [], lambda: _watched(models))
        if ending.exit_code:
            outcome.refuse(ending.error, ending.exit_code)
    if outcome.failed:
        return Failed(message=outcome.message(), data=RunFailedError(outcome))
    return Completed(message=outcome.message(), data=outcome)


def _watched(models: list[str] | None) -> Ending:
    """Compare the latest recorded results with those before; show the fleet over time."""
    from pipelines.records.fleet import fleet_markdown, fleet_picture
    from pipelines.records.watch import raise_if_slower, watch

    root = find_root()
    try:
        every = watch(root, fleet=True)
        publish("fleet", fleet_markdown(every), "Latency over time", fleet_picture(every))
        raise_if_slower(watch(root, models))
    except FewtuneError as error:
        return Ending(error.exit_code, one_line(error))
    return Ending(0)


def outcome_of(state: State[Any]) -> Outcome:
    """A run's outcome, from the state that it ended in."""
    result = state.result(raise_on_failure=False)
    if isinstance(result, RunFailedError):
        return result.outcome
    if isinstance(result, Outcome):
        return result
    crashed = Outcome()
    crashed.refuse(f"the flow ended as {state.name}: {state.message}", FAULT)
    return crashed
