"""Sizes of the processor's caches, as the system reports them."""

from __future__ import annotations

from pathlib import Path

# Where Linux describes the caches of a core; the other functions' default.
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def last_level_cache_bytes(caches: Path = CACHES) -> int | None:
    """Size of the largest cache of a core; None where the system does not report it."""
    return max(_cache_sizes(caches), default=None)


def own_cache_bytes(caches: Path = CACHES) -> int | None:
    """Size of the last cache that a core has for itself; None where none is reported."""
    sizes = sorted(_cache_sizes(caches))
    return sizes[-2] if len(sizes) > 1 else None


def own_caches_bytes(threads: int) -> int | None:
    """Size of the caches of so many cores together, without the last-level cache."""
    own_bytes = own_cache_bytes()
    return None if own_bytes is None else threads * own_bytes


def _cache_sizes(caches: Path) -> list[int]:
    """Bytes of the caches of a core."""
    sizes = []
    for file in caches.glob("index*/size"):
        text = file.read_text().strip()
        number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "")
        if number.isdigit():
            sizes.append(int(number) * _UNITS.get(unit, 1))
    return sizes
