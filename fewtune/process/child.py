"""A child process: ``python -m fewtune.process.child MODULE:FUNCTION ARGUMENT...``."""

import os
import sys
from pkgutil import resolve_name

from fewtune.process.child_python import end_by_interrupts
from fewtune.process.contexts import without_gc

if __name__ == "__main__":
    end_by_interrupts()
    with without_gc(for_good=True):
        function = resolve_name(sys.argv[1])
    function(*sys.argv[2:])
    sys.stdout.flush()
    # Loaded libraries may crash when they are unloaded.
    os._exit(0)
