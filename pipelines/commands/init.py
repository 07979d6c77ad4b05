"""What `fewtune init` does: a project in a user's own git repository."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from fewtune.errors import InputError, MachineError, quoted
from fewtune.pipelines.checkout.project import git_root, is_project
from fewtune.pipelines.commands.show import shown, tell
from fewtune.pipelines.dvc_repo.track import dvc_root
from fewtune.process.child_python import child_python
from fewtune.stages.paths import Places
from fewtune.util.files import write_text

# The files of fewtune's own checkout.
_TEMPLATE = Path(__file__).parents[1] / "template"
# A project has no code of the stages, which DVC could watch.
_CODE = re.compile(r"( *deps:\n *- stages/\w+\.py\n(?! *- ))|( *- stages/\w+\.py\n)")
_MODELS = re.compile(r"^models:   (.*\n)(- .*\n)+", re.MULTILINE)


def init(options: argparse.Namespace) -> int:
    """Write the pipeline and what belongs to it into a folder of its own."""
    import dvc  # noqa: F401 (missing where the library alone is installed)

    folder = Path(options.folder).resolve()
    top = git_root(folder)
    if top is None:
        raise InputError(f"{folder} is in no git repository: `git init` makes one")
    places = Places(folder)
    if places.pipeline.exists() and not is_project(folder):
        raise InputError(
            f"{shown(places.pipeline)} is a pipeline of your own: name another folder, as "
            "`fewtune init FOLDER`"
        )
    has_dvc = dvc_root(folder)
    if has_dvc is None:
        command = [child_python(), "-m", "dvc", "init", "--quiet"]
        done = subprocess.run(command, cwd=top, capture_output=True, text=True)
        if done.returncode:
            raise MachineError(f"`dvc init` failed in {top}: {quoted(done.stderr.strip())}")
        tell(f"{shown(top / '.dvc')}: a DVC repository")
    for path, text in _files(places, has_dvc or top).items():
        # The pipeline is fewtune's, and may be of an earlier version; all else is the user's.
        is_old = path == places.pipeline and path.exists() and path.read_text() != text
        if is_old or not path.exists():
            write_text(path, text)
            tell(f"{shown(path)}{' is brought up to date' if is_old else ''}")
    tell("tune with: fewtune run MODEL.onnx")
    return 0


def _files(places: Places, repository: Path) -> dict[Path, str]:
    """What a project consists of, by path."""
    texts = {path: path.read_text() for path in sorted(_TEMPLATE.rglob("*")) if path.is_file()}
    named = {str(path.relative_to(_TEMPLATE)): text for path, text in texts.items()}
    made = {
        places.pipeline: _CODE.sub("", named.pop("pipeline.yaml")),
        places.params: _MODELS.sub(r"models: []\1", named.pop("params.yaml")),
        # What runs write; the rest is of fewtune's own development.
        places.root / ".gitignore": named.pop("gitignore").partition("\n\n")[0] + "\n",
    }
    for name, text in named.items():
        is_plot = name.startswith("plots/")
        made[(repository / ".dvc" if is_plot else places.root) / name] = text
    return made
