"""Write docs/api.md from the docstrings of what users call: ``python docs/generate_api.py``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import fewtune

PAGE = Path(__file__).parent / "api.md"
_HEAD = """\
# API

What `import fewtune` offers, by its docstrings. Made by `python docs/generate_api.py`.
"""
_RULE = re.compile(r"^(\w+)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*)\n((?:(?:    .*)?\n)*)", re.MULTILINE)


def _prose(text: str) -> str:
    """A docstring's text as markdown: single and double backquotes mark code alike."""
    return re.sub(r"`+([^`\n]+)`+", r"`\1`", inspect.cleandoc(text))


def _entries(section: str) -> str:
    """A NumPy section's entries as a list."""
    lines = []
    for head, body in _ENTRY.findall(f"{section.strip()}\n"):
        name, _, kind = head.partition(" : ")
        meaning = " ".join(_prose(body).split())
        said = f"- `{name}`" + (f" ({kind})" if kind else "")
        lines.append(f"{said}: {meaning}" if meaning else said)
    return "\n".join(lines)


def documented(text: str) -> str:
    """A NumPy docstring as markdown."""
    about, *sections = _RULE.split(f"{inspect.cleandoc(text)}\n")
    parts = [_prose(about).strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        text = _prose(body).strip() if title == "Notes" else _entries(body)
        parts.append(f"*{title}*\n\n{text}")
    return "\n\n".join(part for part in parts if part)


def _signature(name: str, what: Any) -> str:
    """A call with its defaults; types stand below it."""
    given = []
    keyword_only = False
    for parameter in inspect.signature(what).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            given.append("*")
            keyword_only = True
        given.append(str(parameter.replace(annotation=parameter.empty)))
    return f"`{name}({', '.join(given)})`"


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """The public methods and properties of a class, with their docstrings."""
    for name, member in vars(kind).items():
        text = inspect.getdoc(member)
        if name.startswith("_") or not text:
            continue
        if inspect.isfunction(member):
            yield _signature(name, member), text
        elif isinstance(member, property):
            yield f"`{name}`", text


def page() -> str:
    """The whole page as markdown."""
    parts = [_HEAD]
    for name in sorted(fewtune.__all__, key=str.lower):
        what = getattr(fewtune, name)
        is_error = inspect.isclass(what) and issubclass(what, Exception)
        # What only fewtune makes has attributes, which stand below.
        is_made = is_error or is_dataclass(what)
        title = f"`{name}`" if is_made else _signature(name, what)
        parts.append(f"## {title}\n\n{documented(inspect.getdoc(what) or '')}\n")
        if inspect.isclass(what) and not is_error:
            parts += [f"### {head}\n\n{documented(text)}\n" for head, text in _members(what)]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
