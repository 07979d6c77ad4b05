"""Optional steps: each is left out if it fails, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from fewtune.errors import last_line
from fewtune.process.apart import at, in_step

Made = TypeVar("Made")


class OptionalSteps:
    """Which optional steps an attempt uses, and which of them raised.

    Parameters
    ----------
    left_out : mapping
        From the name of an unused step to the reason.
    forgiving : bool
        Whether an exception within a step is only noted.

    Attributes
    ----------
    left_out : dict of str
    fault : (str, str) or None
        The step that raised, with the line of its exception that names the cause.
    """

    def __init__(self, left_out: Mapping[str, str] | None = None, forgiving: bool = False) -> None:
        self._forgiving = forgiving
        self.left_out = dict(left_out or {})
        self.fault: tuple[str, str] | None = None

    def uses(self, name: str) -> bool:
        """Whether a step is used."""
        return name not in self.left_out

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note which step raises within the block; the exception goes on."""
        try:
            with in_step(name):
                yield
        except Exception as fault:
            # Exceptions that pass through TVM's C++ lose their class: the note is kept here.
            if self.fault is None:
                self.fault = name, last_line(fault)
            if not self._forgiving:
                raise

    def guarded(
        self, name: str, ours: Callable[..., Made], theirs: Callable[..., Made]
    ) -> Callable[..., Made]:
        """``ours`` as a step, or ``theirs`` where the step is left out or forgiven."""

        def called(*arguments: object) -> Made:
            if self.uses(name):
                with self.step(name):
                    return ours(*arguments)
            return theirs(*arguments)

        return called


def with_most_steps(
    attempt: Callable[[OptionalSteps], Made],
    names: Sequence[str],
    left_out: Mapping[str, str] | None = None,
    quick: Collection[str] = (),
) -> tuple[Made, dict[str, str]]:
    """Make something with as many optional steps as work.

    A step that raises is left out. If the whole fails without an exception in a step, the first
    step at fault is found by bisection.

    Parameters
    ----------
    attempt : callable
        Makes it with some steps; raises if that fails or the result is wrong.
    names : sequence of str
        The steps, those that others build upon first.
    left_out : mapping, optional
        Steps that are not to be used, with the reason.
    quick : collection of str
        Steps without which an attempt takes long. They are suspected last: only if an attempt with
        no other step fails.

    Returns
    -------
    made
    left_out : dict of str
        Every step that was left out for its failure, with the reason.

    Raises
    ------
    Exception
        What the attempt without any optional step raises.
    """
    unasked = dict(left_out or {})
    found: dict[str, str] = {}

    def without(further: Sequence[str]) -> Made:
        steps = OptionalSteps(unasked | found | dict.fromkeys(further, ""))
        at("beginning", optional=list(filter(steps.uses, names)), left_out=dict(found))
        try:
            return attempt(steps)
        except Exception:
            if steps.fault is not None and steps.uses(steps.fault[0]):
                name, reason = steps.fault
                found[name] = reason
                return without([each for each in further if each != name])
            raise

    def without_most(left: list[str]) -> tuple[list[str], Made]:
        """Leave out all but the quick steps or, if that fails, all; return which."""
        others = [name for name in left if name not in quick]
        if others and others != left:
            with suppress(Exception):
                return others, without(others)
        return left, without(left)

    while True:
        try:
            return without([]), found
        except Exception as fault:  # noqa: BLE001 (the conversion fails in many ways, see FINDINGS)
            reason = last_line(fault)
            left = [name for name in names if name not in unasked | found]
        left, made = without_most(left)
        works, fails = 0, len(left)
        while fails - works > 1:
            middle = (works + fails) // 2
            try:
                made = without(left[middle:])
                works = middle
            except Exception as fault:  # noqa: BLE001 (as above)
                fails, reason = middle, last_line(fault)
        if not left:
            return made, found
        found[left[fails - 1]] = reason
