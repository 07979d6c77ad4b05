"""Mechanisms that are switched off, to measure what each is worth.

The environment variable reaches every process of a run. It is part of a fingerprint's versions, so
results with and without a mechanism never mix.
"""

from __future__ import annotations

import os

VARIABLE = "FEWTUNE_WITHOUT"


def switched_off() -> frozenset[str]:
    """Names of mechanisms, separated by commas in the environment variable."""
    return frozenset(filter(None, os.environ.get(VARIABLE, "").split(",")))


def is_on(mechanism: str) -> bool:
    """Whether a mechanism is used."""
    return mechanism not in switched_off()
