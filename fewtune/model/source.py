"""Registered models: where a model comes from, and every check before it is let in."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml
from onnx import ModelProto, external_data_helper
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from fewtune.errors import InputError, MachineError
from fewtune.onnx_graph.checks import checked_file, digest_of
from fewtune.onnx_graph.graph import opset_of
from fewtune.onnx_graph.shapes import input_shapes
from fewtune.util.files import whole_directory, write_text
from fewtune.zoo.seeded import SeededOrigin, seeded_model, seeded_origin

REGISTRATION = "model.yaml"
MODEL_FILE = "model.onnx"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_NAMES = frozenset({REGISTRATION, MODEL_FILE})


class ModelSource(BaseModel):
    """A model's registration, the file ``models/<name>/model.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    light: str | None = Field(default=None, description="an architecture of the onnx package")
    zoo: str | None = Field(default=None, description="a model of the zoo")
    seed: int = Field(default=0, ge=0, description="seed of a light or zoo model's weights")
    file: str | None = Field(default=None, description="the .onnx file, beside this one")
    shapes: dict[str, list[PositiveInt]] = Field(
        default_factory=dict, description="input name to its static shape"
    )
    dimensions: dict[str, PositiveInt] = Field(
        default_factory=dict, description="name of a dynamic dimension to its size"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if sum(origin is not None for origin in (self.light, self.zoo, self.file)) != 1:
            raise ValueError("give one of light, zoo and file")
        if self.file is not None and Path(self.file).name != self.file:
            raise ValueError("file must lie beside model.yaml: give a name without folders")
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
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path} is not valid YAML: {reason}") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            raise InputError(f"{path}: {place + ': ' if place else ''}{first['msg']}") from None

    def text(self) -> str:
        """The registration as YAML, without what is left at its default."""
        values = self.model_dump(exclude_defaults=True)
        if self.origin is not None:
            values["seed"] = self.seed
        return yaml.safe_dump(values, sort_keys=False)

    @property
    def origin(self) -> SeededOrigin | None:
        """The architecture, where the weights come from a seed."""
        if self.light is not None:
            return SeededOrigin("light", self.light)
        return SeededOrigin("zoo", self.zoo) if self.zoo is not None else None

    @property
    def description(self) -> str:
        """Where the model comes from, in a few words."""
        return f"{self.origin} seed {self.seed}" if self.origin else str(self.file)


@dataclass(frozen=True)
class LoadedModel:
    """A registered model with its weights in memory.

    Attributes
    ----------
    name : str
    model : ModelProto
        As given: dynamic dimensions are not bound yet.
    source : ModelSource
    sha256 : str
        Over the model file and its external data; of a seeded model, over its serialised form.
    opset : int
    """

    name: str
    model: ModelProto
    source: ModelSource
    sha256: str
    opset: int

    @property
    def description(self) -> str:
        """Where the model comes from, in a few words."""
        return self.source.description


def check_name(name: str) -> str:
    """Return ``name`` if it is plain enough for a folder, a stage and a run.

    Raises
    ------
    InputError
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"model name {name!r} is not plain: use lower-case letters, digits, '_', '.' and '-', "
            "beginning with a letter or digit"
        )
    return name


def name_from_path(path: Path) -> str:
    """Derive a plain name from a file's: lower case, anything unusual becomes ``-``.

    Raises
    ------
    InputError
        If nothing usable is left.
    """
    plain = re.sub(r"[^a-z0-9_.-]+", "-", path.stem.lower())
    plain = re.sub(r"^[^a-z0-9]+|[^a-z0-9]+$", "", plain)
    if not plain:
        raise InputError(f"no model name can be made of {path.name!r}: give one with --name")
    return plain


def add_model(
    source: str,
    models_directory: Path,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    dimensions: Mapping[str, int] | None = None,
    replace: bool = False,
) -> str:
    """Register a model, after every check, whole or not at all.

    Parameters
    ----------
    source : str
        Path of an ``.onnx`` file, which is copied with its external data, ``light:NAME`` or
        ``zoo:NAME``.
    models_directory : Path
    name : str, optional
        Derived from ``source`` when not given.
    shapes, dimensions : mapping, optional
        As `fewtune.onnx_graph.shapes.input_shapes`.
    seed : int
        Of a light or zoo model's weights.
    replace : bool
        Whether another model of that name may be replaced. Adding the same again always may.

    Returns
    -------
    name : str

    Raises
    ------
    InputError
        If the source, the name or the shapes cannot be used.
    MachineError
        If the files cannot be written.
    """
    shapes = {input_name: list(shape) for input_name, shape in (shapes or {}).items()}
    dimensions = dict(dimensions or {})
    origin = seeded_origin(source)
    path = Path(source).expanduser()
    if name is None:
        name = origin.name if origin else name_from_path(path)
    else:
        check_name(name)
    locations: list[str] = []
    if origin:
        model = seeded_model(origin, seed, values=False)
        taken = {origin.kind: origin.name, "seed": seed}
    else:
        model, locations = checked_file(path, _NAMES)
        taken = {"file": MODEL_FILE}
    input_shapes(model, shapes, dimensions)
    registration = ModelSource(**taken, shapes=shapes, dimensions=dimensions)
    folder = models_directory / name
    if not replace:
        _refuse_another(folder, registration, path, locations)
    try:
        with whole_directory(folder) as scratch:
            write_text(scratch / REGISTRATION, registration.text())
            if origin is None:
                shutil.copyfile(path, scratch / MODEL_FILE)
            for location in locations:
                (scratch / location).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path.parent / location, scratch / location)
    except OSError as error:
        raise MachineError(f"model {name!r} could not be written to {folder}: {error}") from None
    return name


def load_registered(models_directory: Path, name: str) -> LoadedModel:
    """Load a registered model, with the checks that `add_model` made.

    Raises
    ------
    InputError
        If it is not registered, or its files are not what they were.
    """
    source = ModelSource.read(models_directory, name)
    if source.origin is not None:
        model = seeded_model(source.origin, source.seed)
        digest = hashlib.sha256(model.SerializeToString()).hexdigest()
    else:
        path = models_directory / name / str(source.file)
        model, locations = checked_file(path, _NAMES)
        external_data_helper.load_external_data_for_model(model, str(path.parent))
        digest = digest_of(path, locations)
    input_shapes(model, source.shapes, source.dimensions)
    return LoadedModel(name, model, source, digest, opset_of(model))


def _refuse_another(
    folder: Path, registration: ModelSource, path: Path, locations: list[str]
) -> None:
    """Raise InputError if ``folder`` holds another model than the one to be added."""
    if not (folder / REGISTRATION).exists():
        return
    try:
        same = ModelSource.read(folder.parent, folder.name) == registration
        if same and registration.file is not None:
            same = digest_of(path, locations) == digest_of(folder / MODEL_FILE, locations)
    except (InputError, OSError):
        same = False
    if not same:
        raise InputError(
            f"another model is registered as {folder.name!r}: give this one another --name, "
            f"or remove {folder} first"
        )
