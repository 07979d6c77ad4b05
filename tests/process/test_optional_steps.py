"""Optional steps: what fails is left out by name, and nothing else is."""

import pytest

from fewtune.errors import InputError, VerificationError
from fewtune.process.optional_steps import OptionalSteps, with_most_steps

NAMES = ["fold", "layout", "pad", "winograd", "schedule"]


def made_of(steps: OptionalSteps) -> list[str]:
    return [name for name in NAMES if steps.uses(name)]


@pytest.mark.parametrize("quick", [(), ("schedule",)])
@pytest.mark.parametrize("culprits", [["fold"], ["schedule"], ["pad", "winograd"], NAMES])
def test_steps_that_spoil_the_result_are_found(culprits, quick):
    def attempt(steps: OptionalSteps) -> list[str]:
        if any(steps.uses(name) for name in culprits):
            raise VerificationError("outputs differ")
        return made_of(steps)

    made, left_out = with_most_steps(attempt, NAMES, quick=quick)
    assert left_out == dict.fromkeys(culprits, "outputs differ")
    assert made == [name for name in NAMES if name not in culprits]


def test_what_fails_without_any_step_is_raised():
    def attempt(steps: OptionalSteps) -> None:
        raise InputError(f"operator Det, {len(made_of(steps))} steps")

    with pytest.raises(InputError, match="operator Det, 0 steps"):
        with_most_steps(attempt, NAMES)
