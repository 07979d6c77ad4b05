"""Model sources without files: architectures with seeded weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from fewtune.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto

LIGHT_PREFIX = "light:"
ZOO_PREFIX = "zoo:"
SEEDED_PREFIXES = (LIGHT_PREFIX, ZOO_PREFIX)


class SeededOrigin(NamedTuple):
    """An architecture of the onnx package (``light``) or of the zoo.

    Its text is the source, such as ``zoo:vgg19_bn``.
    """

    kind: Literal["light", "zoo"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def seeded_origin(source: str) -> SeededOrigin | None:
    """Read ``light:NAME`` or ``zoo:NAME``; anything else is the path of a file."""
    if source.startswith(LIGHT_PREFIX):
        return SeededOrigin("light", source.removeprefix(LIGHT_PREFIX))
    if source.startswith(ZOO_PREFIX):
        return SeededOrigin("zoo", source.removeprefix(ZOO_PREFIX))
    return None


def seeded_model(origin: SeededOrigin, seed: int, values: bool = True) -> ModelProto:
    """Make an architecture with the weights of a seed.

    Parameters
    ----------
    origin : SeededOrigin
    seed : int
        The same seed gives a byte-identical model.
    values : bool
        Whether the large weights of a zoo model get values. Without them its graph is made at once.

    Raises
    ------
    InputError
        If there is no such architecture, or the seed is negative.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative: give 0 or more")
    # Not at the top: most callers only read a model's origin, and onnx is slow to import.
    from fewtune.zoo.onnx_light import light_model
    from fewtune.zoo.registry import zoo_model

    if origin.kind == "light":
        return light_model(origin.name, seed)
    return zoo_model(origin.name, seed, values)
