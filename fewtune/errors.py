"""Errors that a user can mend. The command line prints them in one line.

Any other exception is a fault of this software and keeps its traceback.
"""

from __future__ import annotations

import errno
import re

# The system's errors for a disk that takes nothing.
DISKS_FAULT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
# With those for a broken disk, missing permissions and exhausted memory.
MACHINES_FAULT = DISKS_FAULT | {errno.EACCES, errno.EPERM, errno.EIO, errno.ENOMEM}
MACHINES_FAULT |= {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EFBIG}
# Exit code of a fault of this software, or of several reasons.
FAULT = 1
# Exit codes of what a signal ended: 128 and its number.
INTERRUPTED, TERMINATED = 130, 143


_PASSWORD = re.compile(r"(?<=://)[^/\s]*@")
_TOKEN = re.compile(
    r"([?&;][\w.-]*(?:token|passw|secret|key|sig|credential|auth)[\w.-]*=)[^&\s'\"]*", re.IGNORECASE
)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a process on the same way out as an interrupt."""


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


def printable(text: object) -> str:
    """Text of others with every character escaped that steers a terminal or breaks the line."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in str(text))


def quoted(text: object) -> str:
    """Text of others, such as an exception's, on one line that steers no terminal."""
    return printable(" ".join(str(text).split()))


def masked(text: object) -> str:
    """The same text without the passwords and tokens of the addresses in it."""
    return _TOKEN.sub(r"\1***", _PASSWORD.sub("***@", str(text)))


def one_line(error: object) -> str:
    """An error as it is printed and recorded."""
    return masked(quoted(error))


def disk_line(error: OSError) -> str:
    """What the system refused, in one sentence."""
    what = f"{error.filename}: " if error.filename else ""
    advice = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some space",
        errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    }.get(error.errno or 0, "mend that")
    reason = (error.strerror or str(error)).lower()
    return f"{what}{reason}; {advice} and run again: what was measured is kept"


# Of letters of a report.
_LONGEST_LINE = 200


def last_line(fault: BaseException) -> str:
    """The last line of an exception: TVM puts its stack before the message."""
    if isinstance(fault, VerificationError):
        return str(fault)
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("File ", "at ", "Stack trace"))]
    text = lines[-1] if lines else type(fault).__name__
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 3] + "..."
