"""A run's outcome: the results it made, the failures and their reasons, what was skipped."""

from __future__ import annotations

from dataclasses import dataclass, field

from fewtune.errors import FAULT, INTERRUPTED, TERMINATED, printable
from fewtune.pipelines.dvc_repo.dag import Result, Stage

# Exit codes of errors that a user can mend (fewtune.errors), and of signals.
SPECIFIC = frozenset({2, 3, 4, 5, 6, INTERRUPTED, TERMINATED})


@dataclass(frozen=True)
class Failure:
    """A stage that failed, or a result that could not be recorded; of one model unless empty."""

    what: str
    model: str
    error: str
    exit_code: int

    def line(self) -> str:
        """What failed and why."""
        return printable(f"{self.what}: {self.error}" if self.what else self.error)


@dataclass
class Outcome:
    """The outcome so far; a run adds to it."""

    finished: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """What the command returns: the failures' code if they agree on a specific one, else 1."""
        if not self.failures:
            return 0
        codes = {failure.exit_code for failure in self.failures}
        return codes.pop() if len(codes) == 1 and codes <= SPECIFIC else FAULT

    def fail(self, stage: Stage, error: str, exit_code: int) -> None:
        """Note that ``stage`` failed."""
        model = stage.result.model if stage.result else ""
        self.failures.append(Failure(stage.name, model, error, exit_code))

    def refuse(self, error: str, exit_code: int) -> None:
        """Note that the run as a whole cannot begin or go on."""
        self.failures.append(Failure("", "", error, exit_code))

    def blocked_by(self, stage: Stage) -> str | None:
        """The stage whose failure keeps ``stage`` from running, if any."""
        failed = {failure.what for failure in self.failures}
        for need in stage.needs:
            if need in failed:
                return need
            if need in self.skipped:
                return self.skipped[need]
        return None

    def message(self) -> str:
        """The run in one line: which models failed, with the reason, or what is up to date."""
        results = [str(result) for result in self.finished if result.strategy]
        finished, plural = ", ".join(results), "" if len(results) == 1 else "s"
        if not self.failures:
            return f"{len(results)} result{plural} up to date: {finished}"
        # A regression, or a run that cannot begin, is no model's failure.
        failed = [each for each in self.failures if each.what]
        models = list(dict.fromkeys(each.model or "every model" for each in failed))
        parts = [f"{', '.join(models)} failed"] if models else []
        parts += [each.line() for each in self.failures]
        if self.skipped:
            parts.append(f"skipped for it: {', '.join(self.skipped)}")
        if finished:
            parts.append(f"up to date: {finished}")
        return "; ".join(parts)
