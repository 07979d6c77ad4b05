"""A run: stages in the order of DVC's graph; each result is recorded when it is done.

If a stage fails, the stages that need it do not run. Other models and strategies go on, and the end
of the run lists the failures with their reasons. `CommandSteps` carries out a command's steps and
shows them in the terminal; in `pipelines.flow` each step is a task of Prefect.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from fewtune.errors import FewtuneError, InputError
from fewtune.process.temporary import own_temporary_folder
from fewtune.report import tables
from fewtune.util.files import remove_left
from pipelines.checkout.project import find_root
from pipelines.checkout.results import read_result, read_results
from pipelines.checkout.run_lock import turn
from pipelines.dvc_repo.dag import Dag, Plan, Result, Stage
from pipelines.dvc_repo.lock_file import mend_lock_file
from pipelines.dvc_repo.read_dag import DvcBusyError, outdated, read_dag
from pipelines.records.recorded import is_recorded
from pipelines.runs.outcome import Outcome
from pipelines.runs.stage_process import Ending, run_stage
from pipelines.runs.warm import warm_process
from stages.paths import Places

# Another DVC process may hold a stage's outputs for as long as it tunes: wait six hours.
BUSY_RETRIES, BUSY_DELAY_S = 720, 30


class Steps(Protocol):
    """Carries out the steps of a run, and shows them."""

    def say(self, line: str) -> None:
        """Show a line of progress."""

    def warn(self, line: str) -> None:
        """Show a warning."""

    def stage(self, root: Path, stage: Stage, force: bool) -> Ending:
        """Run one stage, unless nothing is to be done."""

    def keep(self, stage: Stage) -> None:
        """Stand for a stage that is up to date."""

    def skip(self, stage: Stage, reason: str) -> None:
        """Stand for a stage that cannot run."""

    def record(self, root: Path, result: Result, stages: Sequence[str]) -> FewtuneError | None:
        """Record a result that is not recorded yet; return the error if that fails."""

    def show(self, results: Sequence[tables.Result], every: bool) -> None:
        """Show results that are up to date; at the end, all results on disk."""


class CommandSteps:
    """Steps of a command: shown in the terminal, and nowhere else."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._away: FewtuneError | None = None
        self._loading: threading.Thread | None = None

    def say(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    def warn(self, line: str) -> None:
        print(f"fewtune: {line}", file=sys.stderr, flush=True)

    def stage(self, root: Path, stage: Stage, force: bool) -> Ending:
        def say(line: str) -> None:
            if not self._live:
                self.say(f"{stage.name}: {line}")

        if stage.result is not None and self._loading is None:
            # There will be a result to record. MLflow takes three seconds to load, and as long to
            # make a database: it does so before anything is measured.
            self._loading = threading.Thread(target=_open_store, args=[root], daemon=True)
            self._loading.start()
        log = log_path(root, stage.name)
        for tried in range(BUSY_RETRIES + 1):
            ending = run_stage(root, stage.name, log, say, live=self._live, force=force)
            if not ending.busy:
                break
            if not tried:
                self.warn(f"{stage.name} waits: another DVC process is at work here")
            time.sleep(BUSY_DELAY_S)
        return ending

    def keep(self, stage: Stage) -> None:
        self.say(f"{stage.name} is up to date")

    def skip(self, stage: Stage, reason: str) -> None:
        self.say(f"{stage.name} is skipped: {reason}")

    def record(self, root: Path, result: Result, stages: Sequence[str]) -> FewtuneError | None:
        # If the server did not answer once, later results do not try it again.
        if self._away is not None:
            return self._away
        if self._loading is not None:
            self._loading.join()
        from pipelines.records.record import record_finished

        try:
            self.say(record_finished(root, result, stages, log_paths(root, stages), self.warn))
        except FewtuneError as error:
            if not isinstance(error, InputError):
                self._away = error
            return error
        return None

    def show(self, results: Sequence[tables.Result], every: bool) -> None:
        """Show nothing: the command itself ends with the table."""


def _open_store(root: Path) -> None:
    # Errors are reported when a result is recorded.
    with contextlib.suppress(Exception):
        importlib.import_module("pipelines.records.record")
        importlib.import_module("pipelines.records.tracking").Store(root)


def run_all(
    models: list[str] | None,
    strategies: list[str] | None,
    steps: Steps,
    recording: bool = True,
    force: bool = False,
) -> Outcome:
    """Bring results up to date.

    Parameters
    ----------
    models, strategies : list of str, optional
        Of those that params.yaml lists; all of them unless given.
    steps : Steps
        Carries them out.
    recording : bool
        Whether results are recorded in MLflow.
    force : bool
        Whether every stage of these models, and of what they share, runs again, even if nothing
        changed.
    """
    outcome = Outcome()
    try:
        root = find_root()
        purpose = f"run {' '.join(models or ['all models'])}"
        with turn(root, purpose, steps.warn), own_temporary_folder(), warm_process(root):
            places = Places(root)
            for folder in (places.models, places.out, places.scratch):
                remove_left(folder.rglob(".*"))
            mend_lock_file(root)
            dag = read_dag(root)
            plan = dag.plan(_wanted(dag, models, strategies))
            for name, missing in plan.left_out.items():
                if missing[-1] not in plan.left_out:
                    steps.say(f"{name} is left out: {missing[-1]} has not run")
            _run_plan(root, dag, plan, outcome, recording, force, steps)
            steps.show(read_results(root, steps.warn), every=True)
    except FewtuneError as error:
        outcome.refuse(str(error), error.exit_code)
    return outcome


def _wanted(dag: Dag, models: list[str] | None, strategies: list[str] | None) -> list[Result]:
    listed = dag.results
    models = models or list(dict.fromkeys(result.model for result in listed))
    strategies = strategies or list(dict.fromkeys(result.strategy for result in listed))
    return [Result(model, strategy) for model in models for strategy in strategies]


def _run_plan(
    root: Path,
    dag: Dag,
    plan: Plan,
    outcome: Outcome,
    recording: bool,
    force: bool,
    steps: Steps,
) -> None:
    ends = plan.ends()
    kept: set[str] | None = None
    ran: set[str] = set()
    passed_over: set[str] = set()
    for stage in plan.stages:
        if kept is None and not stage.always:
            # DVC is asked once, after the stages that always run: each question loads DVC.
            kept = set() if force else _up_to_date(root, plan, steps.warn)
        if passed_over & set(stage.needs):
            passed_over.add(stage.name)
            continue
        blocked = outcome.blocked_by(stage)
        stale = [] if blocked else _outdated(root, plan.presumed.get(stage.name, ()), steps.warn)
        if blocked or stale:
            steps.skip(stage, f"{blocked} failed" if blocked else f"{stale[0]} is not up to date")
            if blocked:
                outcome.skipped[stage.name] = blocked
            else:
                passed_over.add(stage.name)
            continue
        missing = stage.missing()
        if missing:
            outcome.fail(stage, missing, InputError.exit_code)
            continue
        if kept and stage.name in kept and not ran & dag.upstream([stage.name]):
            steps.keep(stage)
            ending = Ending(0, unchanged=True)
        else:
            ending = steps.stage(root, stage, force)
            if kept is not None and not ending.unchanged:
                ran.add(stage.name)
        if ending.exit_code:
            outcome.fail(stage, ending.error, ending.exit_code)
        elif stage.name in ends:
            finish(root, dag, ends[stage.name], stage, outcome, recording, steps)


def _up_to_date(root: Path, plan: Plan, warn: Callable[[str], None]) -> set[str]:
    """The stages of a plan that DVC would not run in the present checkout."""
    names = [stage.name for stage in plan.stages if not stage.always]
    return set(names).difference(_outdated(root, names, warn))


def _outdated(root: Path, names: Sequence[str], warn: Callable[[str], None]) -> list[str]:
    """Which stages DVC would run again, once no other DVC process is at work."""
    for tried in range(BUSY_RETRIES):
        try:
            return outdated(root, names)
        except DvcBusyError as busy:
            if not tried:
                warn(f"waiting: {busy}")
            # The first retries come soon: the lock may be of a process that was just killed.
            time.sleep(min(BUSY_DELAY_S, 2.0 * (tried + 1)))
    return outdated(root, names)


def finish(
    root: Path,
    dag: Dag,
    result: Result,
    stage: Stage,
    outcome: Outcome,
    recording: bool,
    steps: Steps,
) -> None:
    """Record and show a result whose last stage has run, or was up to date."""
    try:
        found = read_result(root, result.model, result.strategy) if result.strategy else None
    except InputError as error:
        # The result is of another version; only --force makes it anew.
        outcome.fail(stage, f"{error}, with --force", error.exit_code)
        return
    outcome.finished.append(result)
    if recording and not is_recorded(root, result):
        error = steps.record(root, result, dag.ordered(dag.upstream([stage.name])))
        if error is not None:
            recorded = Stage(f"record {result}", result, (), ())
            outcome.fail(recorded, str(error), error.exit_code)
    if found is not None:
        steps.show([found], every=False)


def log_path(root: Path, stage: str) -> Path:
    """The file that keeps all output of a stage's last run."""
    return Places(root).scratch / "logs" / f"{stage.replace('/', '-')}.log"


def log_paths(root: Path, stages: Sequence[str]) -> list[Path]:
    """The files of several stages' last runs."""
    return [log_path(root, stage) for stage in stages]
