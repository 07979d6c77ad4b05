"""Models' files under DVC, so that another clone can pull them.

Models with seeded weights have no files but their registration, which is in git.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from fewtune.errors import quoted
from fewtune.process.child_python import child_python
from fewtune.stages.paths import Places


def dvc_root(folder: Path) -> Path | None:
    """The top folder of the DVC repository around ``folder``."""
    return next((each for each in (folder, *folder.parents) if (each / ".dvc").is_dir()), None)


def model_files(root: Path, models: Iterable[str]) -> list[str]:
    """The files of the models' folders without their registrations, as paths in the checkout."""
    return [
        str(path.relative_to(root))
        for registration in map(Places(root).registration, models)
        for path in sorted(registration.parent.iterdir())
        if path != registration and path.suffix != ".dvc" and not path.name.startswith(".")
    ]


def track(root: Path, files: Sequence[str]) -> str:
    """Put ``files`` under DVC, as `dvc add` does, if the checkout is a DVC repository.

    Returns
    -------
    error : str
        Why that was not possible, and what to do, in one line; empty if all is well.
    """
    if not files or dvc_root(root) is None:
        return ""
    # A process of its own: in this one DVC would print its advice about git after each file.
    command = [child_python(), "-m", "dvc", "add", "--quiet", *files]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    why = (done.stderr.strip() or f"it ended with code {done.returncode}").splitlines()[0]
    return (
        f"the model is not under DVC ({quoted(why)}), so no other clone can pull it: "
        f"dvc add {' '.join(files)}"
    )
