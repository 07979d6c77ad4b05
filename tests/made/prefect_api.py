"""Requests to a Prefect server."""

import json
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

_PATIENCE_S = 120


def ask(environment: dict[str, str], path: str, content: object = None) -> Any:
    """The answer of the server that an environment names; ``content`` is posted."""
    request = urllib.request.Request(
        f"{environment['PREFECT_API_URL']}/{path}",
        None if content is None else json.dumps(content).encode(),
        {"Content-Type": "application/json"},
    )
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            # Prefect's answer while its SQLite file is busy: its own clients ask again, too.
            if refused.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)
