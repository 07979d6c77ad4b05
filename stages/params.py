"""``params.yaml``: one section a stage, each checked before any work starts.

A section's keys, types and limits are those of the option class that the library function of the
stage takes; nothing is declared twice. Each stage loads its own section only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fewtune.errors import InputError, quoted
from fewtune.model.registration import RESERVED_NAMES, check_name
from fewtune.stages.paths import Places
from fewtune.util.validation import complaint, nearest

# Where the options of each section live, imported when needed: TVM takes seconds to load.
SECTIONS = {
    "fingerprint": "fewtune.machine.fingerprint:FingerprintOptions",
    "import_model": "fewtune.options:ImportSection",
    "extract_tasks": "fewtune.options:ExtractOptions",
    "build_bank": "fewtune.options:BankOptions",
    "predict": "fewtune.options:PredictOptions",
    "select_tasks": "fewtune.options:SelectOptions",
    "tune": "fewtune.options:TuneOptions",
    "share_schedules": "fewtune.options:ShareOptions",
    "compile": "fewtune.options:CompileOptions",
    "benchmark": "fewtune.options:BenchmarkOptions",
    "compare": "fewtune.options:CompareOptions",
}
# Sections that hold a mapping for each strategy.
PER_STRATEGY = {"build_bank", "select_tasks"}
# A model's own settings, by section, over those of all. Sections of no model have none.
BY_MODEL = "by_model"
OF_MODEL = [name for name in SECTIONS if name not in ("fingerprint", "extract_tasks", "build_bank")]
# In the environment, as JSON: settings of models for one run, over those of the file.
RUN_SETTINGS = "FEWTUNE_SETTINGS"
LISTS = ("models", "strategies", "compared")
COMPARED = ("selective", "full")
# Folders that stand beside the models' own, and beside the strategies' own.
RESERVED = {"models": tuple(sorted(RESERVED_NAMES)), "strategies": ("import", "tasks", "compare")}
# Options that name a file or folder, with the folder of dvc.yaml's dependencies that holds it:
# DVC would not notice a change elsewhere, and a run reads nothing outside of its checkout.
_BELOW = {"start_from": "logs", "logs": "bank", "predictor": "predictors"}
_NO_PATHS = (None, "auto", "never", "predefined")


def options_class(section: str) -> type[BaseModel]:
    """The library's option class behind a section."""
    return resolve_name(SECTIONS[section])


def load_section(
    name: str, strategy: str | None = None, path: Path | None = None, model: str | None = None
) -> Any:
    """Read and check one section.

    Parameters
    ----------
    name : str
        The section's name, which is its stage's.
    strategy : str, optional
        Which strategy's part to take, for sections that hold one for each.
    path : Path, optional
        The file, ``params.yaml`` of the current folder unless given.
    model : str, optional
        Whose own settings are taken, as stage fingerprint wrote them.

    Returns
    -------
    options : pydantic.BaseModel
        An instance of the library's option class.

    Raises
    ------
    InputError
        If the file, the section or a value in it cannot be used; one line that names the place.
    """
    path = path or Places().params
    content = read_yaml(path)
    if model is not None:
        own = json.loads(Places(path.parent).settings(model, name).read_text())
        content = merged(content, {name: own})
    return _section(content, name, strategy, path)


def load_all(path: Path | None = None) -> dict[str, Any]:
    """Read the whole file, with the settings of this run, and check it, as `check_all`."""
    path = path or Places().params
    of_run = json.loads(os.environ.get(RUN_SETTINGS, "{}"))
    return check_all(merged(read_yaml(path), {BY_MODEL: of_run} if of_run else {}), path)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``over``, at any depth."""
    both = {
        key: merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in over.items()
    }
    return {**base, **both}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by key path as a mapping of mappings."""
    found: dict[str, Any] = {}
    for key_path, value in values.items():
        for key in reversed(key_path.split(".")):
            value = {key: value}
        found = merged(found, value)
    return found


def check_all(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Check the content of the file at ``path``, and that every model it lists is registered.

    Returns
    -------
    params : dict
        The lists as lists of names, and each section's options; a section with a part for each
        strategy as a mapping from strategy to options. ``by_model`` is a mapping from model to its
        own settings, by section.

    Raises
    ------
    InputError
        At the first thing that cannot be used.
    """
    known = [*LISTS, *SECTIONS, BY_MODEL]
    for key in content:
        if key not in known:
            raise InputError(f"{path}: {key} is no section{nearest(key, known)}")
    params: dict[str, Any] = {key: _names(content, key, path) for key in LISTS}
    places = Places(path.parent)
    for model in params["models"]:
        registration = places.registration(model)
        if not registration.is_file():
            hint = nearest(model, places.registered(), "registered")
            raise InputError(
                f"{path}: models lists {model!r}, but {registration} is missing{hint}; "
                "register it with `fewtune add`"
            )
    for key, needed in {"models": params["compared"], "strategies": COMPARED}.items():
        lost = [name for name in needed if name not in params[key]]
        if lost and params["compared"]:
            raise InputError(f"{path}: {key} lacks {lost[0]!r}, which compared needs")
    for section in SECTIONS:
        params[section] = _whole_section(content, section, params["strategies"], path)
    params[BY_MODEL] = _own_settings(content, params, path)
    return params


def _own_settings(
    content: dict[str, Any], params: dict[str, Any], path: Path
) -> dict[str, dict[str, Any]]:
    """What each listed model has of its own, by section, checked with what it has not."""
    settings = _mapping(content, BY_MODEL, path) if BY_MODEL in content else {}
    for model, own in settings.items():
        if model not in params["models"]:
            hint = nearest(str(model), params["models"], "listed")
            raise InputError(f"{path}: {BY_MODEL} holds {model!r}, which is no listed model{hint}")
        if not isinstance(own, dict):
            raise InputError(f"{path}: {BY_MODEL}.{model} is {own!r}: give a mapping of sections")
        for section in own:
            if section not in OF_MODEL:
                place, hint = f"{BY_MODEL}.{model}.{section}", nearest(section, OF_MODEL)
                raise InputError(f"{path}: {place} is no section of a model{hint}")
            _whole_section(merged(content, own), section, params["strategies"], path)
    return {model: settings.get(model, {}) for model in params["models"]}


def _whole_section(content: dict[str, Any], section: str, strategies: list[str], path: Path) -> Any:
    """A section's options; a mapping from strategy to options where it has a part for each."""
    if section not in PER_STRATEGY:
        return _section(content, section, None, path)
    parts = dict.fromkeys([*strategies, *_mapping(content, section, path)])
    return {strategy: _section(content, section, strategy, path) for strategy in parts}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read ``path`` as DVC reads it (YAML 1.2, so that 1e-3 is a number).

    Raises
    ------
    InputError
        If it cannot be read, is no YAML, has a key twice, or is not a mapping.
    """
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is no UTF-8 text") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: is no mapping of sections: give {', '.join(SECTIONS)}")
    return content


def parse_yaml(text: str) -> Any:
    """The value that ``text`` stands for.

    Raises
    ------
    InputError
        If it is no YAML, with the place.
    """
    try:
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(place + quoted(getattr(error, "problem", None) or error)) from None
    except (ValueError, TypeError) as error:
        raise InputError(quoted(error)) from None
    except RecursionError:
        raise InputError("is nested too deep: give a mapping of sections") from None


def _mapping(value: dict[str, Any], key_path: str, path: Path) -> dict[str, Any]:
    """Follow ``key_path`` to a mapping."""
    key = key_path.split(".")[-1]
    if key not in value:
        raise InputError(f"{path}: {key_path} is missing{nearest(key, value)}")
    if not isinstance(value[key], dict):
        raise InputError(f"{path}: {key_path} is {value[key]!r}: give a mapping of keys to values")
    return value[key]


def _section(content: dict[str, Any], section: str, strategy: str | None, path: Path) -> Any:
    value, place = _mapping(content, section, path), section
    if strategy is not None:
        place = f"{section}.{strategy}"
        value = _mapping(value, place, path)
    _refuse_non_finite(value, place, path)
    options = options_class(section)
    try:
        # As JSON in strict mode: true is no number and "64" is none, yet a list may be a tuple.
        found = options.model_validate_json(
            json.dumps(value, default=str), strict=True, context={"root": path.parent}
        )
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error, place, options, value)}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: {place} cannot be used: {quoted(error)}") from None
    for key, folder in _BELOW.items():
        _refuse_outside(getattr(found, key, None), f"{place}.{key}", path, folder)
    return found


def _refuse_outside(value: object, place: str, path: Path, folder: str) -> None:
    """Refuse a path that leaves ``folder`` of the checkout, also by a link."""
    if value in _NO_PATHS:
        return
    root, named = path.parent.resolve(), Path(str(value))
    try:
        is_below = (root / named).resolve().is_relative_to(root / folder)
    except (OSError, ValueError):
        is_below = False
    if not is_below or named.parts[0] != folder:
        raise InputError(f"{path}: {place} is {value!r}: give {folder}, or a path below it")


def _refuse_non_finite(value: Any, place: str, path: Path) -> None:
    """Refuse .nan and .inf: YAML has them, no option means anything with them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_non_finite(inner, f"{place}.{key}", path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{path}: {place} is {value}: give a finite number")


def _names(content: dict[str, Any], key: str, path: Path) -> list[str]:
    """A list of distinct plain names."""
    value = content.get(key)
    if not isinstance(value, list) or not (value or key != "strategies"):
        raise InputError(f"{path}: {key} is {value!r}: give a list of names")
    for name in value:
        holds = f"{path}: {key} holds {name!r}"
        if name in RESERVED.get(key, ()):
            folders = ", ".join(RESERVED[key])
            raise InputError(f"{holds}: not {folders}, which are folders of their own")
        try:
            check_name(str(name))
        except InputError:
            rule = "lower-case letters, digits, '_', '.' and '-', beginning with a letter or digit"
            raise InputError(f"{holds}: give names of {rule}") from None
        if not isinstance(name, str):
            raise InputError(f"{holds}: put it in quotes to make it a name")
        if value.count(name) > 1:
            raise InputError(f"{holds} twice")
    return value
