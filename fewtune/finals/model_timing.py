"""Finals in the model as a step of sharing, held once at its end.

Finals that are in the journal are not held again, even if they failed: they would fail again.
"""

from __future__ import annotations

from fewtune.finals.finals import Final, Finals
from fewtune.trial.trial import Trial
from fewtune.trial.worker_reply import RequestFailedError, WorkerLostError
from fewtune.tuning.session import Session


class InModel:
    """Holds finals in the model, where the device can.

    Parameters
    ----------
    finals : Finals or None
        None where no finals can be held.
    session : Session
        Its journal gets the results.
    """

    def __init__(self, finals: Finals | None, session: Session) -> None:
        self._finals, self._session = finals, session
        events = session.journal.events
        held = [event["finals"] for event in events if event["kind"] == "in_model"]
        self._decided: bool | None = any(held) if held else None

    @property
    def can_be_asked(self) -> bool:
        """Whether the session ends with finals, unless these fail."""
        return self._finals is not None

    def decides(self) -> bool:
        """Hold finals, unless they were held; return whether they chose the schedules."""
        if self._decided is not None:
            return self._decided
        contenders = self._contenders()
        return bool(contenders) and self._hold(contenders)

    def _contenders(self) -> dict[str, list[Trial]]:
        """Every task's contenders; empty if no task has more than one."""
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
        # Finals take long, so all earlier measurements are handed over first.
        session.journal.hand_over()
        held: dict[str, Final] = {}
        note = ""
        try:
            held = self._finals.hold(contenders, session.measurer)
        except (WorkerLostError, RequestFailedError) as fault:
            note = f"no finals in the model: {_line(fault)}"
            session.progress.say(note)
        finals = {name: final._asdict() for name, final in held.items()}
        session.note({"kind": "in_model", "finals": finals, "note": note, **session.spent()})
        return bool(held)


def _line(fault: Exception) -> str:
    """The last line of an error."""
    return str(fault).splitlines()[-1]
