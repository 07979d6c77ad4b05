"""A DVC repository of cheap shell stages over two models and two strategies.

Its stages have other names than the project's: the flow may know none of them.
"""

import os
import subprocess
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
params, failing = pathlib.Path("params.yaml").read_text().splitlines(), {}
for section, line in zip(params, params[1:]):
    if "fail:" in line:
        failing[section] = line.split("#")[0].split(":")[1].strip()
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
    # As `dvc init` does, which takes seconds.
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc" / "config").touch()
    (root / ".gitignore").write_text("/out/\n/ready/\n/.fewtune/\n/.dvc/tmp\n/.dvc/cache\n")
    (root / "params.yaml").write_bytes((DATA / "parameters.yaml").read_bytes())
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "steps.py").write_text(STEPS)
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "-qm", "start"]):
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", *command], cwd=root, check=True, env=environment)
    return root
