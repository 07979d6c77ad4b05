"""What TVM says to its developers does not reach a user's terminal; all else does."""

from tests.made.command import python

SCRIPT = """
import os, sys
from fewtune.tvm_compat.noise import without_noise
if sys.argv[1] == "closed":
    os.close(2)
with without_noise():
    if sys.argv[1] == "open":
        os.write(2, b"[1] a.cc:340: Warning: Scope Loaded:\\nWarning: of something else\\n")
        print("by Python", file=sys.stderr)
if sys.argv[1] == "open":
    os.write(2, b"after\\n")
"""


def test_only_noise_is_left_out():
    assert python(SCRIPT, "open").stderr == "Warning: of something else\nby Python\nafter\n"


def test_a_process_without_standard_error_goes_on():
    assert python(SCRIPT, "closed").stderr == ""
