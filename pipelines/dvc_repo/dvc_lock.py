"""Reads `dvc.lock`: the hashes of outputs and the parameters of stages that ran."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fewtune.errors import InputError
from fewtune.stages.params import PER_STRATEGY, SECTIONS, options_class, read_yaml
from fewtune.stages.paths import Places


class DvcLock:
    """The lock file of the checkout at ``root``.

    Raises
    ------
    InputError
        If there is none: nothing was run through DVC.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        content = read_yaml(Places(root).lock)
        self._stages: dict[str, Any] = content.get("stages") or {}

    def hashes(self, directory: Path) -> dict[str, str]:
        """The hash of each output at or below ``directory``, by its path.

        Raises
        ------
        InputError
            If no stage has written there.
        """
        found = {}
        for stage in self._stages.values():
            for output in stage.get("outs") or []:
                path = self._root / output["path"]
                if path == directory or directory in path.parents:
                    found[output["path"]] = str(output.get("md5") or output.get("hash"))
        if not found:
            raise InputError(
                f"{directory} is not in dvc.lock: let DVC run the stage that writes it"
            )
        return found

    def key(self, directory: Path) -> str:
        """Sixteen hex digits that change when an output at or below ``directory`` does."""
        text = json.dumps(self.hashes(directory), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def parameters(self, stages: Iterable[str], strategy: str) -> dict[str, str]:
        """The parameters of ``stages``, defaults included, flattened to key paths.

        A section with a part for each strategy is named without the strategy, so that two results
        can be compared.
        """
        flat: dict[str, str] = {}
        for name in stages:
            files = self._stages.get(name, {}).get("params") or {}
            for values in files.values():
                for key, value in values.items():
                    section = key.removesuffix(f".{strategy}")
                    whole = {**_defaults(section), **value} if isinstance(value, dict) else value
                    flatten(whole, section, flat)
            for section, own in self._own_settings(name).items():
                flatten(own.get(strategy, {}) if section in PER_STRATEGY else own, section, flat)
        return flat

    def _own_settings(self, stage: str) -> dict[str, Any]:
        """What the stage's model had of its own by section, unless that has changed since."""
        found = {}
        for each in self._stages.get(stage, {}).get("deps") or []:
            path = self._root / each["path"]
            if Places(self._root).all_settings in path.parents and path.is_file():
                content = path.read_bytes()
                if hashlib.md5(content).hexdigest() == each.get("md5"):
                    found[path.stem] = json.loads(content)
        return found


def _defaults(section: str) -> dict[str, Any]:
    """The defaults of a section's options; none where this software has no such section."""
    if section not in SECTIONS:
        return {}
    fields = options_class(section).model_fields
    return {name: field.get_default() for name, field in fields.items() if not field.is_required()}


def flatten(value: Any, place: str, into: dict[str, str]) -> None:
    """Write the leaves of ``value`` into ``into``, under their key paths from ``place``."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            flatten(inner, f"{place}.{key}", into)
    elif value != {}:
        into[place] = value if isinstance(value, str) else json.dumps(value)
