"""One small checkout: the same files by `dvc repro` as by a run, damaged inputs, a few kills.

The long forms are `benchmarks/malformed.py` and `benchmarks/kills.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import kills, malformed
from benchmarks.helpers import tiny_checkout
from benchmarks.helpers.tiny_checkout import MODEL
from pipelines.runs.run_plan import log_path
from pipelines.runs.stage_process import run_stage
from pipelines.runs.warm import warm_process
from tests.waiting import until

pytestmark = pytest.mark.slow

STRATEGY = malformed.STRATEGY
PATIENCE_S = 300
# What a stage measured of itself.
TIMES = {"timing.json"}
COMPILE_S = re.compile(rb'"compile_s": [0-9.]+')


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a finished run, and the journal of a tuning that was killed."""
    root = tmp_path_factory.mktemp("maltreated") / "checkout"
    malformed.prepare(root)
    return root


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): COMPILE_S.sub(b"", path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in TIMES
    }


@pytest.mark.parametrize(
    ("stage", "folder"),
    [
        (f"import_model@{MODEL}", "import"),
        (f"extract_tasks@{MODEL}", "tasks"),
        (f"select_tasks@{MODEL}-{STRATEGY}", f"{STRATEGY}/select"),
        (f"tune@{MODEL}-{STRATEGY}", f"{STRATEGY}/tune"),
        (f"share_schedules@{MODEL}-{STRATEGY}", f"{STRATEGY}/share"),
        (f"compile@{MODEL}-{STRATEGY}", f"{STRATEGY}/compile"),
    ],
)
def test_dvc_alone_gives_the_same_files(
    root: Path, stage: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage forked by the warm process, and one that DVC starts: both from the same journal."""
    journals = root / ".fewtune" / "journals"
    if stage.startswith(("tune@", "share_schedules@")):
        _finish_journal(root, journals, tmp_path, stage.partition("@")[0])
    shutil.copytree(journals, tmp_path / "journals")
    environment = tiny_checkout.environment(root)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with warm_process(root):
        ending = run_stage(root, stage, log_path(root, stage), lambda line: None, force=True)
    assert ending.exit_code == 0, ending.error
    forked = files(root / "out" / MODEL / folder)
    shutil.rmtree(journals)
    shutil.copytree(tmp_path / "journals", journals)
    command = [sys.executable, "-m", "dvc", "repro", "--force", "--single-item", stage]
    subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True)
    shutil.rmtree(journals, ignore_errors=True)
    shutil.copytree(tmp_path / "journals", journals)
    started = files(root / "out" / MODEL / folder)
    assert forked.keys() == started.keys()
    assert [name for name in forked if forked[name] != started[name]] == []


def _finish_journal(root: Path, journals: Path, scratch: Path, stage: str) -> None:
    """Have the journal of a stage begun, or gone on with, to its end, and keep it."""
    links = scratch / "links"
    command = [sys.executable, "-m", f"stages.{stage}", "--model", MODEL, "--strategy", STRATEGY]
    environment = tiny_checkout.environment(root)
    with subprocess.Popen(command, cwd=root, env=environment) as process:
        # A stage that ends well removes its own.
        while process.poll() is None:
            for journal in (journals / MODEL / STRATEGY / stage).glob("*.jsonl"):
                link = links / journal.relative_to(journals)
                link.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    link.hardlink_to(journal)
            time.sleep(0.01)
    assert process.returncode == 0
    assert list((links / MODEL / STRATEGY / stage).iterdir())
    shutil.copytree(links, journals, dirs_exist_ok=True)


def test_damaged_inputs_end_in_a_sentence(root: Path, tmp_path: Path) -> None:
    malformed.keep(root, tmp_path)
    chance = random.Random(1)
    drawn = list(malformed.cases(root, chance))
    chance.shuffle(drawn)
    one_of_each = {case.kind: case for case in drawn}
    rows = [malformed.run_case(root, case, tmp_path) for case in one_of_each.values()]
    assert [row for row in rows if row["faults"]] == []


@pytest.mark.parametrize("stage", ["tune", "share_schedules"])
def test_an_interrupt_in_a_terminal_ends_a_run(root: Path, stage: str) -> None:
    kills.reset(root)
    run = kills.begin(root)
    log, said = root / "run.log", f"{stage}@{MODEL}-{STRATEGY}: >"
    until(lambda: said in log.read_text() or run.poll() is not None, PATIENCE_S)
    assert run.poll() is None, log.read_text()
    started = psutil.Process(run.pid).children(recursive=True)
    # All of a terminal's foreground group are interrupted at once.
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(PATIENCE_S) == 130
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
    said = log.read_text()
    assert said.endswith("fewtune: interrupted; the same command goes on\n")
    assert "Traceback" not in said


def test_a_killed_run_loses_and_leaves_nothing(root: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.kills", "--kills", "3", "--seed", "2"]
    done = subprocess.run(
        [*command, "--checkout", str(root), "--run-s", "20"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
