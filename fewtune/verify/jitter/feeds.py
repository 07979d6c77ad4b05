"""Additional inputs of a jittered model, and their random values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from onnx import ModelProto

# To see the other side of a kink, such as ReLU's, values move this many times as far, with factors
# of at most this width.
_FAR, _FARTHEST = 32.0, 2.0**-5


class Feed(NamedTuple):
    """An additional input: random factors or terms.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : dtype
    low, high : float
        Range of its values.
    grows : bool
        Whether the range may be wider than that of rounding; a quantisation step may not.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    low: float
    high: float
    grows: bool = True

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def middle(self) -> float:
        """The value that moves nothing."""
        return (self.low + self.high) / 2


class Jittered(NamedTuple):
    """A model with additional inputs, which move its values.

    Attributes
    ----------
    model : ModelProto
        Same inputs and outputs as the original model, and the additional inputs.
    inputs : list of Feed
        The additional inputs.
    takes_steps : bool
        Whether moved values are rounded to integers inside the model, such as quantised ones.
    """

    model: ModelProto
    inputs: list[Feed]
    takes_steps: bool

    @property
    def most_times(self) -> float:
        """Largest factor of ``feeds`` at which values stay near the original ones."""
        widths = [feed.high - feed.low for feed in self.inputs if feed.grows]
        return max(1.0, min(_FAR, _FARTHEST / max(widths, default=_FARTHEST)))

    def still(self) -> dict[str, np.ndarray]:
        """Values of the additional inputs at which nothing moves."""
        # Inputs of one middle share an array: together they are as large as all values in between.
        sizes: dict[tuple[np.dtype, float], int] = {}
        for feed in self.inputs:
            kind = feed.dtype, feed.middle
            sizes[kind] = max(sizes.get(kind, 0), feed.size)
        shared = {kind: np.full(size, kind[1], kind[0]) for kind, size in sizes.items()}
        return {
            feed.name: shared[feed.dtype, feed.middle][: feed.size].reshape(feed.shape)
            for feed in self.inputs
        }

    def feeds(self, seed: int, runs: int, times: float = 1.0) -> Iterator[dict[str, np.ndarray]]:
        """Values of the additional inputs, for each of ``runs`` runs.

        With ``times`` above 1, values move so many times as far, but quantised ones still by a
        step. Then each run is followed by one in which every value moves the other way.
        """
        generator = np.random.default_rng([seed, 7, int(times)])
        largest = max((feed.size for feed in self.inputs), default=0)
        # Long enough that two inputs of a run seldom begin at the same offset.
        pool = generator.random(2 * largest + 4096, dtype=np.float32)
        scaled, mirrored = {}, {}
        for feed in self.inputs:
            width = feed.high - feed.low
            width *= times if feed.grows else 1.0
            if feed[2:] not in scaled:
                wide = pool.astype(np.promote_types(feed.dtype, "f4"))
                values = (feed.middle + width * (wide - 0.5)).astype(feed.dtype)
                scaled[feed[2:]] = values
                if times > 1:
                    mirrored[feed[2:]] = (2 * feed.middle - values.astype("f8")).astype(feed.dtype)
        for _ in range(runs):
            parts = {}
            for feed in self.inputs:
                start = int(generator.integers(0, pool.size - feed.size + 1))
                parts[feed] = slice(start, start + feed.size)
            yield {
                feed.name: scaled[feed[2:]][part].reshape(feed.shape)
                for feed, part in parts.items()
            }
            if times > 1:
                yield {
                    feed.name: mirrored[feed[2:]][part].reshape(feed.shape)
                    for feed, part in parts.items()
                }
