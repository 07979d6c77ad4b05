"""A run: stages in the order of DVC's graph; each result is recorded when it is done.

If a stage fails, the stages that need it do not run. Other models and strategies go on, and the end
of the run lists the failures with their reasons. `Steps` shows them in the terminal; in
`fewtune.pipelines.flow` each step is a task of Prefect.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from fewtune.api import APART
from fewtune.errors import FewtuneError, InputError, one_line, printable
from fewtune.pipelines.checkout.project import find_root, turn
from fewtune.pipelines.checkout.results import read_result, read_results
from fewtune.pipelines.dvc_repo.dag import Dag, DvcBusyError, Result, Stage, outdated, read_dag
from fewtune.pipelines.dvc_repo.mend import mend_lock_file
from fewtune.pipelines.records.recorded import is_recorded
from fewtune.pipelines.runs.outcome import Outcome
from fewtune.pipelines.runs.stage_process import Ending, run_stage
from fewtune.process import warm
from fewtune.process.ending import ending_early
from fewtune.process.temporary import own_temporary_folder
from fewtune.report import tables
from fewtune.stages.paths import Places
from fewtune.util.files import remove_left

# Another DVC process may hold a stage's outputs for as long as it tunes: wait six hours.
BUSY_RETRIES, BUSY_DELAY_S = 720, 30
# Modules that DVC loads only when a stage runs.
DVC = ("dvc.repo", "dvc.cli.parser", "dvc.commands.repro", "dvc.repo.reproduce", "dvc.stage.run")
_Done = TypeVar("_Done")
_MODULE = re.compile(r"python -m ([\w.]+)")


@contextlib.contextmanager
def warm_process(root: Path) -> Iterator[None]:
    """Keep a process while the block runs that has TVM, DVC and the stages loaded, and forks each.

    A new interpreter takes two to four seconds of a core to load them, eleven times in a run of one
    model. `dvc.yaml` knows nothing of it: the run's PATH begins with a folder whose ``python`` is
    `fewtune.process.warm_python`. Without it the same commands start Python, and give the same
    files.
    """
    stages = _MODULE.findall(Places(root).pipeline.read_text())
    with warm.warm_process([*DVC, *APART, *dict.fromkeys(stages)], root):
        yield


class Steps:
    """Carries out the steps of a run, and shows them in the terminal."""

    def say(self, line: str) -> None:
        """Show a line of progress."""
        print(f"{time.strftime('%H:%M:%S')} {printable(line)}", flush=True)

    def warn(self, line: str) -> None:
        """Show a warning."""
        print(f"fewtune: {one_line(line)}", file=sys.stderr, flush=True)

    def do(self, name: str, needs: Sequence[str], work: Callable[[], Ending]) -> Ending:
        """Carry out the step ``name``, after those that it needs."""
        ending = work()
        if ending.skipped:
            self.say(f"{name} is skipped: {ending.skipped}")
        return ending

    def show_record(self, result: Result, line: str) -> None:
        """Show where a result is recorded."""
        self.say(line)

    def show(self, results: Sequence[tables.Result], every: bool) -> None:
        """Show results that are up to date; at the end, all results on disk.

        The command itself ends with the table.
        """


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
            known = dag.results
            models = models or [result.model for result in known]
            strategies = strategies or [result.strategy for result in known]
            wanted = dict.fromkeys(Result(model, it) for model in models for it in strategies)
            Run(root, dag, steps, outcome, recording, force).run(list(wanted))
            steps.show(read_results(root, steps.warn), every=True)
    except FewtuneError as error:
        outcome.refuse(one_line(error), error.exit_code)
    return outcome


class Run:
    """One run over a checkout."""

    def __init__(
        self, root: Path, dag: Dag, steps: Steps, outcome: Outcome, recording: bool, force: bool
    ) -> None:
        self._root, self._dag, self._steps, self._outcome = root, dag, steps, outcome
        self._recording, self._force = recording, force
        self._outdated: set[str] | None = None
        self._ran: set[str] = set()
        self._loading: threading.Thread | None = None
        self._away: Ending | None = None

    def run(self, wanted: Sequence[Result]) -> None:
        """Run the stages of the results that are wanted, and of what joins them."""
        plan, ends = self._dag.plan(wanted)
        planned = {stage.name for stage in plan}
        for stage in plan:
            if self._outdated is None and not stage.always:
                # DVC is asked once, after the stages that always run: each question loads DVC.
                every = self._dag.ordered(planned)
                self._outdated = self._ask(set(every) - planned if self._force else every)
            ending = self._steps.do(stage.name, stage.needs, partial(self._stage, stage, planned))
            if ending.exit_code:
                self._outcome.fail(stage, ending.error, ending.exit_code)
            elif stage.name in ends and not ending.skipped:
                self.finish(ends[stage.name], stage)

    def _stage(self, stage: Stage, planned: set[str]) -> Ending:
        return self._without_running(stage, planned) or self._bring_up_to_date(stage)

    def _without_running(self, stage: Stage, planned: set[str]) -> Ending | None:
        """How a stage ends that need not run, or cannot."""
        above = self._dag.ordered([stage.name])
        outdated = self._outdated or set()
        stale = [each for each in above if each in outdated and each not in planned]
        blocked = self._outcome.blocked_by(stage)
        missing = stage.missing()
        if blocked:
            self._outcome.skipped[stage.name] = blocked
            return Ending(0, skipped=f"{blocked} failed")
        if stale:
            return Ending(0, skipped=f"{stale[-1]} is not up to date")
        if missing:
            return Ending(InputError.exit_code, missing)
        ran = self._force or self._outdated is None or self._ran & set(above)
        if ran or stage.name in outdated:
            return None
        self._steps.say(f"{stage.name} is up to date")
        return Ending(0, unchanged=True)

    def _bring_up_to_date(self, stage: Stage) -> Ending:
        steps, name = self._steps, stage.name
        if self._recording and stage.result is not None and self._loading is None:
            # There will be a result to record. MLflow takes three seconds to load, and as long to
            # make a database: it does so before anything is measured.
            self._loading = threading.Thread(target=_open_store, args=[self._root], daemon=True)
            self._loading.start()

        def say(line: str) -> None:
            steps.say(f"{name}: {line}")

        log = Places(self._root).log(name)
        work = partial(run_stage, self._root, name, log, say, self._force)
        # The first interrupt while schedules are measured ends that with the best so far.
        with ending_early(Path(tempfile.gettempdir()) / f"end {stage.result}"):
            ending = self._patiently(name, work)
        if not (ending.unchanged or stage.always):
            self._ran.add(name)
        return ending

    def _ask(self, names: Iterable[str]) -> set[str]:
        """Which stages DVC would run again."""
        names = list(names)
        return self._patiently("the run", lambda: outdated(self._root, names)) if names else set()

    def _patiently(self, name: str, work: Callable[[], _Done]) -> _Done:
        """Do what needs DVC, once no other process of it is at work."""
        for tried in range(BUSY_RETRIES):
            try:
                return work()
            except DvcBusyError as busy:
                if not tried:
                    self._steps.warn(f"{name} waits: {busy}")
                # The first retries come soon: the lock may be of a process that was just killed.
                time.sleep(min(BUSY_DELAY_S, 2.0 * (tried + 1)))
        return work()

    def finish(self, result: Result, stage: Stage) -> None:
        """Record and show a result whose last stage has run, or was up to date."""
        try:
            found = read_result(self._root, result.model, result.strategy)
        except InputError as error:
            # The result is of another version; only --force makes it anew.
            self._outcome.fail(stage, f"{error}, with --force", error.exit_code)
            return
        self._outcome.finished.append(result)
        if self._recording and not is_recorded(self._root, result):
            name = f"record {result}"
            ending = self._away or self._steps.do(name, [stage.name], lambda: self._record(result))
            if ending.exit_code:
                self._outcome.fail(Stage(name, result), ending.error, ending.exit_code)
        if found is not None:
            self._steps.show([found], every=False)

    def _record(self, result: Result) -> Ending:
        if self._loading is not None:
            self._loading.join()
        from fewtune.pipelines.records.record import record_finished

        try:
            line = record_finished(self._root, result, self._dag.needed(result))
        except FewtuneError as error:
            ending = Ending(error.exit_code, one_line(error))
            if not isinstance(error, InputError):
                # The server did not answer: later results do not try it again.
                self._away = ending
            return ending
        self._steps.show_record(result, line)
        return Ending(0)


def _open_store(root: Path) -> None:
    # Errors are reported when a result is recorded.
    with contextlib.suppress(Exception):
        importlib.import_module("fewtune.pipelines.records.record")
        importlib.import_module("fewtune.pipelines.records.tracking").Store(root)
