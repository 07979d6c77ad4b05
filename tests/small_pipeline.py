"""A DVC repository of cheap shell stages over two models and two strategies.

Its stages have other names than the project's: the flow may know none of them.
"""

import os
import subprocess
import sys
from pathlib import Path

MODELS = ("good", "bad")
# Under other names than DVC's own: it reads those of every folder of a repository.
DATA = Path(__file__).parent / "data" / "small_pipeline"
PIPELINE = (DATA / "pipeline.yaml").read_text()
STEPS = '''\
"""Each step writes its output; what must exist first was checked by DVC."""

import pathlib
import shutil
import sys

step, model, *strategy = sys.argv[1:]
folder = pathlib.Path("out", model, *strategy)
folder.mkdir(parents=True, exist_ok=True)
failing = {
    line.strip(): following.split("#")[0].split(":")[1].strip()
    for line, following in zip(
        *(lambda lines: (lines, lines[1:]))(pathlib.Path("params.yaml").read_text().splitlines())
    )
    if "fail:" in following
}
if failing.get(f"{step}:") == model:
    print(f"fewtune: {step}: operator Foo of {model} cannot be imported", file=sys.stderr)
    sys.exit(2)
print(f"{step} {model}")
if step in ("prepare", "search"):
    (folder / f"{step}.txt").write_text(step)
else:
    target = folder / {"finish": "benchmark", "join": "compare"}[step]
    target.mkdir(exist_ok=True)
    ready = pathlib.Path("ready", *target.parts[1:])
    if ready.exists():
        shutil.copytree(ready, target, dirs_exist_ok=True)
    else:
        (target / "report.md").write_text(step)
'''


def make(root: Path) -> Path:
    """Make the repository in ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_bytes((DATA / "parameters.yaml").read_bytes())
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "steps.py").write_text(STEPS)
    (root / ".gitignore").write_text("/out/\n/.fewtune/\n")
    for command in (
        ["git", "init", "--quiet"],
        [sys.executable, "-m", "dvc", "init", "--quiet"],
        ["git", "add", "--all"],
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "start"],
    ):
        environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(command, cwd=root, check=True, env=environment, capture_output=True)
    return root
