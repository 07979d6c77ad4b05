"""The house's three floors: imports only go down, and the DAG is written once."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from setuptools import find_packages

PROJECT = Path(__file__).parent.parent
ORCHESTRATION = {"prefect", "dvc", "mlflow"}
FORBIDDEN = {
    "fewtune": {"stages", "pipelines"} | ORCHESTRATION,
    "stages": {"pipelines"} | ORCHESTRATION,
    "pipelines": set(),
}
STAGES = list(YAML(typ="safe").load((PROJECT / "dvc.yaml").read_text())["stages"])


def sources(floor: str) -> list[Path]:
    files = sorted((PROJECT / floor).rglob("*.py"))
    assert files, f"{floor}/ has no Python file"
    return files


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, by statement or by ``import_module("...")``."""
    packages: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            packages |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            packages.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            first = node.args[0]
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                packages.add(str(first.value).split(".")[0])
    return packages


@pytest.mark.parametrize("floor", FORBIDDEN)
def test_imports_only_go_down(floor: str) -> None:
    wrong = {
        f"{path.relative_to(PROJECT)} imports {package}"
        for path in sources(floor)
        for package in imported(path) & FORBIDDEN[floor]
    }
    assert not wrong


def test_every_package_is_installed() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    include = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {
        ".".join(path.parent.relative_to(PROJECT).parts)
        for floor in FORBIDDEN
        for path in (PROJECT / floor).rglob("__init__.py")
    }
    assert {*find_packages(str(PROJECT), include=include)} == packages


def test_the_library_does_not_know_the_stages_places() -> None:
    """No file of the library names a folder that stages write."""
    for path in sources("fewtune"):
        for text in string_constants(path):
            assert not text.startswith(("out/", "models/")), f"{path}: {text!r}"


def string_constants(path: Path) -> list[str]:
    """Every string of a file but its docstrings."""
    tree = ast.parse(path.read_text(), str(path))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]


def test_no_stage_is_named_in_the_flow() -> None:
    """The flow reads stages and edges from DVC.

    Words that are plain English as well (tune, compile, benchmark, compare, fingerprint) may be
    names of other things, such as a section of an override; the flow's own file has none of them.
    """
    telling = {stage for stage in STAGES if "_" in stage}
    for path in sources("pipelines"):
        names = set(STAGES) if path.stem == "flow" else telling
        for text in string_constants(path):
            stage = text.split("@")[0]
            assert stage not in names, f"{path}: {text!r} names a stage"


def test_each_stage_has_its_file_and_lists_it() -> None:
    stages = YAML(typ="safe").load((PROJECT / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        assert (PROJECT / "stages" / f"{name}.py").is_file()
        assert f"stages/{name}.py" in stage["deps"]
        assert stage["cmd"].startswith(f"python -m stages.{name}")
        sections = {parameter.split(".")[0] for parameter in stage["params"]}
        assert sections == {name}, f"stage {name} reads sections other than its own"


def test_each_stage_is_about_a_screen_and_loads_its_own_section() -> None:
    for name in STAGES:
        path = PROJECT / "stages" / f"{name}.py"
        assert len(path.read_text().splitlines()) <= 80, f"{path} is longer than a stage should be"
        calls = {
            node.args[0].value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "load_section"
            and isinstance(node.args[0], ast.Constant)
        }
        assert calls <= {name}


def test_only_places_spells_paths() -> None:
    for path in sources("stages"):
        if path.name == "places.py":
            continue
        for text in string_constants(path):
            assert not text.startswith(("out/", "models/", ".fewtune")), f"{path}: {text!r}"
