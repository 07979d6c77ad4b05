"""Results and progress on Prefect's page, in addition to a run's tasks.

If the page cannot be reached, the log gets a line; measurements are not affected.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.exceptions import PrefectException

from fewtune.report import kernel_tables, tables
from fewtune.util.table import MISSING

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
        line = " ".join(str(fault).split()) or type(fault).__name__
        get_run_logger().warning("not shown on Prefect's page: %s", line)


def publish_result(result: tables.Result) -> None:
    """Show one result's latencies and kernels as markdown."""
    name = f"{result.model}-{result.strategy}"
    with _if_prefect_answers():
        create_markdown_artifact(
            kernel_tables.benchmark_markdown(result.benchmark),
            key=artifact_key(f"result-{name}"),
            description=f"Latencies and kernels of {name}",
        )


def publish_results(results: Sequence[tables.Result]) -> None:
    """Show the results table, as a table and as markdown with the comparison of strategies."""
    if not results:
        return
    with _if_prefect_answers():
        create_table_artifact(
            _filled(tables.results_table(results).records()),
            key="results-table",
            description="All results on disk; `results` says how they were measured",
        )
        create_markdown_artifact(
            tables.results_markdown(results), key="results", description="All results on disk"
        )


def _filled(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows without columns that are empty in all of them: Prefect shows a dash as a bullet."""
    known = [name for name in rows[0] if any(row[name] != MISSING for row in rows)]
    return [{name: "" if row[name] == MISSING else row[name] for name in known} for row in rows]


def publish_fleet(markdown: str, picture: bytes) -> None:
    """Show the fleet's results over time."""
    with _if_prefect_answers():
        create_markdown_artifact(markdown, key="fleet", description="Latency over time")
        create_image_artifact(
            f"data:image/png;base64,{base64.b64encode(picture).decode()}",
            key="fleet-picture",
            description="Latency over time",
        )


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
