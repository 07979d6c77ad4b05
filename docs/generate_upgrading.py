"""Write docs/upgrading-tvm.md from the hooks: ``python docs/generate_upgrading.py``."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parent.parent
PAGE = Path(__file__).parent / "upgrading-tvm.md"
HOOKS = PROJECT / "fewtune" / "tvm_compat"
_HEAD = """\
# Upgrading TVM

Every place that touches TVM's inside is a function of `fewtune/tvm_compat`, with the test that
fails without it; its docstring says why TVM needs it. After an upgrade, run
`pytest tests/tvm_compat` and these tests first. Made by `python docs/generate_upgrading.py`.
"""


class Hook(NamedTuple):
    """A function that touches TVM's inside; ``test`` is empty if its docstring names none."""

    file: str
    name: str
    why: str
    test: str


def hooks() -> list[Hook]:
    """The public functions of the room, by file."""
    found = []
    for path in sorted(HOOKS.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                text = ast.get_docstring(node) or ""
                test = re.search(r"^Test: (\S+)$", text, re.MULTILINE)
                why = " ".join(text.partition("\n\n")[0].partition("\nTest:")[0].split())
                found.append(Hook(path.name, node.name, why, test[1] if test else ""))
    return found


def page() -> str:
    """The whole page as markdown."""
    rows = ["| file | hook | what it does | test |", "| :--- | :--- | :--- | :--- |"]
    rows += [f"| `{h.file}` | `{h.name}` | {h.why} | `{h.test}` |" for h in hooks()]
    return _HEAD + "\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
