"""A batch: candidates of one task, or of several, that are built and measured together.

A small batch of one task leaves a worker idle while the other compiles its last candidate. Where
only a few candidates of a task are to be measured before it is looked at again, those of several
tasks share a batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.tvm import tvm
from fewtune.search import Proposal
from fewtune.trial.outcome import Outcome
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial
from fewtune.trial.worker_reply import Built, Failure
from fewtune.tuning.task_state import TaskState
from fewtune.workers.build_queue import Building


class TaskBatch(NamedTuple):
    """What is measured of one task.

    Attributes
    ----------
    state : TaskState
    proposals : list of Proposal
        Distinct ones that were not measured before.
    """

    state: TaskState
    proposals: list[Proposal]

    @staticmethod
    def of(state: TaskState, proposals: list[Proposal]) -> TaskBatch:
        """The turn of a task: a schedule that is known, or reached by two ways, is left out."""
        fresh: dict[str, Proposal] = {}
        for proposal in proposals:
            fresh.setdefault(proposal.key, proposal)
        return TaskBatch(state, [each for key, each in fresh.items() if key not in state.known])

    @property
    def modules(self) -> list[tvm.IRModule]:
        """What is built of it."""
        return [proposal.schedule.mod for proposal in self.proposals]

    def trials(self, outcomes: list[Outcome]) -> list[Trial]:
        """Its proposals as they were measured."""
        return [
            Trial.measured(proposal.key, outcome)
            for proposal, outcome in zip(self.proposals, outcomes, strict=True)
        ]


def measure_together(
    measurer: Measurer, turns: list[TaskBatch], modules: Building[Built | Failure]
) -> list[list[Outcome]]:
    """Measure a batch, each task in a race of its own.

    Parameters
    ----------
    measurer : Measurer
    turns : list of TaskBatch
    modules : Building
        Of the measurer: the modules of every turn.

    Returns
    -------
    outcomes : list of list of Outcome
        By turn, in the order of its proposals.
    """
    everything = [(turn.state, proposal) for turn in turns for proposal in turn.proposals]
    specs = {turn.state.task.info.name: module_specs(turn.state.task.mod) for turn in turns}
    names = [state.task.info.name for state, _ in everything]
    outcomes = iter(
        measurer.measure(
            modules,
            [specs[name] for name in names],
            [state.progress.bar_s for state, _ in everything],
            races=names,
            keys=[(state.task.info.workload, proposal.key) for state, proposal in everything],
            checks=[state.check for state, _ in everything],
        )
    )
    return [[next(outcomes) for _ in turn.proposals] for turn in turns]


def split_cost(spent: dict[str, Any], counts: list[int]) -> list[dict[str, Any]]:
    """What a batch took, for the event of each task: seconds in proportion to its candidates.

    Parameters
    ----------
    spent : dict
        As `Session.spent` gives it.
    counts : list of int
        Candidates of each task.
    """
    whole = sum(counts)
    phases = Phases(**spent["phases"])
    parts = [count / whole if whole else 1 / len(counts) for count in counts]
    # Which of them a measurement was made again of is not told: the first event has them all.
    repeats = [spent["repeats"], *(0 for _ in counts[1:])]
    return [
        {"phases": phases.times(part).as_json(), "repeats": again}
        for part, again in zip(parts, repeats, strict=True)
    ]
