"""One small checkout: the same files by `dvc repro` as by a run, damaged inputs, a kill.

The long forms are `benchmarks/malformed.py` and `benchmarks/kills.py`.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks import kills, malformed
from benchmarks.helpers import tiny_checkout
from benchmarks.helpers.tiny_checkout import MODEL
from fewtune.process.warm import warm_process
from tests.waiting import until

ENDING = "fewtune: ending with the best so far; interrupt again to end at once"

pytestmark = pytest.mark.slow

STRATEGY = malformed.STRATEGY
PATIENCE_S = 300
JOURNALS = Path(".fewtune", "journals")
# Those that do most of the work, and the names of their folders.
STAGES = {"predict": "predict", "tune": "tune", "share_schedules": "share", "compile": "compile"}
# What a stage measured of itself.
TIMES = {"timing.json"}
SECONDS = re.compile(rb'"(?:compile|predicting|elapsed)_s": [0-9.]+')


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A checkout whose run was killed and went on to its end, and what was seen of that.

    It holds the journal of a tuning that was killed as well. Beside it, in ``journals``, are those
    of the run.
    """
    root = tmp_path_factory.mktemp("maltreated") / "checkout"
    tiny_checkout.make(root)
    command = [sys.executable, "-m", "benchmarks.kills", "--kills", "1", "--seed", "4"]
    with _keeping_journals(root / JOURNALS / MODEL, root.with_name("journals")):
        seen = subprocess.run(
            [*command, "--checkout", str(root), "--run-s", "20"],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
        )
    malformed.prepare(root)
    return root, seen


@pytest.fixture(scope="module")
def root(killed):
    return killed[0]


@contextlib.contextmanager
def _keeping_journals(journals: Path, kept: Path) -> Iterator[None]:
    """Keep the first journal of each stage within the block: a stage that ends removes its own."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(0.05):
            for journal in journals.glob("*/*/*.jsonl"):
                link = kept / journal.relative_to(journals)
                if not link.parent.exists():
                    link.parent.mkdir(parents=True)
                    with contextlib.suppress(FileNotFoundError):
                        link.hardlink_to(journal)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): SECONDS.sub(b"", path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in TIMES
    }


def test_a_killed_run_loses_and_leaves_nothing(killed):
    _, seen = killed
    assert seen.returncode == 0, seen.stdout + seen.stderr


def test_dvc_alone_gives_the_same_files(root, tmp_path):
    """Stages forked by the warm process, and stages that DVC starts; both measured the same."""
    out, journals = root / "out" / MODEL / STRATEGY, root / JOURNALS
    forked = {stage: files(out / folder) for stage, folder in STAGES.items()}
    shutil.move(journals, tmp_path / "killed")
    shutil.copytree(root.with_name("journals"), journals / MODEL)
    each_alone = [f"{stage}@{MODEL}-{STRATEGY}" for stage in STAGES]
    subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--force", "--single-item", *each_alone],
        cwd=root,
        env=tiny_checkout.environment(root),
        check=True,
        capture_output=True,
    )
    shutil.rmtree(journals)
    shutil.move(tmp_path / "killed", journals)
    for stage, folder in STAGES.items():
        started = files(out / folder)
        assert forked[stage].keys() == started.keys()
        assert [name for name in started if forked[stage][name] != started[name]] == [], stage


def test_damaged_inputs_end_in_a_sentence(root, tmp_path):
    malformed.copy_kept(root, tmp_path)
    chance = random.Random(1)
    drawn = list(malformed.cases(root, chance))
    chance.shuffle(drawn)
    one_of_each = {case.kind: case for case in drawn}
    with warm_process([]):
        rows = [malformed.run_case(root, case, tmp_path) for case in one_of_each.values()]
    assert [row for row in rows if row["faults"]] == []


def test_a_second_interrupt_in_a_terminal_ends_a_run(root):
    # What it needs stays up to date.
    tiny_checkout.set_parameters(root, {"share_schedules.seed": 2})
    run, log = kills.begin(root), root / "run.log"
    # A session that measures has made the file that asks it to end.
    temporary = root.with_name(f"{root.name}.beside")
    until(lambda: [*temporary.rglob("end *")] or run.poll() is not None, PATIENCE_S)
    assert run.poll() is None, log.read_text()
    # All of a terminal's foreground group are interrupted at once.
    os.killpg(run.pid, signal.SIGINT)
    until(lambda: ENDING in log.read_text(), PATIENCE_S)
    started = psutil.Process(run.pid).children(recursive=True)
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(PATIENCE_S) == 130
    _, alive = psutil.wait_procs(started, timeout=120)
    assert alive == []
    said = log.read_text()
    assert said.endswith("fewtune: interrupted; the same command goes on\n")
    assert "Traceback" not in said
