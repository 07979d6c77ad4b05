"""The rounds of sharing: contenders of all tasks take turns, and the fastest stay.

Every task begins with the schedule that was predicted, or tuned. In each round those tasks get a
few contenders from which the model is expected to gain most: the best schedules of their donors,
moved into their own design space; what the predictor rates best; children of the fastest. All are
built and checked while others are still chosen. What is measured corrects the predictor for all
tasks. The rounds end when nothing promises a visible gain, or the budget is spent.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from fewtune.artifacts import Skeleton, StoppedBy
from fewtune.predictor.learnt import ranks_taught
from fewtune.runtime.kernel_store import KernelStore
from fewtune.search.strategy import remade
from fewtune.search.warm_start import known_points
from fewtune.tuning.job import SessionJob
from fewtune.tuning.judges import Entry, InModel
from fewtune.tuning.promise import promises
from fewtune.tuning.session import Session
from fewtune.tuning.state import TaskState

# Contenders of a round: more would wait long for the first gain.
_MOST_A_ROUND = 32
# A round itself takes a second: its tasks together have to promise so many times what one has to.
_WHOLE_ROUND = 3
# How much slower a tuned schedule may be than the fastest alone to take part in the model, and the
# least part of the model's time that its task takes.
_NEAR, _HEAVY = 1.2, 0.005
# From this part of its time on, which nobody knows how to save, a task tries its default schedule.
_DOUBTFUL = 0.3


class Sharing(Session):
    """Gives tasks the schedules that are fastest for them."""

    job: ShareJob

    def rounds(self) -> StoppedBy:
        """Let cost model and predictor learn from the tuned tasks' trials; hold rounds."""
        # A model that runs on this processor is needed, and kernels that can be linked.
        can_run = self.job.finals > 1 and self.device.can.shared_cores and not self.state.note
        if can_run and KernelStore.of(self.target) is not None:
            model, threads = self.job.model, self.job.fingerprint.threads
            if (model / Skeleton.file_name).is_file():
                self.model = InModel(model, self.measurer, threads)
            else:
                self.progress.say(f"not measured in the model: {model} has no skeleton")
        if self.job.proposes:
            with self.measurer.phases.timed("model_update_s"):
                for state in self.state.tasks.values():
                    self._teach(state)
        return super().rounds()

    def _teach(self, state: TaskState) -> None:
        """Teach a tuned task's trials; one on which TVM crashes is left out."""
        trials = [each for each in state.start.trials if each.key != state.start.default_key]
        if not trials or state.finished:
            return
        self.announce(state)
        search = self.search_of(state)
        taught = [trials[rank] for rank in ranks_taught(len(trials))]
        points, times_s = known_points(search.space, taught)
        if search.guide is not None:
            search.guide.learn_points(points, times_s)
        else:
            search.scorer.learn(*remade(search.space, points, times_s))

    def entries(self) -> list[Entry]:
        """What every task enters: those that promise most have contenders."""
        # The skeleton is of the largest shape: tasks of others keep what they begin with.
        every = self.state.tasks.values()
        states = [s for s in every if not (s.crashed or s.task.info.is_of_other_shape)]
        promised, least = promises(states), self.options.least_gain
        whole = sum(promise for promise in promised.values() if promise >= least)
        room, found = _MOST_A_ROUND if whole >= _WHOLE_ROUND * least else 0, list[Entry]()
        for state in sorted(states, key=lambda state: (-promised[state.name], state.name)):
            found.append(self._contested(state, promised[state.name] >= least and room > 0))
            room -= len(found[-1].keys) - 1
        return found

    def _contested(self, state: TaskState, is_worth_it: bool) -> Entry:
        """The incumbent of a task, and its contenders if it is worth it."""
        proposes = is_worth_it and self.job.proposes
        is_unknown = state.default_key is None and state.start.spread >= _DOUBTFUL
        entry = self.entered(state, self.options.batch_size if proposes else 0)
        first, *keys = entry.keys
        if not state.gains and state.task.info.share >= _HEAVY:
            # Alone, schedules that are near each other may be in either order.
            ranked = state.ranked()[: self.job.finals]
            near = [t for t in ranked if t.outcome.median_s <= _NEAR * ranked[0].outcome.median_s]
            keys = [*(trial.key for trial in near), *keys]
        if is_worth_it and is_unknown:
            keys.append(self.default_of(state))
        entry = entry._replace(keys=list(dict.fromkeys([first, *keys])))
        if self.model is not None:
            for key in entry.keys:
                self.model.offer(state, key)
        return entry


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
    """

    session = Sharing
    phase = "share"
    total_trials: ClassVar[int] = 0

    finals: int
    proposes: bool = True
    model: Path
