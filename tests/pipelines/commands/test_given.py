"""What options say of a model's inputs."""

from argparse import Namespace

import pytest

from fewtune.errors import InputError
from fewtune.pipelines.commands.given import given_inputs


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["x=1,2", "x=1,3"], {"x": [[1, 2], [1, 3]]}),
        (["x:0=1,2"], {"x:0": [[1, 2]]}),
        (
            ["long:x=1,8", "long:m:0=8", "short:x=1,4", "short:m:0=4"],
            {"long": {"x": [1, 8], "m:0": [8]}, "short": {"x": [1, 4], "m:0": [4]}},
        ),
    ],
)
def test_shapes_are_read_with_and_without_names(texts, found):
    assert given_inputs(Namespace(shape=texts))["shapes"] == found


@pytest.mark.parametrize("texts", [["a:x=1", "x:0=2"], ["a:x=1", "a:x=2"], [":x=1"]])
def test_a_name_that_is_lacking_or_given_twice_is_refused(texts):
    with pytest.raises(InputError, match="--shape "):
        given_inputs(Namespace(shape=texts))
