"""MLflow's store for results: its experiment, and how runs are found again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fewtune.pipelines.checkout import environment

# isort: split
from mlflow import MlflowClient
from mlflow.entities import Experiment, LoggedModelOutput, Run
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_USER
from sqlalchemy.exc import SQLAlchemyError

from fewtune.errors import MachineError, masked, one_line

EXPERIMENT = "fewtune"
# This tag is written last: a run without it was interrupted, and is no record.
KEY = "fewtune.result"
STARTED = "fewtune.recording"
# The tag of a machine, without its software's versions.
MACHINE = "fewtune.machine"
# What disturbed the measurement; without this tag nothing did.
DISTURBED = "disturbed"
_RECORDED = "fewtune.recorded_ms"
_SHOWN = ("latency_ms", "times_onnxruntime", "tuning_s")
# MLflow's limit.
_MOST_RUNS = 50_000


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Turn MLflow's exceptions into errors of one line."""
    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        uri = masked(os.environ.get("MLFLOW_TRACKING_URI", ""))
        why = one_line(error)[:300]
        raise MachineError(
            f"MLflow at {uri} cannot be used: {why}; results are on disk, and the next "
            "`fewtune run` or `fewtune record` records them"
        ) from error


def make_whole(path: Path) -> None:
    """Make a file in which MLflow finds all its tables, unless there is one.

    MLflow makes its tables one by one in a second or two, and cannot use a file in which a killed
    process has made only some of them.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        made = Path(folder) / path.name
        # MLflow makes the tables when it opens the file.
        MlflowClient(tracking_uri=f"sqlite:///{made}").get_experiment("0")
        # If another process was faster, its file may hold runs already.
        with contextlib.suppress(FileExistsError):
            os.link(made, path)


class Store:
    """MLflow's store with this project's experiment in it.

    Parameters
    ----------
    root : Path
        The checkout, which holds the artifacts unless a server does.

    Raises
    ------
    MachineError
        If the store cannot be reached.
    """

    def __init__(self, root: Path) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or environment.default_tracking_uri(root)
        # As it may be shown.
        self.uri = masked(uri)
        # MLflow reads its level once, which is too late if another package loaded it before.
        logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])
        # It warns where an environment has no pip, which a bundle does not need.
        logging.getLogger("mlflow.utils.environment").setLevel(logging.ERROR)
        with _reported():
            file = environment.local_file(uri)
            if file is not None:
                make_whole(file)
            self.client = MlflowClient(tracking_uri=uri)
            experiment = self._experiment(root, uri)
            if experiment.lifecycle_stage == "deleted":
                self.client.restore_experiment(experiment.experiment_id)
            self.experiment_id: str = experiment.experiment_id

    def _experiment(self, root: Path, uri: str) -> Experiment:
        """The project's experiment, made if there is none."""
        if self.client.get_experiment_by_name(EXPERIMENT) is None:
            # Absolute, so that a run started in a subfolder finds the same files.
            local = uri == environment.default_tracking_uri(root)
            location = (root / "mlartifacts").as_uri() if local else None
            # If it cannot be made, a worker in another clone has made it first, or it is not found.
            with contextlib.suppress(MlflowException):
                self.client.create_experiment(EXPERIMENT, location)
        found = self.client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            raise MlflowException(f"experiment {EXPERIMENT!r} cannot be made")
        return found

    def page(self) -> str:
        """The address of the runs' table on the server, with the columns that matter."""
        view = {"selectedColumns": [f"metrics.`{it}`" for it in _SHOWN] + [f"tags.`{DISTURBED}`"]}
        tag = "mlflow.sharedViewState.results"
        with _reported():
            self.client.set_experiment_tag(self.experiment_id, tag, json.dumps(view))
        # Without the type the page opens as the traces of a language model.
        query = "workflowType=machine_learning&viewStateShareKey=results"
        return f"/#/experiments/{self.experiment_id}/runs?{query}"

    def place(self, run_id: str) -> str:
        """Where people find a run: its address on a server, else its id."""
        if not self.uri.startswith(("http://", "https://")):
            return f"run {run_id}"
        return f"{self.uri.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{run_id}"

    def find(self, tags: Mapping[str, str]) -> list[Run]:
        """Runs with all of ``tags``, the latest first."""
        terms = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
        with _reported():
            found = self.client.search_runs(
                [self.experiment_id], " and ".join(terms), max_results=_MOST_RUNS
            )
        return sorted(found, key=_measured, reverse=True)

    def results(self) -> list[Run]:
        """The runs of all recorded results, the latest first."""
        return [run for run in self.find({}) if KEY in run.data.tags]

    def recorded(self, key: str) -> Run | None:
        """The whole run recorded under ``key``, if there is one."""
        return next(iter(self.find({KEY: key})), None)

    @contextlib.contextmanager
    def recording(self, key: str, run_name: str, span_ms: tuple[int, int]) -> Iterator[str]:
        """Record a run under ``key``, whole or not at all; gives its id.

        What an interrupted recording of the same key left is deleted first. ``span_ms`` is when the
        run began and ended, in milliseconds since 1970.
        """
        began_ms, ended_ms = span_ms
        tags = {
            STARTED: key,
            _RECORDED: str(time.time_ns() // 10**6),
            MLFLOW_USER: os.environ.get("USER", "unknown"),
        }
        with _reported():
            for left in self.find({STARTED: key}):
                if left.data.tags.get(KEY) != key:
                    self._delete_run(left.info.run_id)
            run = self.client.create_run(self.experiment_id, began_ms, tags, run_name)
            run_id = run.info.run_id
            try:
                yield run_id
                self.client.set_tag(run_id, KEY, key)
                self.client.set_terminated(run_id, end_time=ended_ms)
            except BaseException:
                self._delete_run(run_id)
                raise

    def _delete_run(self, run_id: str) -> None:
        """Delete a run, the model that it made, and that model's versions in the registry.

        An alias of such a version would name a model that cannot be loaded.
        """
        outputs = self.client.get_run(run_id).outputs
        for made in outputs.model_outputs if outputs else ():
            self.client.delete_logged_model(made.model_id)
        for version in self.client.search_model_versions(f"run_id = '{run_id}'"):
            self.client.delete_model_version(version.name, version.version)
        self.client.delete_run(run_id)

    def model(self, run_id: str, name: str, tags: Mapping[str, str]) -> str:
        """Begin a model that ``run_id`` makes; gives its id. It goes with the run."""
        own = {key: value for key, value in tags.items() if not key.startswith("mlflow.")}
        model = self.client.create_logged_model(
            self.experiment_id, name, source_run_id=run_id, tags=own, model_type="tvm"
        )
        self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        return model.model_id


def _measured(run: Run) -> tuple[int, int]:
    """The end of a run; for runs in the same second, the time of recording."""
    ended_ms = run.info.end_time or run.info.start_time
    return ended_ms, int(run.data.tags.get(_RECORDED, "0"))
