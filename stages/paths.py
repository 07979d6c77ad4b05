"""Where things lie in a checkout: beside ``dvc.yaml``, the only file that spells paths."""

from __future__ import annotations

from pathlib import Path


class Places:
    """The files and folders of one checkout.

    Parameters
    ----------
    root : Path
        The checkout's top folder; stages run there, so its default is the current folder.
    """

    def __init__(self, root: Path = Path()) -> None:
        self.root = root
        # The parameters of every stage.
        self.params = root / "params.yaml"
        # The pipeline's definition.
        self.pipeline = root / "dvc.yaml"
        # What DVC knows of the stages that ran.
        self.lock = root / "dvc.lock"
        # Registered models, a folder each.
        self.models = root / "models"
        # Tuning logs of models tuned before, a folder each.
        self.banked_logs = root / "bank"
        # Predictors of the user's own.
        self.predictors = root / "predictors"
        # Everything that stages write.
        self.out = root / "out"
        # Journals and logs of work under way; never an output of a stage.
        self.scratch = root / ".fewtune"
        # Output of stage fingerprint.
        self.fingerprint = self.out / "fingerprint"
        # The folder of all models' own settings.
        self.all_settings = self.out / "settings"

    def settings(self, model: str, section: str) -> Path:
        """Output of stage fingerprint: what ``model`` has of its own in a section."""
        return self.all_settings / model / f"{section}.json"

    def bank(self, strategy: str) -> Path:
        """Output of stage build_bank."""
        return self.out / "bank" / strategy

    def registration(self, model: str) -> Path:
        """The file that registers ``model``."""
        return self.models / model / "model.yaml"

    def registered(self) -> list[str]:
        """Names of all registered models, sorted."""
        return sorted(file.parent.name for file in self.models.glob("*/model.yaml"))

    def imported(self, model: str) -> Path:
        """Output of stage import_model."""
        return self.out / model / "import"

    def tasks(self, model: str) -> Path:
        """Output of stage extract_tasks."""
        return self.out / model / "tasks"

    def predicted(self, model: str, strategy: str) -> Path:
        """Output of stage predict."""
        return self.out / model / strategy / "predict"

    def selected(self, model: str, strategy: str) -> Path:
        """Output of stage select_tasks."""
        return self.out / model / strategy / "select"

    def tuned(self, model: str, strategy: str) -> Path:
        """Output of stage tune."""
        return self.out / model / strategy / "tune"

    def shared(self, model: str, strategy: str) -> Path:
        """Output of stage share_schedules."""
        return self.out / model / strategy / "share"

    def compiled(self, model: str, strategy: str) -> Path:
        """Output of stage compile."""
        return self.out / model / strategy / "compile"

    def benchmarked(self, model: str, strategy: str) -> Path:
        """Output of stage benchmark."""
        return self.out / model / strategy / "benchmark"

    def compared(self, model: str) -> Path:
        """Output of stage compare."""
        return self.out / model / "compare"

    def figures(self, model: str, kind: str) -> Path:
        """The figures of a strategy's result, or of the comparison, that DVC shows; in git."""
        return self.root / "metrics" / model / f"{kind}.json"

    def journal(self, model: str, strategy: str, stage: str) -> Path:
        """What a measuring stage keeps as it goes, to resume from when it is killed."""
        return self.scratch / "journals" / model / strategy / stage

    def log(self, stage: str) -> Path:
        """All output of a stage's last run."""
        return self.scratch / "logs" / f"{stage.replace('/', '-')}.log"
