"""What recorded results were made of and with: whether two are of one model, what was set anew."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SOURCE, _SHA256, _BINDING = "model.source", "model.source_sha256", "model.binding"
_SEEDED = re.compile(r"light:\S+ seed \d+")
_NO_SETTINGS = ("model.", "machine.")
_SEED = ".seed"


def is_same_model(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether two records' parameters name one model, with the same inputs bound.

    `fewtune add --replace` gives a name to another model, whose latency says nothing of the first.
    A seeded model has no file: versions of ONNX write the same one differently. What an earlier
    version did not record yet counts as equal.
    """
    seeded = any(_SEEDED.fullmatch(each.get(_SOURCE, "")) for each in (before, now))
    keys = (_SOURCE if seeded else _SHA256, _BINDING)
    return all(before[key] == now[key] for key in keys if key in before and key in now)


def changed_settings(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """The settings of ``params.yaml`` that differ, such as ``tune.trials_per_task 32 to 1``.

    What only one of two records has is new in the software, and no choice of the user.
    """
    return tuple(f"{key} {before[key]} to {now[key]}" for key in _changed(before, now))


def is_made_alike(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether two records have the same settings; other seeds are luck, and no other settings."""
    return all(key.endswith(_SEED) for key in _changed(before, now))


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        key
        for key in sorted(before.keys() & now.keys())
        if not key.startswith(_NO_SETTINGS) and before[key] != now[key]
    ]
