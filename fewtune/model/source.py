"""Registers models and loads them; checks them before."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, external_data_helper

from fewtune.artifacts import ShapeFunction
from fewtune.deploy.note import Paddable
from fewtune.errors import InputError, MachineError, disk_line
from fewtune.model.light import light_model
from fewtune.model.registration import (
    LIGHT_PREFIX,
    MODEL_FILE,
    REGISTRATION,
    SAMPLES_FILE,
    TAKEN_NAMES,
    ModelSource,
    Sizes,
    name_of,
)
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.checks import checked_file, digest_of
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.onnx_graph.graph import graph_inputs, opset_of
from fewtune.onnx_graph.inputs import (
    check_dimensions,
    constant_arrays,
    input_shapes,
    read_samples,
    sample_shapes,
)
from fewtune.util.files import file_sha256, whole_directory, write_text

Shapes = Mapping[str, Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]]
Dimensions = Mapping[str, int | Sequence[int]]


def sizes_of(
    shapes: Shapes | Sequence[Mapping[str, Sequence[int]]] | None, dimensions: Dimensions | None
) -> list[Sizes]:
    """The sizes of each shape: what has several values is taken value by value, together.

    Parameters
    ----------
    shapes : mapping or sequence of mapping, optional
        Input name to one shape or several; or such a mapping for each shape, by the user's name of
        the shape where it has one.
    dimensions : mapping, optional
        Name of a dynamic dimension to its size, or to several sizes.

    Raises
    ------
    InputError
        If two of them have several values, and not equally many; if some shapes have names.
    """
    given: Any = shapes or {}
    # Of what is given, the parts of each shape's sizes.
    parts: dict[str, list[dict[str, Any]]] = {}
    if isinstance(given, Mapping) and any(isinstance(each, Mapping) for each in given.values()):
        for name, each in given.items():
            if not isinstance(each, Mapping):
                raise InputError(f"shapes of {name!r} have no name: name each shape, or none")
        parts["shapes"] = [{"shapes": each, "regime": name} for name, each in given.items()]
    elif isinstance(given, Mapping):
        for name, one in given.items():
            several = one if one and isinstance(one[0], Sequence) else [one]
            parts[f"shapes of {name}"] = [{"shapes": {name: shape}} for shape in several]
    else:
        parts["shapes"] = [{"shapes": each} for each in given]
    for name, size in (dimensions or {}).items():
        several = [size] if isinstance(size, int) else size
        parts[f"values of dimension {name}"] = [{"dimensions": {name: each}} for each in several]
    counts = {what: len(each) for what, each in parts.items() if len(each) != 1}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        text = " and ".join(f"{count} {what}" for what, count in counts.items())
        raise InputError(f"{text} are given: give equally many of each, or one")
    names = [each.get("regime", "") for each in parts.get("shapes", [])]
    found: list[Sizes] = []
    for place in range(max(counts.values(), default=1)):
        own = [each[place % len(each)] for each in parts.values()]
        # Checked against the model, with a sentence, before they are kept.
        one = Sizes.model_construct(
            shapes={n: list(s) for each in own for n, s in each.get("shapes", {}).items()},
            dimensions={n: s for each in own for n, s in each.get("dimensions", {}).items()},
            regime=names[place] if place < len(names) else "",
        )
        if any(one.text == each.text for each in found):
            raise InputError(f"the shape {one.text} is given twice: give it once")
        found.append(one)
    return found


def paddable_dimensions(
    model: ModelProto, functions: Sequence[ShapeFunction], paddable: Mapping[str, float]
) -> list[Paddable]:
    """Where inputs have paddable dimensions, and where outputs are cut back.

    An output is cut along the axis whose size is the dimension's in every shape. One that changes
    with the dimension in another way cannot be cut, so that is refused.
    """
    found = []
    for name, value in paddable.items():
        inputs = {
            each.name: axis
            for each in graph_inputs(model.graph)
            for axis, dimension in enumerate(each.type.tensor_type.shape.dim)
            if dimension.dim_param == name
        }
        first, along = next(iter(inputs.items()))
        given = [each for function in functions for each in function.inputs if each.name == first]
        sizes = [each.shape[along] for each in given]
        outputs = {}
        for place, output in enumerate(functions[0].outputs):
            shapes = [function.outputs[place].shape for function in functions]
            for axis, lengths in enumerate(zip(*shapes, strict=True)):
                if list(lengths) == sizes and len(set(sizes)) > 1:
                    outputs[output.name] = axis
                elif len({*zip(sizes, lengths, strict=True)}) > len(set(sizes)):
                    continue  # another dimension changes it
                elif len(set(lengths)) > 1 and len(set(sizes)) > 1:
                    raise InputError(
                        f"dimension {name!r} cannot be padded: output {output.name!r} changes "
                        "with it and has no axis of its size, so it cannot be cut back"
                    )
        found.append(Paddable(name=name, value=value, inputs=inputs, outputs=outputs))
    return found


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

    def bound(self) -> LightModel:
        """The model with its dynamic dimensions and constant inputs bound.

        Raises
        ------
        InputError
            If they do not fit (`fewtune.onnx_graph.bind.bind_shapes`).
        """
        source, given = self.source, light(self.model)
        sizes = source.shapes, source.dimensions, source.constants
        return light(bind_shapes(given.model, *sizes, self.samples))


def _checked(
    source: str,
    given: Sequence[Sizes],
    seed: int,
    constants: Mapping[str, Any],
    inputs: Path | None,
    paddable: Mapping[str, float],
) -> tuple[ModelSource, dict[str, Path]]:
    """A model's registration and its files, by name in its folder, after all checks."""
    files: dict[str, Path] = {}
    if source.startswith(LIGHT_PREFIX):
        light = source.removeprefix(LIGHT_PREFIX)
        model = light_model(light, seed)
        taken: dict[str, Any] = {"light": light, "seed": seed}
    else:
        path = Path(source).expanduser()
        model, locations = checked_file(path, TAKEN_NAMES)
        files = {MODEL_FILE: path} | {each: path.parent / each for each in locations}
        taken = {"file": MODEL_FILE}
    for each in given:
        constant_arrays(model, constants, each.shapes, each.dimensions)

    def elements(each: Sizes) -> int:
        return sum(map(prod, input_shapes(model, each.shapes, each.dimensions, constants).values()))

    first, *further = sorted(given, key=elements, reverse=True) if len(given) > 1 else given
    sizes, dimensions = first.shapes, first.dimensions
    if inputs is not None:
        if further:
            raise InputError(
                "sample inputs have one shape, and several are given: give one shape, or no samples"
            )
        sizes = sample_shapes(model, read_samples(inputs), sizes, constants)
        taken["inputs"] = SAMPLES_FILE
        files[SAMPLES_FILE] = inputs
    input_shapes(model, sizes, dimensions, constants)
    check_dimensions(graph_inputs(model.graph), dict.fromkeys(paddable, 1))
    registration = ModelSource(
        **taken,
        shapes=sizes,
        dimensions=dimensions,
        regime=first.regime,
        further=further,
        paddable=dict(paddable),
        constants=dict(constants),
    )
    return registration, files


def add_model(  # noqa: PLR0913 (what a user can say of a model)
    source: str,
    models_directory: Path,
    name: str | None = None,
    shapes: Shapes | Sequence[Mapping[str, Sequence[int]]] | None = None,
    seed: int = 0,
    dimensions: Dimensions | None = None,
    replace: bool = False,
    constants: Mapping[str, Any] | None = None,
    inputs: Path | None = None,
    paddable: Mapping[str, float] | None = None,
) -> str:
    """Register a model after all checks; if one fails, nothing is written.

    Parameters
    ----------
    source : str
        Path of an ``.onnx`` file, or ``light:NAME``. A file is copied with its external data.
    shapes, dimensions : mapping, optional
        See `fewtune.onnx_graph.inputs.input_shapes`; several values of one are several shapes of
        the library (`fewtune.model.source.sizes_of`).
    seed : int
        Of a light model's weights.
    constants : mapping, optional
        See `fewtune.onnx_graph.inputs.constant_arrays`.
    inputs : Path, optional
        File of sample inputs; see `fewtune.onnx_graph.inputs.read_samples`.
    paddable : mapping, optional
        Name of a dimension that a session may pad up to the next shape, to the value for it.
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
    sizes = sizes_of(shapes, dimensions)
    registration, files = _checked(
        source, sizes, seed, dict(constants or {}), inputs, dict(paddable or {})
    )
    folder = models_directory / name
    if not replace:
        _refuse_another(folder, registration, files)
    try:
        with whole_directory(folder) as scratch:
            write_text(scratch / REGISTRATION, registration.as_yaml())
            for place, path in files.items():
                (scratch / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, scratch / place)
    except OSError as error:
        raise MachineError(f"model {name!r} is not registered: {disk_line(error)}") from None
    return name


def load_registered(models_directory: Path, name: str, shape: int = 0) -> LoadedModel:
    """Load a registered model, at one of its shapes, with the checks of `add_model`.

    Raises
    ------
    InputError
        If it is not registered, or its files fail the checks.
    """
    source = ModelSource.read(models_directory, name).one_by_one()[shape]
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
    if samples is not None:
        sample_shapes(model, samples, source.shapes, source.constants)
    return LoadedModel(name, model, source, digest, opset_of(model), samples)


def _refuse_another(folder: Path, registration: ModelSource, files: Mapping[str, Path]) -> None:
    """Raise InputError if ``folder`` holds a different model than the given one."""
    if not (folder / REGISTRATION).exists():
        return
    try:
        same = ModelSource.read(folder.parent, folder.name) == registration and all(
            file_sha256(path) == file_sha256(folder / place) for place, path in files.items()
        )
    except (InputError, OSError):
        same = False
    if not same:
        raise InputError(
            f"another model is registered as {folder.name!r}: give this one another --name, "
            f"or remove {folder} first"
        )
