"""Bisection: finds the wrong members of a group with few tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def find_by_halves(names: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]) -> list[str]:
    """The members of a group that make it wrong.

    Parameters
    ----------
    names : sequence of str
    is_wrong : callable
        Whether the result is wrong with these members alone. It is called about ``2 k log2(n)``
        times if ``k`` of ``n`` are wrong.

    Returns
    -------
    wrong : list of str
        In the order of ``names``; a whole group if it is wrong and neither of its halves is.
    """
    if not names or not is_wrong(names):
        return []
    return _within(names, is_wrong)


def _within(names: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]) -> list[str]:
    """The wrong members of a group that is known to be wrong."""
    if len(names) == 1:
        return list(names)
    middle = len(names) // 2
    first, second = names[:middle], names[middle:]
    found: list[str] = []
    if is_wrong(first):
        found += _within(first, is_wrong)
        # The second half may be wrong as well.
        return found + find_by_halves(second, is_wrong)
    found += find_by_halves(second, is_wrong)
    return found or list(names)
