"""Settings of Prefect, MLflow and DVC: embedded, quiet, inside the project.

Importing this module sets them, so it comes before prefect and mlflow, which read the environment
when they are imported. Whatever the user has set stays: ``MLFLOW_TRACKING_URI`` or
``PREFECT_API_URL`` point the same code at real servers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from fewtune.errors import InputError, MachineError
from fewtune.pipelines.checkout.project import find_root
from fewtune.pipelines.servers.server import LOCALHOST, new_secret
from fewtune.stages.paths import Places

_SQLITE = "sqlite:///"
_EVERYWHERE = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # A first start makes Prefect's database: 12 s on two cores, more than a minute on a slow disk.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_API_HOST": LOCALHOST,
    # DVC caches results, so Prefect need not keep what a task returns.
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    # Jobs that MLflow's server runs by itself would disturb measurements.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    # No retries if the tracking server is away: results are on disk, a later run records them.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "8",
    # A page of another origin may neither read nor change anything.
    "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
    "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "true",
}


def local_file(uri: str) -> Path | None:
    """The file of a store of MLflow's that is one."""
    path = uri.removeprefix(_SQLITE).partition("?")[0]
    return Path(path) if uri.startswith(_SQLITE) and path else None


def default_tracking_uri(root: Path) -> str:
    """MLflow's SQLite file of the checkout at ``root``."""
    return f"{_SQLITE}{root / 'mlflow.db'}"


def protect() -> None:
    """Give a Prefect server that is started from here a new secret, which its clients need.

    Changing a deployment means running commands as the user that serves it. No other user of the
    machine and no web page may do that. A server that exists already has its own secret.
    """
    if os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        return
    secret = os.environ["PREFECT_SERVER_API_AUTH_STRING"] = new_secret()
    os.environ["PREFECT_API_AUTH_STRING"] = secret
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = f"http://{LOCALHOST}"


def _set(values: Mapping[str, str]) -> None:
    """Set what the user has not set."""
    os.environ |= {name: value for name, value in values.items() if not os.environ.get(name)}


def prepare(root: Path) -> None:
    """Set what belongs to the checkout at ``root``, and make the folder of Prefect's database.

    Raises
    ------
    MachineError
        If that folder cannot be made: Prefect's server would retry for minutes.
    """
    home = str(Places(root).scratch / "prefect")
    _set({"PREFECT_HOME": home, "MLFLOW_TRACKING_URI": default_tracking_uri(root)})
    protect()
    home = os.environ["PREFECT_HOME"]
    try:
        Path(home).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"{home} cannot be made ({error.strerror}): Prefect keeps its database there; set "
            "PREFECT_HOME to a folder that can be written"
        ) from None


_set(_EVERYWHERE)
# Outside a checkout, only settings that do not depend on it can be set.
with contextlib.suppress(InputError):
    prepare(find_root())
