"""A stage ends with the process that started it, and knows the commit of its code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fewtune.stages.commit import commit
from tests.waiting import until

PROJECT = Path(__file__).parents[2]
STAGES = [
    f"fewtune.stages.{path.stem}"
    for path in sorted((PROJECT / "stages").glob("*.py"))
    if 'main("' in path.read_text()
]
STAGE = """
import os, pathlib, sys, time
from fewtune.stages.command import main

note = sys.argv.pop()

def run(stage: object) -> None:
    try:
        pathlib.Path(note).write_text(str(os.getpid()))
        time.sleep(1000)
    finally:
        pathlib.Path(note + ".tidied").touch()

main("test", run)
"""
# As `fewtune run` does: names itself, and starts one process that starts the stage.
STARTER = """
import os, subprocess, sys
os.environ["FEWTUNE_RUN_PID"] = str(os.getpid())
middle = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
subprocess.run([sys.executable, "-c", middle, *sys.argv[1:]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["run", "parent"])
def test_a_stage_ends_with_its_run_and_with_its_parent(tmp_path, killed):
    note = tmp_path / "pid"
    command = [sys.executable, "-c", STARTER, STAGE, str(note)]
    starter = subprocess.Popen(command, cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)})
    try:
        until(lambda: note.exists() and note.read_text())
        stage = psutil.Process(int(note.read_text()))
        victim = starter.pid if killed == "run" else stage.ppid()
        os.kill(victim, signal.SIGKILL)
        # As one that is interrupted: what it had begun is tidied up.
        stage.wait(120)
        assert Path(f"{note}.tidied").exists()
    finally:
        starter.kill()
        starter.wait()


@pytest.mark.parametrize("module", [*STAGES, "fewtune.tuning.job"])
def test_an_interrupt_during_imports_leaves_no_traceback(tmp_path, module):
    # What each of them imports.
    stub = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "pydantic.py").write_text(stub)
    path = os.pathsep.join([str(tmp_path), str(PROJECT)])
    ended = subprocess.run(
        [sys.executable, "-m", module],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


USER = ["-c", "user.name=t", "-c", "user.email=t@example.org"]


def test_what_using_the_software_changes_is_none_of_its_code(tmp_path):
    assert commit(tmp_path) is None
    (tmp_path / "results").mkdir()
    for name in ("params.yaml", "dvc.lock", "results/table.md", "code.py"):
        (tmp_path / name).write_text("first\n")
    for arguments in (["init", "-q"], ["add", "-A"], [*USER, "commit", "-qm", "start"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    name = commit(tmp_path)
    assert name is not None
    assert len(name) == 10
    for used in ("params.yaml", "dvc.lock", "results/table.md", "new"):
        (tmp_path / used).write_text("second\n")
    assert commit(tmp_path) == name
    (tmp_path / "code.py").write_text("second\n")
    assert commit(tmp_path) == f"{name}+"
