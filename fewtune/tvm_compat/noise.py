"""What TVM writes to standard error for its developers, kept from a user's terminal."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# What it warns of for every constant of a library, and for every Gather whose places are in range.
# LLVM warns of an extension that it does not know whenever it looks at the target.
NOISE = re.compile(
    r"Warning: (Scope (Saving|Loaded):|Fast mode segfaults)|is not a recognized feature for"
)


@contextmanager
def without_noise() -> Iterator[None]:
    """Leave `NOISE` out of what is written to standard error within the block.

    Everything else is written at the end of the block. Native code writes to the descriptor, so
    that is what is redirected, for all threads.

    Test: tests/tvm_compat/test_noise.py::test_only_noise_is_left_out
    """
    try:
        before = os.dup(2)
    except OSError:
        # There is no standard error.
        yield
        return
    with tempfile.TemporaryFile() as held:
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            held.seek(0)
            for line in held:
                if not NOISE.search(line.decode(errors="replace")):
                    os.write(2, line)
