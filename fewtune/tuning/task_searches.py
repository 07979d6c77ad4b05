"""The searches of a session, each made when its task is first searched."""

from __future__ import annotations

from fewtune.options import TuneOptions
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Explorer, Knowledge, make_strategy
from fewtune.search.warm_start import known_points
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import TaskState


class Searches:
    """Every task's search space and search.

    Parameters
    ----------
    target : Target
    options : TuneOptions
    knowledge : Knowledge
        The cost models, which all searches share.
    seeds : dict of list of Trial
        Trials of an older log, by task: measured again before anything else.
    """

    def __init__(
        self,
        target: tvm.target.Target,
        options: TuneOptions,
        knowledge: Knowledge,
        seeds: dict[str, list[Trial]],
    ) -> None:
        self.knowledge = knowledge
        self._target = target
        self._options = options
        self._seeds = seeds
        self._spaces: dict[str, SearchSpace] = {}
        self._searches: dict[str, Explorer] = {}

    def space_of(self, state: TaskState) -> SearchSpace:
        """The task's search space, generated once."""
        name = state.task.info.name
        if name not in self._spaces:
            self._spaces[name] = SearchSpace(state.task.mod, self._target)
        return self._spaces[name]

    def of(self, state: TaskState) -> Explorer:
        """The task's search; after a resumption it knows the trials of the journal."""
        name = state.task.info.name
        if name not in self._searches:
            space = self.space_of(state)
            search = make_strategy(
                space,
                self.knowledge,
                self._options,
                # Another seed after a resumption; the same would draw the first batch again.
                seed=1 + self._options.seed + 7919 * len(state.known),
            )
            search.remember(*known_points(space, state.trials))
            # Those that the journal holds already are not measured again.
            search.begin_from(known_points(space, self._seeds.get(name, []))[0])
            self._searches[name] = search
        return self._searches[name]
