"""The child's side of `fewtune.process.apart`: ``python -m``, place of the job, folder, parent."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from pkgutil import resolve_name
from typing import NoReturn

from fewtune.process.child_python import end_by_interrupts, end_with_parent, is_child_of

if __name__ == "__main__":
    # Before anything that takes time to load.
    end_by_interrupts()

from fewtune.process import apart
from fewtune.process.apart import Reply
from fewtune.process.contexts import without_gc


def main(place: str, folder: Path, parent: int) -> NoReturn:
    """Do the job that ``folder`` holds, for the process ``parent``; end this process."""
    end_with_parent()
    if not is_child_of(parent):
        # The parent ended while this process was loading.
        os._exit(1)
    # Temporary files go where the parent removes them, however this process ends.
    tempfile.tempdir = str(folder)
    apart.keep_note_in(folder / apart.NOTE)
    try:
        with without_gc(for_good=True):
            kind = resolve_name(place)
        job = kind.model_validate(json.loads((folder / apart.JOB).read_text()))
        reply = Reply(job.run())
    except Exception as fault:  # noqa: BLE001 (the parent raises it)
        reply = Reply.of_fault(fault)
        if reply.trace and kind.shows_output:
            print(reply.trace, file=sys.stderr)
    whole = folder / f"{apart.REPLY}.part"
    whole.write_text(json.dumps(vars(reply)))
    whole.rename(folder / apart.REPLY)
    sys.stdout.flush()
    # Loaded libraries may crash when they are unloaded.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
