"""What a DVC process that was killed leaves in its own files, and a later one stumbles over."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

_FOLDER = Path(".dvc", "tmp")
_FILE, _GUARD = "rwlock", "rwlock.lock"


def mend_rwlock(root: Path) -> None:
    """Remove DVC's list of outputs in use if it was cut off while it was written.

    DVC empties the file, then writes it; killed in between, or on a full disk, it leaves a file
    that every later `dvc repro` refuses. Entries of processes that live are written anew by them.

    Parameters
    ----------
    root : Path
        The checkout.
    """
    file = root / _FOLDER / _FILE
    if _is_whole(file):
        return
    from dvc.lock import LockError, make_lock

    # Held by a DVC process that writes the file just now: then it will be whole.
    with contextlib.suppress(LockError, OSError):
        guard = make_lock(str(file.with_name(_GUARD)), tmp_dir=str(file.parent))
        with guard:
            if not _is_whole(file):
                file.unlink()


def _is_whole(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except ValueError:
        return False
    except OSError:
        return True
