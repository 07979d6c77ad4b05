"""A checkout with made results, as DVC would have left it, and commands that are refused in it."""

import hashlib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fewtune.artifacts import ImportReport
from fewtune.pipelines.cli import main
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.stages.paths import Places
from tests.made import results as made

MODEL = "net"
SELECTIVE, FULL = Result(MODEL, "selective"), Result(MODEL, "full")
STAGES = ["tune@net-{}", "benchmark@net-{}"]


class Checkout:
    """A checkout with made results and the dvc.lock that DVC would have written."""

    def __init__(self, root: Path) -> None:
        self.root, self.places = root, Places(root)
        root.mkdir(parents=True, exist_ok=True)
        self.places.params.write_text(
            f"models: [{MODEL}]\nstrategies: [selective, full]\ntune: {{seed: 0}}\n"
        )
        self.log = root / "tune.log"
        self.log.write_text("measured\n")
        self.settings = {"trials_per_task": 64}

    def write(self, result: Result, **figures: object) -> None:
        directory = self.places.benchmarked(result.model, result.strategy)
        made.write_result(directory, result.model, result.strategy, **figures)
        made.curve().write(self.places.shared(result.model, result.strategy))
        compiled = self.places.compiled(result.model, result.strategy)
        made.compiled(result.model, result.strategy).write(compiled)
        made.write_library(compiled / "model.so")
        made.imported(result.model).write(self.places.imported(result.model))
        self.lock()

    def change_model(self, result: Result, **changes: object) -> None:
        """Make the result one of another file, or of other bound inputs, under the same name."""
        folder = self.places.imported(result.model)
        ImportReport.read(folder).model_copy(update=changes).write(folder)
        self.lock()

    def compare(self, **figures: float) -> None:
        directory = self.places.compared(MODEL)
        made.comparison(MODEL, **figures).write(directory)
        (directory / "report.md").write_text("# compared\n")
        self.lock()

    def lock(self) -> None:
        stages = {}
        for file in sorted(self.places.out.rglob("*")):
            if file.is_file():
                path = str(file.relative_to(self.root))
                digest = hashlib.md5(file.read_bytes()).hexdigest()
                stages[path] = {"outs": [{"path": path, "md5": digest}]}
        for strategy in ("selective", "full"):
            method = {"method": "cliques" if strategy == "selective" else "all"}
            parameters = {"tune": self.settings, f"select_tasks.{strategy}": method}
            stages[f"tune@net-{strategy}"] = {"params": {"params.yaml": parameters}}
        with (self.root / "dvc.lock").open("w") as stream:
            YAML().dump({"schema": "2.0", "stages": stages}, stream)

    def record(self, result: Result) -> str:
        from fewtune.pipelines.records import record  # MLflow takes seconds to load

        stages = [stage.format(result.strategy) for stage in STAGES]
        return record.record_result(self.root, result, stages, [self.log])

    def measured(self, result: Result, **figures: object) -> str:
        """Write a result and record it."""
        self.write(result, **figures)
        return self.record(result)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The one line that a refused command says."""
    capsys.readouterr()
    assert main(arguments) == code
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("fewtune: ")
    return line.removeprefix("fewtune: ")
