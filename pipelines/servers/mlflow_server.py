"""MLflow's server for one checkout, in one process: nothing answers without the secret.

MLflow's own command starts further processes and knows no secret unless a package is added. Beside
the secret, artifacts are read and written only below the checkout, and no link is followed: an
experiment may name any folder, and a link in it any file.
"""

from __future__ import annotations

import argparse
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.server.constants import (
    ARTIFACT_ROOT_ENV_VAR,
    ARTIFACTS_DESTINATION_ENV_VAR,
    BACKEND_STORE_URI_ENV_VAR,
    SERVE_ARTIFACTS_ENV_VAR,
)
from mlflow.store.artifact.artifact_repository_registry import _artifact_repository_registry
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import get_uri_scheme

from fewtune.pipelines.servers.server import LOCALHOST, SECRET, basic

# They lead to other artifacts, which are then looked up by their own addresses.
_INDIRECT = ("runs", "models", "mlflow-artifacts")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Guarded:
    """An ASGI application behind HTTP's basic authentication."""

    def __init__(self, application: Any, secret: str) -> None:
        self._application, self._expected = application, basic(secret).encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on if it shows the secret."""
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "lifespan" or hmac.compare_digest(given, self._expected):
            await self._application(scope, receive, send)
        elif scope["type"] == "http":
            asked = [(b"www-authenticate", b'Basic realm="fewtune"'), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 401, "headers": asked})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})


class ProjectArtifacts(LocalArtifactRepository):
    """Artifacts below the checkout, which is the current folder."""

    def __init__(self, artifact_uri: str, *arguments: Any, **options: Any) -> None:
        require_inside(artifact_uri)
        super().__init__(artifact_uri, *arguments, **options)

    def get_local_path(self, artifact_path: str) -> str:
        """The path of an artifact that exists."""
        _refuse_links(self._below(artifact_path))
        return super().get_local_path(artifact_path)

    def download_artifacts(self, artifact_path: str, dst_path: str | None = None) -> str:
        """Copy an artifact, or name it where it lies."""
        path = self._below(artifact_path)
        _refuse_links(path, *path.rglob("*"))
        return super().download_artifacts(artifact_path, dst_path)

    def list_artifacts(self, path: str | None = None) -> list[Any]:
        """What a folder holds, without links."""
        _refuse_links(self._below(path))
        return [
            each for each in super().list_artifacts(path) if not self._below(each.path).is_symlink()
        ]

    def delete_artifacts(self, artifact_path: str | None = None) -> None:
        """Remove an artifact or a folder."""
        _refuse_links(self._below(artifact_path))
        super().delete_artifacts(artifact_path)

    def _get_or_create_artifact_dir(self, artifact_path: str | None = None) -> str:
        # Every way of writing makes its folder here, then puts a new file in an old one's place.
        _refuse_links(self._below(artifact_path))
        return super()._get_or_create_artifact_dir(artifact_path)

    def _below(self, artifact_path: str | None) -> Path:
        return Path(os.path.normpath(Path(self.artifact_dir) / (artifact_path or "")))


def require_inside(artifact_uri: str) -> None:
    """Refuse artifacts that lie outside of the checkout."""
    path = local_file_uri_to_path(artifact_uri) if _is_local(artifact_uri) else "/"
    _refuse_links(Path(os.path.normpath(Path.cwd() / path)))


def _is_local(artifact_uri: str) -> bool:
    return get_uri_scheme(artifact_uri) in ("", "file")


def _refuse_links(*paths: Path) -> None:
    """Refuse paths outside of the checkout, and those that lead through a link."""
    root = Path.cwd()
    for path in paths:
        inside = [each for each in (path, *path.parents) if each.is_relative_to(root)]
        if not inside or any(each.is_symlink() for each in inside[:-1]):
            raise MlflowException.invalid_parameter_value(
                "artifacts are those of this checkout, and no links"
            )


def application(store: str, secret: str) -> Guarded:
    """MLflow's application over ``store`` for the checkout in the current folder."""
    os.environ[BACKEND_STORE_URI_ENV_VAR] = store
    os.environ[ARTIFACT_ROOT_ENV_VAR] = "mlflow-artifacts:/"
    os.environ[ARTIFACTS_DESTINATION_ENV_VAR] = str(Path.cwd() / "mlartifacts")
    os.environ[SERVE_ARTIFACTS_ENV_VAR] = "true"
    for scheme in list(_artifact_repository_registry.get_registered_artifact_repositories()):
        if scheme not in _INDIRECT:
            _artifact_repository_registry.register(scheme, ProjectArtifacts)
    from mlflow.server import app as pages
    from mlflow.server.fastapi_app import app

    @pages.before_request
    def refuse_elsewhere() -> tuple[str, int] | None:
        from flask import request

        given = request.get_json(silent=True) if request.path.endswith("experiments/create") else {}
        location = given.get("artifact_location") if isinstance(given, dict) else None
        try:
            if location and get_uri_scheme(location) not in _INDIRECT:
                require_inside(location)
        except MlflowException as error:
            return error.serialize_as_json(), 400
        return None

    return Guarded(app, secret)


def _main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    served = application(os.environ["MLFLOW_TRACKING_URI"], os.environ.pop(SECRET))
    uvicorn.run(served, host=LOCALHOST, port=port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    _main()
