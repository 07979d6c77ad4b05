"""A judge of contenders that measures nothing."""

from collections.abc import Callable

from fewtune.trial.outcome import WRONG_OUTPUT, Outcome
from fewtune.tuning.final import Final
from fewtune.tuning.judges import Entry, Judged
from fewtune.tuning.state import TaskState


class MadeJudge:
    """Gives each contender what a function of its task and key says: seconds, or a fault."""

    def __init__(self, says: Callable[[str, str], float | str]) -> None:
        self._says = says
        self.rounds: list[dict[str, list[str]]] = []

    def offer(self, state: TaskState, key: str) -> None:
        """Nothing has to be built."""

    def close(self) -> None:
        """Nothing was built."""

    def judged(self, entries: list[Entry]) -> Judged:
        self.rounds.append({entry.name: entry.keys for entry in entries})
        found = Judged({}, {}, rest_s=1e-3)
        for entry in entries:
            name, samples = entry.name, {}
            for key in entry.keys:
                said = self._says(name, key)
                if isinstance(said, str):
                    found.outcomes[name, key] = Outcome(None, WRONG_OUTPUT, said)
                else:
                    found.outcomes[name, key] = Outcome([said])
                    samples[key] = [said * entry.state.weight]
            found.finals[name] = Final.of(list(samples), [list(samples.values())] * 2)
        return found

    def contenders(self) -> list[tuple[str, str]]:
        """Everything that was measured beside what a task had, in order."""
        return [(name, key) for each in self.rounds for name in each for key in each[name][1:]]
