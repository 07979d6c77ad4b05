"""Settings: written into params.yaml, whose comments stay, or of one run."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML

from fewtune.errors import InputError
from fewtune.stages.params import (
    BY_MODEL,
    LISTS,
    RUN_SETTINGS,
    check_all,
    merged,
    nested,
    parse_yaml,
    read_yaml,
)
from fewtune.util.files import write_bytes

MODELS = LISTS[0]
_UNSET = object()


def change_parameters(
    path: Path,
    values: Mapping[str, Any] | None = None,
    lists: Mapping[str, Iterable[str]] = MappingProxyType({}),
    own: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """Set parameters and list names: all of it, or nothing if the whole file is not accepted.

    ``own`` are settings of the models in ``lists`` alone, by key path.

    Returns
    -------
    lines : list of str
        One for each change, such as ``params.yaml: tune.trials_per_task 64 -> 32``.

    Raises
    ------
    InputError
        If the file cannot be read, or would not be accepted after the change.
    """
    text, lines, _ = changed_parameters(path, values or {}, lists, own)
    if lines:
        write_bytes(path, text.encode())
    return lines


def changed_parameters(
    path: Path,
    values: Mapping[str, Any],
    lists: Mapping[str, Iterable[str]] = MappingProxyType({}),
    own: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[str, list[str], dict[str, Any]]:
    """What `change_parameters` would write, its lines, and all parameters, checked."""
    read_yaml(path)  # says what is wrong with a file that cannot be changed
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    content = yaml.load(path.read_text(encoding="utf-8"))
    lines = [
        line for key_path, value in values.items() for line in _set(content, key_path, value, path)
    ]
    for key, names in lists.items():
        listed = content.get(key)
        if not isinstance(listed, list):
            raise InputError(f"{path}: {key} is {listed!r}: give a list of names")
        new = [name for name in dict.fromkeys(names) if name not in listed]
        listed.extend(new)
        lines += [f"{path.name}: {key} + {name}" for name in new]
    for name in lists.get(MODELS, ()) if own else ():
        settings = content[BY_MODEL] = content.get(BY_MODEL) or {}
        settings[name] = merged(settings.get(name) or {}, nested(own))
        lines += [f"{path.name}: {key} {value} for {name}" for key, value in own.items()]
    stream = io.StringIO()
    yaml.dump(content, stream)
    text = stream.getvalue()
    try:
        # As it will be read.
        params = check_all(parse_yaml(text), path)
    except InputError as fault:
        if not lines:
            raise
        # The file is not at fault, and the user may not have touched it.
        reason = str(fault).removeprefix(f"{path}: ")
        raise InputError(f"{path.name} stays as it was: {reason}") from fault
    return text, lines, params


@contextlib.contextmanager
def of_run(models: Iterable[str], own: Mapping[str, Any]) -> Iterator[None]:
    """Hand settings to stage fingerprint, which writes down what each model has of its own."""
    os.environ[RUN_SETTINGS] = json.dumps(dict.fromkeys(models, nested(own)))
    try:
        yield
    finally:
        del os.environ[RUN_SETTINGS]


def budgets(trials: int | None, budget_s: float | None) -> dict[str, Any]:
    """Trials a task and seconds of tuning, where they are given, by key path."""
    given = {
        "tune.trials_per_task": trials,
        "tune.budget_s": budget_s,
        "share_schedules.budget_s": budget_s,
    }
    return {key: value for key, value in given.items() if value is not None}


def parse_setting(text: str) -> tuple[str, Any]:
    """Split ``KEY.PATH=VALUE``; the value is read as YAML.

    Raises
    ------
    InputError
        If it has another form.
    """
    key_path, equals, value = text.partition("=")
    if not equals or not all(key_path.split(".")):
        raise InputError(f"{text!r} sets nothing: give KEY.PATH=VALUE, such as tune.seed=1")
    try:
        return key_path, parse_yaml(value)
    except InputError as error:
        raise InputError(f"{text[:100]!r}: the value is no YAML: {error}") from None


def _set(content: Any, key_path: str, value: Any, path: Path) -> list[str]:
    *parents, key = key_path.split(".")
    place = content
    for depth, parent in enumerate(parents):
        if not isinstance(place.get(parent), dict):
            reached = ".".join(parents[: depth + 1])
            raise InputError(f"{path}: {reached} is no section: {key_path} cannot be set")
        place = place[parent]
    old = place.get(key, _UNSET)
    if old == value and isinstance(old, bool) == isinstance(value, bool):
        return []
    place[key] = value
    return [f"{path.name}: {key_path} {_shown(old)} -> {_shown(value)}"]


def _shown(value: Any) -> str:
    if value is _UNSET:
        return "unset"
    return "null" if value is None else str(value)
