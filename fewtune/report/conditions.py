"""The conditions of figures as text: the machine, the target, the versions, the rounds."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fewtune.artifacts import Conditions


def target_name(target: str) -> str:
    """A TVM target as kind, processor and extensions, such as ``llvm rocketlake +avx512bf16``."""
    try:
        config = json.loads(target)
    except ValueError:
        return target
    if not isinstance(config, dict):
        return str(config)
    processor = config.get("mcpu") or config.get("arch")
    words = (config.get("kind"), processor, *config.get("mattr", ()))
    return " ".join(str(word) for word in words if word)


def conditions_text(conditions: Conditions) -> str:
    """Conditions in one line of text, without its end."""
    machine = conditions.fingerprint
    named = sorted({**machine.versions, **conditions.peers}.items())
    versions = ", ".join(f"{name} {version}" for name, version in named)
    code = f"fewtune {conditions.commit}, " if conditions.commit else ""
    copies = f" of {conditions.copies} copies" if conditions.copies > 1 else ""
    if conditions.processes > 1:
        copies += f" in {conditions.processes} processes"
    return (
        f"{machine.device}, target {target_name(machine.target)}, {machine.threads} threads; "
        f"{conditions.trials_per_task} trials a task, {conditions.rounds} rounds{copies}, "
        f"seed {conditions.seed}; {conditions.date}; {code}{versions}"
    )


def conditions_lines(labelled: Sequence[tuple[str, Conditions]]) -> list[str]:
    """One line for each set of conditions; labelled only if there are several.

    Parameters
    ----------
    labelled : sequence of (str, Conditions)
        What was measured, and its conditions.
    """
    groups: dict[str, list[str]] = {}
    for label, conditions in labelled:
        # Results of one session differ only in the second of their end.
        key = conditions.model_copy(update={"date": conditions.date[:10]})
        groups.setdefault(conditions_text(key), []).append(label)
    if len(groups) == 1:
        return [f"Measured on {text}." for text in groups]
    return [f"{', '.join(labels)}: measured on {text}." for text, labels in groups.items()]
