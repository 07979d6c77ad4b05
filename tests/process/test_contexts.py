"""Contexts: one that blocks share, and the collector as it was before an import."""

from tests.made.command import python

ENDING = """
import atexit, gc
from fewtune.process.contexts import end_without_scans
class Left:
    def __del__(self):
        print("collected")
atexit.register(lambda: print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000))
end_without_scans(); end_without_scans()
left = Left()
left.itself = left
del left
"""


def test_a_process_that_ends_collects_once_and_scans_no_more():
    assert python(ENDING).stdout == "collected\nTrue True\n"
