"""Results and progress on Prefect's page, in addition to a run's tasks.

If the page cannot be reached, the log gets a line; measurements are not affected.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.exceptions import PrefectException

from fewtune.errors import one_line

# What Prefect's client raises if its server is away, slow, or refuses a request.
_AWAY = (httpx.HTTPError, PrefectException, OSError, RuntimeError)


def artifact_key(text: str) -> str:
    """``text`` in the form of Prefect's keys: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@contextmanager
def _if_prefect_answers() -> Iterator[None]:
    """Show something; if that fails, log it and go on."""
    try:
        yield
    except _AWAY as fault:
        line = one_line(fault) or type(fault).__name__
        get_run_logger().warning("not shown on Prefect's page: %s", line)


def publish(name: str, markdown: str, description: str, picture: bytes | None = None) -> None:
    """Show a page, and a PNG beside it."""
    with _if_prefect_answers():
        key = artifact_key(name)
        create_markdown_artifact(markdown, key=key, description=description)
        if picture is not None:
            image = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            create_image_artifact(image, key=f"{key}-picture", description=description)


class StageProgress:
    """Follows the progress file of a running stage, if it writes one.

    Parameters
    ----------
    path : Path
        Removed at first: it may be of an earlier run.
    name : str
        The stage.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._artifact: UUID | None = None
        self._shown = ""
        path.unlink(missing_ok=True)

    def poll(self) -> None:
        """Bring the artifact up to date; called from inside the stage's task."""
        try:
            text = self._path.read_text()
            snapshot = json.loads(text)
            percentage = 100.0 * snapshot["trials"] / max(1, snapshot["trials_total"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if text == self._shown:
            return
        self._shown = text
        with _if_prefect_answers():
            self._show(min(100.0, max(0.0, percentage)), _described(self._name, snapshot))

    def _show(self, percentage: float, description: str) -> None:
        if self._artifact is None:
            created = create_progress_artifact(
                progress=percentage, key=artifact_key(self._name), description=description
            )
            self._artifact = UUID(str(created))
        else:
            update_progress_artifact(
                artifact_id=self._artifact, progress=percentage, description=description
            )


def _described(name: str, snapshot: dict[str, object]) -> str:
    """A stage's progress in one line; unknown figures are left out."""
    parts = [f"{name}: {snapshot['trials']} of {snapshot['trials_total']} trials"]
    for key, form in (
        ("task", "{}"),
        ("best_ms", "best {:.4g} ms"),
        ("default_ms", "default {:.4g} ms"),
        ("estimated_latency_ms", "model about {:.4g} ms"),
        ("elapsed_s", "{:.0f} s"),
        ("left_s", "about {:.0f} s left"),
    ):
        value = snapshot.get(key)
        if value is not None:
            parts.append(form.format(value))
    return ", ".join(parts)
