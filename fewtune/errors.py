"""Errors that a user can mend, told in one line.

Anything else that is raised is a fault of this software and keeps its traceback.
"""

from __future__ import annotations


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

    A compiled model with onnxruntime, or a model of the zoo with its published counts.
    """

    exit_code = 4


class JournalError(FewtuneError):
    """A tuning journal is damaged or belongs to another machine, target or TVM version."""

    exit_code = 5
