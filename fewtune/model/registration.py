"""The registration of a model, file ``model.yaml`` in its folder; names of models."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from fewtune.errors import InputError

LIGHT_PREFIX = "light:"
REGISTRATION = "model.yaml"
MODEL_FILE = "model.onnx"
SAMPLES_FILE = "inputs.npz"
# Names of folders and files contain it; most file systems allow 255 bytes.
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
TAKEN_NAMES = frozenset({REGISTRATION, MODEL_FILE, SAMPLES_FILE})
# Folders of results with these names under out/ belong to no model.
RESERVED_NAMES = frozenset({"bank", "fingerprint", "settings"})


class Sizes(BaseModel):
    """The sizes of one shape of a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shapes: dict[str, list[NonNegativeInt]] = Field(
        default_factory=dict, description="input name to its static shape"
    )
    dimensions: dict[str, NonNegativeInt] = Field(
        default_factory=dict, description="name of a dynamic dimension to its size"
    )
    regime: str = Field(default="", description="the user's name of this shape")

    @property
    def text(self) -> str:
        """As a sentence names them, such as ``x=1,3,48,320 batch=1``."""
        shapes = [f"{name}={','.join(map(str, shape))}" for name, shape in self.shapes.items()]
        return " ".join([*shapes, *(f"{name}={size}" for name, size in self.dimensions.items())])


class ModelSource(Sizes):
    """The registration of a model: the contents of ``models/<name>/model.yaml``."""

    light: str | None = Field(default=None, description="an architecture of the onnx package")
    seed: int = Field(default=0, ge=0, description="seed of a light model's weights")
    file: str | None = Field(default=None, description="the .onnx file, beside this one")
    further: list[Sizes] = Field(
        default_factory=list,
        description="further shapes of the same library: shapes, dimensions, regime of each",
    )
    paddable: dict[str, float] = Field(
        default_factory=dict,
        description="name of a dimension that a session may pad, to the value that it pads with",
    )
    constants: dict[str, Any] = Field(
        default_factory=dict, description="input bound to a value: a number, or nested lists"
    )
    inputs: str | None = Field(
        default=None, description="file of sample inputs, beside this one: input name to array"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if sum(origin is not None for origin in (self.light, self.file)) != 1:
            raise ValueError("give one of light and file")
        for field, name in (("file", self.file), ("inputs", self.inputs)):
            if name is not None and Path(name).name != name:
                raise ValueError(f"{field} must lie beside model.yaml: give a name without folders")
        return self

    @classmethod
    def read(cls, models_directory: Path, name: str) -> Self:
        """Read the registration of ``name``.

        Raises
        ------
        InputError
            If the model is not registered or its registration cannot be used.
        """
        path = models_directory / check_name(name) / REGISTRATION
        try:
            return cls.model_validate(yaml.safe_load(path.read_text()) or {})
        except FileNotFoundError:
            raise InputError(
                f"model {name!r} is not registered ({path} is missing): "
                "register it with fewtune add"
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path} is not valid YAML: {reason}") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            raise InputError(f"{path}: {place + ': ' if place else ''}{first['msg']}") from None

    def one_by_one(self) -> list[ModelSource]:
        """The registration of each shape alone, the largest first."""
        others = [each.model_dump() for each in self.further]
        return [self.model_copy(update={"further": [], **sizes}) for sizes in [{}, *others]]

    def as_yaml(self) -> str:
        """The registration as YAML, without default values."""
        values = self.model_dump(exclude_defaults=True)
        if self.light is not None:
            values["seed"] = self.seed
        return yaml.safe_dump(values, sort_keys=False)

    @property
    def description(self) -> str:
        """Where the model comes from, in a few words."""
        return str(self.file) if self.light is None else f"light:{self.light} seed {self.seed}"


def check_name(name: str) -> str:
    """Return ``name`` if it can name a folder, a stage and a run.

    Raises
    ------
    InputError
        If it cannot.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"model name {name!r} is not plain: use up to 100 lower-case letters, digits, '_', '.' "
            "and '-', beginning with a letter or digit"
        )
    if name in RESERVED_NAMES:
        raise InputError(f"model name {name!r} is reserved for a folder of results: give another")
    return name


def name_from_path(path: Path) -> str:
    """Derive a model's name from a file's: in lower case, with ``-`` for unusual characters.

    Of a name without a usual character, such as one in Chinese, the digest is taken.
    """
    plain = re.sub(r"[^a-z0-9_.-]+", "-", path.stem.lower())
    plain = re.sub(r"^[^a-z0-9]+|[^a-z0-9]+$", "", plain)
    return plain or f"model-{hashlib.sha256(path.stem.encode('utf-8', 'replace')).hexdigest()[:8]}"


def name_of(source: str, name: str | None = None) -> str:
    """The name under which a source is registered: the given one, or one derived from the source.

    Parameters
    ----------
    source : str
        Path of an ``.onnx`` file, or ``light:NAME``.
    name : str, optional

    Raises
    ------
    InputError
        If `check_name` refuses it.
    """
    if name is None:
        name = source.removeprefix(LIGHT_PREFIX)
        name = name_from_path(Path(source).expanduser()) if name == source else name
    return check_name(name)
