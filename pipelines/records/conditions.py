"""What recorded results were made of and with: whether two are of one model, what was set anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SOURCE, _SHA256, _BINDING = "model.source", "model.source_sha256", "model.binding"
_SEEDED = re.compile(r"(light|zoo):\S+ seed \d+")
_VERSION = "machine.versions."
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


def changes(before: Any, now: Any) -> list[str]:
    """What differs between the data of two runs, such as ``tune.trials_per_task 32 to 1``.

    Settings of ``params.yaml``, then versions of software. A setting that only one of them has is
    new in the software, and no choice of the user.
    """
    old, new = ({**_versions(it.params), "fewtune": it.tags["git_commit"]} for it in (before, now))
    versions = [
        f"{name} {old.get(name, 'none')} to {new.get(name, 'none')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    settings = _changed(before.params, now.params)
    return [f"{key} {before.params[key]} to {now.params[key]}" for key in settings] + versions


def is_made_alike(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether two records have the same settings; other seeds are luck, and no other settings."""
    return all(key.endswith(_SEED) for key in _changed(before, now))


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        key
        for key in sorted(before.keys() & now.keys())
        if not key.startswith(_NO_SETTINGS) and before[key] != now[key]
    ]


def _versions(params: Mapping[str, str]) -> dict[str, str]:
    own = (key for key in params if key.startswith(_VERSION))
    return {key.removeprefix(_VERSION): params[key] for key in own}
