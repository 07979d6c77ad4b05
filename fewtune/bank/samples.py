"""Measured candidates of the bank as the cost model learns them, in a file without code.

``features.npz`` has four arrays over all samples, workload after workload: ``rows`` (stores, 164)
float32, the stores of all candidates one after the other; ``stores`` (samples,) int32, how many
rows each has; ``times_s`` (samples,) float64; ``entries`` (samples,) int32, the place of its
workload among the bank's entries.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewtune.errors import InputError
from fewtune.util.files import write_bytes

FEATURES = "features.npz"
_WIDTH = 164


class Samples(NamedTuple):
    """Measured candidates of one workload.

    Attributes
    ----------
    features : list of ndarray, each (stores, 164)
    times_s : list of float
    """

    features: list[np.ndarray]
    times_s: list[float]


def spread(count: int, samples: int) -> list[int]:
    """Ranks to keep of ``count``: the best ones, and others spread evenly down to the worst."""
    if samples <= 1 or count <= samples:
        return list(range(min(count, samples)))
    return [rank * (count - 1) // (samples - 1) for rank in range(samples)]


def write_samples(directory: Path, samples: Sequence[Samples]) -> None:
    """Write the samples of all entries; equal samples give equal bytes (NumPy dates no member)."""
    rows = [each for entry in samples for each in entry.features]
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        rows=np.concatenate([np.empty((0, _WIDTH), "float32"), *rows]).astype("float32"),
        stores=np.array([len(each) for each in rows], dtype="int32"),
        times_s=np.array([time_s for entry in samples for time_s in entry.times_s], "float64"),
        entries=np.repeat(np.arange(len(samples)), [len(e.times_s) for e in samples]).astype(
            "int32"
        ),
    )
    write_bytes(directory / FEATURES, stream.getvalue())


def read_samples(directory: Path, entries: int) -> list[Samples]:
    """The samples of each of the bank's entries.

    Raises
    ------
    InputError
        If the file is missing or does not fit the bank.
    """
    path = directory / FEATURES
    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows, stores, times_s, owners = (
                arrays[name] for name in ("rows", "stores", "times_s", "entries")
            )
        found = [Samples([], []) for _ in range(entries)]
        split = np.split(rows, np.cumsum(stores)[:-1]) if len(stores) else []
        if rows.shape != (stores.sum(), _WIDTH):
            raise ValueError(f"{rows.shape} rows for {stores.sum()} stores")
        for features, time_s, owner in zip(split, times_s.tolist(), owners.tolist(), strict=True):
            found[owner].features.append(features)
            found[owner].times_s.append(time_s)
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} does not hold the samples of the bank ({error}): build the bank again"
        ) from None
    return found
