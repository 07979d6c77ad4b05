"""Write docs/parameters.md from the option classes: ``python docs/generate_parameters.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

sys.path.insert(0, str(Path(__file__).parent.parent))

from fewtune.stages.params import PER_STRATEGY, SECTIONS, options_class

PAGE = Path(__file__).parent / "parameters.md"
_HEAD = """\
# Parameters

The keys of `params.yaml`, a section a stage. A stage reads its own section only. Unknown keys and
impossible values are refused by name before any work starts. Keys that are left out take their
defaults. Made by `python docs/generate_parameters.py`.

`models` and `strategies` list what `dvc repro` makes: every model under every strategy. `compared`
lists models whose selective and full tuning are measured side by side. `fewtune run` adds what it
is asked for. Sections marked with STRATEGY hold a mapping for each strategy.
"""


def _type_name(kind: Any) -> str:
    """A type as a reader of YAML knows it."""
    if kind is NoneType:
        return "null"
    if get_origin(kind) is Annotated:
        return _type_name(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(kind))
    if get_args(kind):
        return " or ".join(_type_name(each) for each in get_args(kind))
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}[
        kind.__name__
    ]


def page() -> str:
    """The whole page as markdown."""
    parts = [_HEAD]
    for section in SECTIONS:
        fields = options_class(section).model_fields
        title = f"{section}.STRATEGY" if section in PER_STRATEGY else section
        parts.append(f"## {title}\n")
        if not fields:
            parts.append("No keys.\n")
            continue
        rows = ["| key | type | default | meaning |", "| :--- | :--- | :--- | :--- |"]
        for key, field in fields.items():
            default = "null" if field.default is None else str(field.default)
            meaning = (field.description or "seed of everything random").replace("|", "or")
            rows.append(f"| `{key}` | {_type_name(field.annotation)} | `{default}` | {meaning} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
