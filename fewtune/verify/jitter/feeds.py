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

    def feeds(self, seed: int, runs: int, times: float = 1.0) -> Iterator[dict[str, np.ndarray]]:
        """Values of the additional inputs, for each of ``runs`` runs.

        With ``times`` above 1, values move so many times as far, but quantised ones still by a
        step. Then each run is followed by one in which every value moves the other way.
        """
        generator = np.random.default_rng([seed, 7, int(times)])
        largest = max((int(np.prod(feed.shape)) for feed in self.inputs), default=0)
        # Long enough that two inputs of a run seldom begin at the same offset.
        pool = generator.random(2 * largest + 4096, dtype=np.float32)
        scaled = {}
        for feed in self.inputs:
            middle, width = (feed.low + feed.high) / 2, feed.high - feed.low
            width *= times if feed.grows else 1.0
            if feed[2:] not in scaled:
                wide = pool.astype(np.promote_types(feed.dtype, "f4"))
                scaled[feed[2:]] = (middle + width * (wide - 0.5)).astype(feed.dtype)
        for _ in range(runs):
            drawn = {}
            for feed in self.inputs:
                size = int(np.prod(feed.shape))
                start = int(generator.integers(0, pool.size - size + 1))
                values = scaled[feed[2:]][start : start + size]
                drawn[feed.name] = values.reshape(feed.shape)
            yield drawn
            if times > 1:
                middles = {feed.name: (feed.low + feed.high) / 2 for feed in self.inputs}
                yield {
                    name: np.asarray(2 * middles[name] - values.astype("f8"), values.dtype)
                    for name, values in drawn.items()
                }
