"""Registers models and loads them; checks them before."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, external_data_helper

from fewtune.errors import InputError, MachineError
from fewtune.model.light import light_model
from fewtune.model.registration import (
    LIGHT_PREFIX,
    MODEL_FILE,
    REGISTRATION,
    SAMPLES_FILE,
    TAKEN_NAMES,
    ModelSource,
    name_of,
)
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.checks import checked_file, digest_of
from fewtune.onnx_graph.graph import opset_of
from fewtune.onnx_graph.inputs import constant_arrays, input_shapes, read_samples, sample_shapes
from fewtune.util.files import file_sha256, whole_directory, write_text


@dataclass(frozen=True)
class LoadedModel:
    """A registered model with its weights in memory.

    Attributes
    ----------
    name : str
    model : ModelProto
        As given; dynamic dimensions are not bound.
    source : ModelSource
    sha256 : str
        Of the model file and its external data; for a seeded model, of its serialized form.
    opset : int
    samples : dict of numpy.ndarray, optional
        Sample inputs of the user, input name to array.
    """

    name: str
    model: ModelProto
    source: ModelSource
    sha256: str
    opset: int
    samples: dict[str, np.ndarray] | None = None

    def bound(self) -> ModelProto:
        """The model with its dynamic dimensions and constant inputs bound.

        Raises
        ------
        InputError
            If they do not fit (`fewtune.onnx_graph.bind.bind_shapes`).
        """
        source = self.source
        return bind_shapes(
            self.model, source.shapes, source.dimensions, source.constants, self.samples
        )

    @property
    def description(self) -> str:
        """Where the model comes from, in a few words."""
        return self.source.description


class GivenModel(NamedTuple):
    """A model that a user gives, checked but not registered.

    Attributes
    ----------
    model : ModelProto
        External data is not loaded.
    registration : ModelSource
    path : Path
        The model file; not used for a light model.
    locations : list of str
        Files of external data, relative to the model file's folder.
    samples : Path or None
        File of sample inputs.
    """

    model: ModelProto
    registration: ModelSource
    path: Path
    locations: list[str]
    samples: Path | None


def read_model(
    source: str,
    shapes: Mapping[str, Sequence[int]] | None,
    seed: int,
    dimensions: Mapping[str, int] | None,
    constants: Mapping[str, Any] | None,
    inputs: Path | None,
) -> GivenModel:
    """Read a model, with all checks that do not run it.

    Parameters
    ----------
    source : str
        Path of an ``.onnx`` file, or ``light:NAME``.
    shapes, dimensions : mapping or None
        See `fewtune.onnx_graph.inputs.input_shapes`.
    seed : int
        Of a light model's weights.
    constants : mapping or None
        See `fewtune.onnx_graph.inputs.constant_arrays`.
    inputs : Path or None
        File of sample inputs; see `fewtune.onnx_graph.inputs.read_samples`.

    Raises
    ------
    InputError
        If the source, a shape, a constant or the sample inputs cannot be used.
    """
    sizes = {input_name: list(shape) for input_name, shape in (shapes or {}).items()}
    dimensions, constants = dict(dimensions or {}), dict(constants or {})
    path = Path(source).expanduser()
    locations: list[str] = []
    if source.startswith(LIGHT_PREFIX):
        light = source.removeprefix(LIGHT_PREFIX)
        model = light_model(light, seed)
        taken: dict[str, Any] = {"light": light, "seed": seed}
    else:
        model, locations = checked_file(path, TAKEN_NAMES)
        taken = {"file": MODEL_FILE}
    constant_arrays(model, constants, sizes, dimensions)
    if inputs is not None:
        sizes = sample_shapes(model, read_samples(inputs), sizes, constants)
        taken["inputs"] = SAMPLES_FILE
    input_shapes(model, sizes, dimensions, constants)
    registration = ModelSource(**taken, shapes=sizes, dimensions=dimensions, constants=constants)
    return GivenModel(model, registration, path, locations, inputs)


def add_model(
    source: str,
    models_directory: Path,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    dimensions: Mapping[str, int] | None = None,
    replace: bool = False,
    constants: Mapping[str, Any] | None = None,
    inputs: Path | None = None,
) -> str:
    """Register a model after all checks; if one fails, nothing is written.

    Parameters
    ----------
    source, shapes, seed, dimensions, constants, inputs
        See `read_model`. Files are copied, with external data and sample inputs.
    models_directory : Path
    name : str, optional
        Derived from ``source`` unless given.
    replace : bool
        Whether a different model of that name may be replaced. The same model may always be added
        again.

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
    name = name_of(source, name)
    given = read_model(source, shapes, seed, dimensions, constants, inputs)
    folder = models_directory / name
    if not replace:
        _refuse_another(folder, given)
    try:
        with whole_directory(folder) as scratch:
            write_text(scratch / REGISTRATION, given.registration.text())
            if given.registration.light is None:
                shutil.copyfile(given.path, scratch / MODEL_FILE)
            if given.samples is not None:
                shutil.copyfile(given.samples, scratch / SAMPLES_FILE)
            for location in given.locations:
                (scratch / location).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(given.path.parent / location, scratch / location)
    except OSError as error:
        raise MachineError(f"model {name!r} could not be written to {folder}: {error}") from None
    return name


def load_registered(models_directory: Path, name: str) -> LoadedModel:
    """Load a registered model, with the checks of `add_model`.

    Raises
    ------
    InputError
        If it is not registered, or its files fail the checks.
    """
    source = ModelSource.read(models_directory, name)
    folder = models_directory / name
    if source.light is not None:
        model = light_model(source.light, source.seed)
        digest = hashlib.sha256(model.SerializeToString()).hexdigest()
    else:
        path = folder / str(source.file)
        model, locations = checked_file(path, TAKEN_NAMES)
        try:
            external_data_helper.load_external_data_for_model(model, str(folder))
        except Exception as error:  # noqa: BLE001 (the onnx package raises several kinds)
            raise InputError(f"{path}: external data cannot be read: {error}") from None
        digest = digest_of(path, locations)
    samples = read_samples(folder / source.inputs) if source.inputs is not None else None
    input_shapes(model, source.shapes, source.dimensions, source.constants)
    if samples is not None:
        sample_shapes(model, samples, source.shapes, source.constants)
    return LoadedModel(name, model, source, digest, opset_of(model), samples)


def _refuse_another(folder: Path, given: GivenModel) -> None:
    """Raise InputError if ``folder`` holds a different model than the given one."""
    if not (folder / REGISTRATION).exists():
        return
    try:
        same = ModelSource.read(folder.parent, folder.name) == given.registration
        if same and given.registration.file is not None:
            registered = digest_of(folder / MODEL_FILE, given.locations)
            same = digest_of(given.path, given.locations) == registered
        if same and given.samples is not None:
            same = file_sha256(given.samples) == file_sha256(folder / SAMPLES_FILE)
    except (InputError, OSError):
        same = False
    if not same:
        raise InputError(
            f"another model is registered as {folder.name!r}: give this one another --name, "
            f"or remove {folder} first"
        )
