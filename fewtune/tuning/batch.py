"""A batch: candidates of one task, or of several, that are built and measured together.

At the end of a small batch one worker is idle while another compiles the last candidate. So where
each task has only a few candidates, several tasks share a batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fewtune.measure.measurer import Measurer, module_specs
from fewtune.search import Proposal
from fewtune.trial.outcome import Outcome
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import TaskState


class TaskBatch(NamedTuple):
    """The candidates of one task in a batch.

    Attributes
    ----------
    state : TaskState
    proposals : list of Proposal
        Distinct, and not measured before.
    asked : list of Proposal
        What a search proposed, known ones and repeats included.
    """

    state: TaskState
    proposals: list[Proposal]
    asked: list[Proposal]

    @staticmethod
    def of(state: TaskState, proposals: list[Proposal]) -> TaskBatch:
        """The batch of a task, without schedules that are known or proposed twice."""
        fresh: dict[str, Proposal] = {}
        for proposal in proposals:
            fresh.setdefault(proposal.key, proposal)
        unknown = [each for key, each in fresh.items() if key not in state.known]
        return TaskBatch(state, unknown, proposals)

    def trials(self, outcomes: list[Outcome]) -> list[Trial]:
        """The candidates as trials, given their outcomes."""
        return [
            Trial.measured(proposal.key, outcome)
            for proposal, outcome in zip(self.proposals, outcomes, strict=True)
        ]


def measure_together(measurer: Measurer, turns: list[TaskBatch]) -> list[list[Outcome]]:
    """Measure a batch, each task in a race of its own.

    Parameters
    ----------
    measurer : Measurer
    turns : list of TaskBatch

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
            [proposal.schedule.mod for _, proposal in everything],
            [specs[name] for name in names],
            [state.progress.bar_s for state, _ in everything],
            races=names,
            checks=[state.check for state, _ in everything],
        )
    )
    return [[next(outcomes) for _ in turn.proposals] for turn in turns]


def split_cost(spent: dict[str, Any], counts: list[int]) -> list[dict[str, Any]]:
    """Split the cost of a batch among its tasks, in proportion to their candidates.

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
    return [{"phases": phases.times(part).as_json()} for part in parts]
