"""What the model itself says in a session of sharing: how heavy each task is, and who wins it.

The first is asked before the refinement, whose trials go where the model is slow; the second ends
the session (`fewtune.finals.finals`). Both are asked once: what is in the journal is not asked
again, and what failed, or could not be done, would again.
"""

from __future__ import annotations

from fewtune.artifacts import TaskInfo
from fewtune.finals.finals import Finals, FinalsResult
from fewtune.machine.cache_sizes import own_caches_bytes
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.timing.cache_state import buffer_bytes, outgrow
from fewtune.trial.trial import Trial
from fewtune.trial.worker_reply import RequestFailedError, WorkerLostError
from fewtune.tuning.session import Session

REFINEMENT = "refinement"
# What tasks take alone tells where the time goes, unless searched tasks whose activations outgrow
# the cores' own caches, and whose calls are shorter than this, take at least this part of it. Of
# ResNet 50, whose calls take 0.2 to 1.1 ms, refinement took 11.5 instead of 8.9 s with such runs,
# of SqueezeNet, of which it is a twelfth, 6.9 instead of 6.5; neither gained visibly by it. Of
# MobileNet V2 it is a seventh.
_SHORT_S, _LEAST_MISLEADING = 2e-4, 0.1


class InModel:
    """Asks the model, where it can be asked.

    Parameters
    ----------
    finals : Finals or None
        None: it cannot.
    session : Session
        Its journal gets the answers.
    """

    def __init__(self, finals: Finals | None, session: Session) -> None:
        self._finals, self._session = finals, session
        events = session.journal.events
        self._is_weighed = any("in_model_s" in event for event in events)
        held = [event["finals"] for event in events if event["kind"] == "in_model"]
        self._decided: bool | None = any(held) if held else None

    @property
    def can_be_asked(self) -> bool:
        """Whether the session ends with finals, unless these fail."""
        return self._finals is not None

    @property
    def is_to_decide(self) -> bool:
        """Whether it can be asked, and was not yet."""
        return self._finals is not None and self._decided is None

    def weigh(self) -> None:
        """Let the model say what tasks take of its time, which is not what they take alone.

        Where a kernel's data outgrow the cores' caches it may be three times as much, and trials
        are to go where the model is slow: two of MobileNet V2's depthwise convolutions took 0.045
        ms alone, 0.15 and 0.19 in the model, and got four trials of refinement (an EPYC).
        """
        if self._finals is None or self._is_weighed:
            return
        states = self._session.state.tasks
        ranked = {name: state.ranked() for name, state in states.items()}
        best = {name: each[0] for name, each in ranked.items() if each}
        shares_s = {name: states[name].progress.share_s for name in best}
        # What a bank has of a task itself is not refined.
        searched = [name for name in best if states[name].taken is None]
        misleading_s = sum(
            shares_s[name]
            for name in searched
            if best[name].outcome.median_s < _SHORT_S and self._outgrows(states[name].task.info)
        )
        if not misleading_s >= _LEAST_MISLEADING * sum(shares_s.values()) > 0:
            return
        times_s: dict[str, float] = {}
        try:
            times_s = self._finals.weigh(best, self._session.measurer)
        except (WorkerLostError, RequestFailedError) as fault:
            self._session.progress.say(f"the model was not run: {_line(fault)}")
        spent = self._session.spent()
        self._session.note({"kind": "phases", "round": REFINEMENT, "in_model_s": times_s, **spent})

    def _outgrows(self, task: TaskInfo) -> bool:
        """Whether its call finds nothing in the cores' own caches of what is to be written."""
        # What the kernel before wrote, and what it writes itself.
        activations = [task.shapes[0], task.shapes[-1]]
        whole_bytes = sum(buffer_bytes(shape, task.dtype) for shape in activations)
        threads = CpuTraits.of(self._session.target).threads
        return outgrow(whole_bytes, own_caches_bytes(threads))

    def decides(self) -> bool:
        """Let the model choose among the best schedules of tasks; say whether it did."""
        if self._decided is not None:
            return self._decided
        contenders = self._contenders()
        return bool(contenders) and self._hold(contenders)

    def _contenders(self) -> dict[str, list[Trial]]:
        """Every task's contenders; none at all where nobody has more than one."""
        if self._finals is None:
            return {}
        contenders = self._finals.contenders(self._session.state.tasks)
        return contenders if any(len(trials) > 1 for trials in contenders.values()) else {}

    def _hold(self, contenders: dict[str, list[Trial]]) -> bool:
        assert self._finals is not None
        session = self._session
        contested = [len(trials) for trials in contenders.values() if len(trials) > 1]
        session.progress.say(
            f"{sum(contested)} schedules of {len(contested)} tasks take turns in the model"
        )
        held, note = FinalsResult({}), ""
        try:
            held = self._finals.hold(contenders, session.measurer)
        except (WorkerLostError, RequestFailedError) as fault:
            note = f"no finals in the model: {_line(fault)}"
            session.progress.say(note)
        finals = {name: final._asdict() for name, final in held.finals.items()}
        session.note({"kind": "in_model", "finals": finals, "note": note, **session.spent()})
        return bool(held.finals)


def _line(fault: Exception) -> str:
    """The last line of what went wrong."""
    return str(fault).splitlines()[-1]
