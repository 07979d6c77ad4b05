"""The flow: the run of `fewtune.pipelines.runs.run_plan`, its steps as tasks of Prefect.

It is used for schedules, workers, and runs with a server in `PREFECT_API_URL`. Without a server, a
command does the same without Prefect: a server of its own takes ten seconds to start, and disturbs
measurements.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from fewtune.pipelines.checkout import environment  # noqa: F401  (before Prefect, which reads it when imported)

# isort: split
import httpx
from prefect import State, flow, get_run_logger, task
from prefect.artifacts import create_image_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from fewtune.errors import FAULT, FewtuneError, one_line
from fewtune.pipelines.checkout.parameters import budgets, of_run
from fewtune.pipelines.checkout.project import find_root
from fewtune.pipelines.checkout.results import listed
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.pipelines.runs.outcome import Outcome
from fewtune.pipelines.runs.run_plan import Steps, run_all
from fewtune.pipelines.runs.stage_process import Ending
from fewtune.report import tables
from fewtune.stages.params import LISTS

_LONGEST_NAME = 200
# What Prefect's client raises if its server is away, slow, or refuses a request.
_AWAY = (httpx.HTTPError, PrefectException, OSError, RuntimeError)


class RunFailedError(Exception):
    """A run in which something failed; `outcome` says what. Prefect needs an exception for it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message())
        self.outcome = outcome


class FlowSteps(Steps):
    """Steps as tasks of the present flow run."""

    def __init__(self) -> None:
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

    def show_record(self, result: Result, line: str) -> None:
        """Show in the log, and on Prefect's page, where a result is recorded."""
        super().show_record(result, line)
        publish(f"record-{result}", line, f"Record of {result}")

    def show(self, results: Sequence[tables.Result], every: bool) -> None:
        """Show results on Prefect's page."""
        if every and results:
            publish("results", tables.results_markdown(results), "All results on disk")
        for result in results if not every else ():
            name, text = f"{result.model}-{result.strategy}", result.benchmark
            described = f"Latencies and kernels of {name}"
            publish(f"result-{name}", tables.benchmark_markdown(text), described)


def artifact_key(text: str) -> str:
    """``text`` in the form of Prefect's keys: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def publish(name: str, markdown: str, description: str, picture: bytes | None = None) -> None:
    """Show a page, and a PNG beside it; if Prefect's server does not answer, log that and go on."""
    key = artifact_key(name)
    try:
        create_markdown_artifact(markdown, key=key, description=description)
        if picture is not None:
            image = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            create_image_artifact(image, key=f"{key}-picture", description=description)
    except _AWAY as fault:
        line = one_line(fault) or type(fault).__name__
        get_run_logger().warning("not shown on Prefect's page: %s", line)


def _state(ending: Ending) -> State[Any]:
    if ending.exit_code:
        return Failed(message=ending.error)
    if ending.skipped:
        return Cancelled(name="Skipped", message=ending.skipped)
    return Completed(name="Cached" if ending.unchanged else "Completed")


def _run_name() -> str:
    """Models and strategies of a run."""
    given = flow_run.parameters
    words = ("+".join(given.get(key) or [f"all {key}"]) for key in LISTS[:2])
    return " ".join(words)[:_LONGEST_NAME]


@flow(
    name="selective-tuning",
    flow_run_name=_run_name,
    persist_result=False,
    validate_parameters=True,
)
def selective_tuning(  # noqa: PLR0913 (a form on Prefect's page)
    models: list[str] | None = None,
    strategies: list[str] | None = None,
    recording: bool = True,
    force: bool = False,
    watch: bool = False,
    trials: int | None = None,
    budget_s: float | None = None,
    settings: dict[str, Any] | None = None,
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
    trials : int, optional
        Trials a task.
    budget_s : float, optional
        Seconds of tuning, and of sharing, at most.
    settings : dict, optional
        Other parameters by key path, such as ``{"tune.seed": 1}``. They hold for this run, as do
        trials and budget.
    """
    steps = FlowSteps()
    own = {**(settings or {}), **budgets(trials, budget_s)}
    # A command that runs the flow has set them.
    held = of_run(models or listed(find_root())[0], own) if own else contextlib.nullcontext()
    with held:
        outcome = run_all(models, strategies, steps, recording, force)
    if watch:
        ending = steps.do("watch", [], lambda: _watched(models))
        if ending.exit_code:
            outcome.refuse(ending.error, ending.exit_code)
    if outcome.failures:
        return Failed(message=outcome.message(), data=RunFailedError(outcome))
    return Completed(message=outcome.message(), data=outcome)


def _watched(models: list[str] | None) -> Ending:
    """Compare the latest recorded results with those before; show the fleet over time."""
    from fewtune.pipelines.records.fleet import fleet_markdown, fleet_picture
    from fewtune.pipelines.records.watch import raise_if_slower, watch

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
