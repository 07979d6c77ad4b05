"""Where results are recorded: MLflow's store, its experiment, and how a run is found again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipelines import environment

# isort: split
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from fewtune.errors import MachineError

EXPERIMENT = "fewtune"
# Written last: a run without it was interrupted, and is no record.
KEY = "fewtune.result"
STARTED = "fewtune.recording"
TABLE_KEY = "fewtune.results_table"
_PAGE = 1000


@contextmanager
def _reported() -> Iterator[None]:
    """Turn what MLflow raises into one line."""
    try:
        yield
    except MlflowException as error:
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        line = " ".join(str(error).split())
        raise MachineError(
            f"MLflow at {uri} cannot be used: {line[:300]}; results are on disk, and the next "
            "`fewtune run` or `fewtune record` records them"
        ) from error


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
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or environment.default_tracking_uri(root)
        with _reported():
            self.client = MlflowClient(tracking_uri=self.uri)
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
            if experiment is not None and experiment.lifecycle_stage == "deleted":
                self.client.restore_experiment(experiment.experiment_id)
            if experiment is None:
                # Absolute, so that a run started in a subfolder finds the same files.
                local = self.uri == environment.default_tracking_uri(root)
                location = (root / "mlartifacts").as_uri() if local else None
                self.experiment_id: str = self.client.create_experiment(EXPERIMENT, location)
            else:
                self.experiment_id = experiment.experiment_id

    def find(self, tags: Mapping[str, str]) -> list[Run]:
        """Runs with all of ``tags``, the latest first."""
        terms = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
        with _reported():
            return list(
                self.client.search_runs(
                    [self.experiment_id],
                    filter_string=" and ".join(terms),
                    order_by=["attributes.start_time DESC"],
                    max_results=_PAGE,
                )
            )

    def recorded(self, key: str, tag: str = KEY) -> Run | None:
        """The whole run recorded under ``key``, if there is one."""
        return next(iter(self.find({tag: key})), None)

    @contextmanager
    def recording(self, key: str, run_name: str, tag: str = KEY) -> Iterator[str]:
        """Record a run under ``key``, whole or not at all; gives its id.

        What an interrupted recording of the same key left is deleted first.
        """
        with _reported():
            for left in self.find({STARTED: key}):
                if left.data.tags.get(tag) != key:
                    self.client.delete_run(left.info.run_id)
            run = self.client.create_run(self.experiment_id, tags={STARTED: key}, run_name=run_name)
            run_id = run.info.run_id
            try:
                yield run_id
                self.client.set_tag(run_id, tag, key)
                self.client.set_terminated(run_id)
            except BaseException:
                self.client.delete_run(run_id)
                raise
