"""Errors that a user can mend. The command line prints them in one line.

Any other exception is a fault of this software and keeps its traceback.
"""

from __future__ import annotations

import errno

# The system's errors for a full or broken disk, missing permissions and exhausted memory.
MACHINES_FAULT = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOMEM}
    | {errno.EMFILE, errno.ENFILE, errno.EAGAIN}
)

# Those of a disk alone.
DISKS_FAULT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
# Exit codes of what a signal ended: 128 and its number.
INTERRUPTED, TERMINATED = 130, 143


class FewtuneError(Exception):
    """Something the user can mend: what is wrong, where, what to do, in one line.

    Attributes
    ----------
    exit_code : int
        What a command that ends on this error returns to its shell.
    """

    exit_code = 2


class InputError(FewtuneError):
    """A model, a name, a shape or a parameter that cannot be used as it was given."""


class MachineError(FewtuneError):
    """The machine lacks what the run needs: a device, a target, a compiler, disk space."""

    exit_code = 3


class VerificationError(FewtuneError):
    """What was made disagrees with its reference by more than the stated bound.

    A compiled model with onnxruntime.
    """

    exit_code = 4


class JournalError(FewtuneError):
    """A tuning journal is damaged or belongs to another machine, target or TVM version."""

    exit_code = 5


class RegressionError(FewtuneError):
    """A model became slower than it was on the same machine, by more than the noise."""

    exit_code = 6


def disk_line(error: OSError) -> str:
    """What the system refused, in one sentence."""
    what = f"{error.filename}: " if error.filename else ""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space" if full else "mend that"
    reason = (error.strerror or str(error)).lower()
    return f"{what}{reason}; {advice} and run again: what was measured is kept"
