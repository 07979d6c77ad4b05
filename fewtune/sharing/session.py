"""The rounds of sharing: contenders of all tasks take turns, and the fastest stay.

Every task begins with the schedule that was predicted, or tuned. In each round those tasks get a
few contenders from which the model is expected to gain most: the best schedules of their donors,
moved into their own design space; what the predictor rates best; children of the fastest. All are
built and checked while others are still chosen. What is measured corrects the predictor for all
tasks. The rounds end when nothing promises a visible gain, or the budget is spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fewtune.artifacts import Skeleton, StoppedBy
from fewtune.prediction.predict import moved
from fewtune.predictor.learnt import ranks_taught
from fewtune.runtime.kernel_store import KernelStore
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import donation_of
from fewtune.search.warm_start import teach
from fewtune.task.extract import read_tasks
from fewtune.trial.outcome import RequestFailedError, WorkerLostError
from fewtune.trial.trial import Trial
from fewtune.tuning.job import SessionJob, Workplace
from fewtune.tuning.judges import Entry, InModel
from fewtune.tuning.promise import promises
from fewtune.tuning.session import Session
from fewtune.tuning.state import TaskState

# Contenders of a round: more would wait long for the first gain. A round itself takes a second, so
# its tasks together have to promise this part of the model's time.
_MOST_A_ROUND, _A_ROUND = 32, 0.006
# How much slower a tuned schedule may be than the fastest alone to take part in the model, and the
# least part of the model's time that its task takes.
_NEAR, _HEAVY = 1.2, 0.005
# From this part of its time on, which nobody knows how to save, a task tries its default schedule.
_DOUBTFUL = 0.3


class ShareJob(SessionJob):
    """The work of a sharing session. A fleet sends the folder ``model`` along.

    Attributes
    ----------
    finals : int
        Tuned schedules of a task that take turns in the model at first.
    proposes : bool
        Whether schedules are tried that nobody measured; not in full tuning.
    model : Path
        The tasks' folder, with the model's skeleton, to measure in the model.
    twins : list of str
        Tasks of other shapes of the model: in the end they take what their donors came to.
    """

    finals: int
    proposes: bool = True
    model: Path
    twins: list[str] = []

    def measure(self, place: Workplace) -> object:
        """Share schedules."""
        return Sharing(self, place).run()


class Sharing(Session):
    """Gives tasks the schedules that are fastest for them.

    Parameters
    ----------
    job : ShareJob
    place : Workplace
    """

    phase = "share"

    def __init__(self, job: ShareJob, place: Workplace) -> None:
        super().__init__(job, place)
        self._job = job
        self._in_model: InModel | None = None
        # A model that runs on this processor is needed, and kernels that can be linked.
        can_run = job.finals > 1 and self.device.can.shared_cores
        if can_run and KernelStore.of(self.target) is not None:
            if (job.model / Skeleton.file_name).is_file():
                skeleton, threads = Skeleton.read(job.model), job.fingerprint.threads
                self._in_model = InModel(skeleton, read_tasks(job.model), self.measurer, threads)
            else:
                place.progress.say(f"not measured in the model: {job.model} has no skeleton")

    def rounds(self) -> StoppedBy:
        """Let cost model and predictor learn from the tuned tasks' trials; hold rounds."""
        if self._job.proposes:
            with self.measurer.phases.timed("model_update_s"):
                teach(self.knowledge, self._taught())
        return super().rounds()

    def _taught(self) -> Iterator[tuple[SearchSpace, list[Trial]]]:
        """The donors' trials, one donor at a time: a donor on which TVM crashes is left out."""
        for state in self.state.tasks.values():
            trials = [each for each in state.start.trials if each.key != state.start.default_key]
            if trials and not state.finished:
                self.announce(state)
                ranks = ranks_taught(len(trials))
                yield self.search_of(state).space, [trials[rank] for rank in ranks]

    def entries(self) -> list[Entry]:
        """What every task enters: those that promise most have contenders."""
        twins = set(self._job.twins)
        states = [s for s in self.state.tasks.values() if s.name not in twins and not s.crashed]
        promised, least = promises(states), self.options.least_gain
        whole = sum(promise for promise in promised.values() if promise >= least)
        room, found = _MOST_A_ROUND if whole >= min(_A_ROUND, 3 * least) else 0, list[Entry]()
        for state in sorted(states, key=lambda state: (-promised[state.name], state.name)):
            found.append(self._contested(state, promised[state.name] >= least and room > 0))
            room -= len(found[-1].keys) - 1
        return found

    def _contested(self, state: TaskState, is_worth_it: bool) -> Entry:
        """The incumbent of a task, and its contenders if it is worth it."""
        proposes = is_worth_it and self._job.proposes
        is_unknown = state.default_key is None and state.start.spread >= _DOUBTFUL
        entry = self.entered(state, self.options.batch_size if proposes else 0)
        first, *keys = entry.keys
        if not state.gains and state.task.info.share >= _HEAVY:
            # Alone, schedules that are near each other may be in either order.
            ranked = state.ranked()[: self._job.finals]
            near = [t for t in ranked if t.outcome.median_s <= _NEAR * ranked[0].outcome.median_s]
            keys = [*(trial.key for trial in near), *keys]
        if is_worth_it and is_unknown:
            keys.append(self.default_of(state))
        entry = entry._replace(keys=list(dict.fromkeys([first, *keys])))
        if self._in_model is not None and not self.state.note:
            for key in entry.keys:
                self._in_model.offer(state, key)
        return entry

    def judge(self, entries: list[Entry]) -> None:
        """Measure in the model, or alone where that cannot be done or fails."""
        if self._in_model is not None and not self.state.note:
            try:
                self.hold(entries, self._in_model)
                return
            except (WorkerLostError, RequestFailedError) as fault:
                note = f"not measured in the model: {str(fault).splitlines()[-1]}"
                self.progress.say(note)
                self.note({"kind": "no_model", "note": note})
        self.hold([each for each in entries if len(each.keys) > 1])

    def conclude(self) -> None:
        """Serve the other shapes of the model where the largest has something better now.

        Nothing is measured: a kernel of another shape has the same inner loops.
        """
        if self._in_model is not None:
            self._in_model.close()
        for twin in (self.state.tasks[name] for name in self._job.twins):
            (donor,) = (self.state.tasks[name] for name in twin.start.donors)
            has, had = donor.incumbent, donor.start.trial
            # What was predicted for the largest shape is what this one begins with.
            if twin.crashed or has is None or (had is not None and has.key == had.key):
                continue
            self.announce(twin)
            donation = donation_of(donor.task.mod, has.trace)
            if new := moved(donation, SearchSpace(twin.task.mod, self.target)):
                self.note({"kind": "moved", "task": twin.name, "donor": donor.name, "key": new.key})
