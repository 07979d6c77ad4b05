"""A DVC repository of cheap shell stages over two models and two strategies.

Its stages have other names than the project's: the flow may know none of them.
"""

import os
import subprocess
import sys
from pathlib import Path

MODELS = ("good", "bad")
STRATEGIES = ("selective", "full")
PARAMS = """\
models: [good, bad]   # two models
strategies: [selective, full]
prepare:
  fail: bad           # the model whose stage fails
search:
  trials: 4
finish:
  fail: nothing
"""
PIPELINE = """\
stages:
  look:
    cmd: mkdir -p out && echo machine > out/look.txt
    always_changed: true
    outs: [out/look.txt]
  prepare:
    matrix:
      model: ${models}
    cmd: python steps.py prepare ${item.model}
    deps: [out/look.txt]
    params: [prepare]
    outs: ["out/${item.model}/prepare.txt"]
  search:
    matrix:
      model: ${models}
      strategy: ${strategies}
    cmd: python steps.py search ${item.model} ${item.strategy}
    deps: ["out/${item.model}/prepare.txt"]
    params: [search]
    outs: ["out/${item.model}/${item.strategy}/search.txt"]
  finish:
    matrix:
      model: ${models}
      strategy: ${strategies}
    cmd: python steps.py finish ${item.model} ${item.strategy}
    deps: ["out/${item.model}/${item.strategy}/search.txt"]
    params: [finish]
    outs: ["out/${item.model}/${item.strategy}/benchmark"]
  join:
    matrix:
      model: ${models}
    cmd: python steps.py join ${item.model}
    deps: ["out/${item.model}/selective/benchmark", "out/${item.model}/full/benchmark"]
    outs: ["out/${item.model}/compare"]
"""
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
    (root / "params.yaml").write_text(PARAMS)
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
