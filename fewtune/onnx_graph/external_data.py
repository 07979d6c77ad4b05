"""Weights that lie in files beside a model, and the files they are loaded from."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, external_data_helper, helper

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import all_tensors, detach_weights, model_bytes, tensor_bytes
from fewtune.util.files import write_bytes

# Protobuf refuses messages of 2 GB; from here on weights are written beside the model.
EMBEDDED_BYTES = 1_900_000_000
# Types whose elements take whole bytes of their own.
_WHOLE_BYTES = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.DOUBLE,
        TensorProto.BOOL,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
    }
)

# Types whose arrays onnxruntime takes as they lie in memory.
_WITH_ARRAYS: dict[int, str] = {
    TensorProto.FLOAT: "<f4",
    TensorProto.FLOAT16: "<f2",
    TensorProto.DOUBLE: "<f8",
    TensorProto.INT8: "i1",
    TensorProto.INT16: "<i2",
    TensorProto.INT32: "<i4",
    TensorProto.INT64: "<i8",
    TensorProto.UINT8: "u1",
    TensorProto.UINT16: "<u2",
}
# From here on a weight is put beside its model.
_LARGE_BYTES = 2**16
# The place of what lies in no file.
_IN_MEMORY = "memory"


def external_files(model: ModelProto, directory: Path) -> list[str]:
    """List the data files of a model whose external data is not loaded yet.

    Parameters
    ----------
    model : ModelProto
        As it was parsed from its file.
    directory : Path
        The folder of that file.

    Returns
    -------
    locations : list of str
        Paths relative to ``directory``, sorted, each once.

    Raises
    ------
    InputError
        If a file is missing, too short, or lies outside ``directory``: a model from elsewhere
        must not make this process read, or copy, other files of the machine.
    """
    locations = set()
    for tensor in all_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        path = _checked_path(tensor.name, location, directory)
        offset, length = _extent(tensor.name, entries)
        size, needed = path.stat().st_size, _needed_bytes(tensor)
        if length and length < needed:
            raise InputError(
                f"tensor {tensor.name!r} takes {needed} bytes, but its external data has {length}: "
                "the model is damaged, export it again"
            )
        length = length or needed
        if offset + length > size:
            raise InputError(
                f"external data file {path} is truncated: tensor {tensor.name!r} needs "
                f"{offset + length} bytes, the file has {size}"
            )
        locations.add(str(PurePosixPath(location)))
    return sorted(locations)


def _needed_bytes(tensor: TensorProto) -> int:
    """How many bytes a tensor takes at least; 0 where its dimensions make no sense."""
    if tensor.data_type not in _WHOLE_BYTES or any(size < 0 for size in tensor.dims):
        return 0
    return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _checked_path(tensor: str, location: str, directory: Path) -> Path:
    if not location:
        raise InputError(f"tensor {tensor!r} has external data without a location")
    if "\0" in location:
        raise InputError(
            f"tensor {tensor!r} has its data at {location!r}, which is no file name: the model is "
            "damaged, export it again"
        )
    relative = PurePosixPath(location)
    path = directory / relative
    outside = relative.is_absolute() or ".." in relative.parts or "\\" in location
    if not outside:
        outside = not path.resolve().is_relative_to(directory.resolve())
    if outside:
        raise InputError(
            f"tensor {tensor!r} has its data at {location!r}, outside the model's folder "
            f"{directory}: such a model is refused"
        )
    if not path.is_file():
        raise InputError(
            f"external data file {path} of tensor {tensor!r} is missing: "
            "put it beside the model under that name"
        )
    return path


def _extent(tensor: str, entries: dict[str, str]) -> tuple[int, int]:
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
    except ValueError:
        offset = -1
        length = 0
    if offset < 0 or length < 0:
        raise InputError(f"tensor {tensor!r} has external data with an impossible offset or length")
    return offset, length


def load(path: Path) -> ModelProto:
    """Load a model that `save` wrote, weights included.

    Raises
    ------
    InputError
        If its external data is missing or lies outside the model's folder.
    """
    model = onnx.load(path, load_external_data=False)
    external_files(model, path.parent)
    external_data_helper.load_external_data_for_model(model, str(path.parent))
    return model


def save(model: ModelProto, path: Path, embedded_bytes: int = EMBEDDED_BYTES) -> None:
    """Write a model of any size, the model file itself last.

    Weights lie in ``<file name>.data`` beside it where the model exceeds ``embedded_bytes``.
    """
    if model_bytes(model) <= embedded_bytes:
        write_bytes(path, model.SerializeToString())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    location = f"{path.name}.data"
    light_model, weights = detach_weights(model)
    detached = {tensor.name for tensor in weights}
    kept = [value for value in light_model.graph.input if value.name not in detached]
    del light_model.graph.input[:]
    light_model.graph.input.extend(kept)
    with (path.parent / location).open("wb") as stream:
        for tensor in weights:
            content = _little_endian_bytes(tensor)
            _add_reference(light_model, tensor, location, stream.tell(), len(content))
            stream.write(content)
    write_bytes(path, light_model.SerializeToString())


class LightModel(NamedTuple):
    """A model without its large weights, and these as arrays beside it.

    onnxruntime takes both as they are (``SessionOptions.add_external_initializers``): nothing is
    parsed, written to a file, or copied for each session. Where a graph is rewritten, the weights
    need not be copied, either.

    Attributes
    ----------
    model : ModelProto
        Large weights lie in no file, whatever it says: their names are those of `arrays`.
    arrays : dict of arrays
    """

    model: ModelProto
    arrays: dict[str, np.ndarray]


def light(model: ModelProto | LightModel) -> LightModel:
    """Put a model's large weights beside it; those of types that NumPy lacks stay in.

    Raises
    ------
    InputError
        If these are too large for it.
    """
    if isinstance(model, LightModel):
        return model
    light_model, weights = detach_weights(model)
    detached = {tensor.name for tensor in weights}
    kept = [value for value in light_model.graph.input if value.name not in detached]
    del light_model.graph.input[:]
    light_model.graph.input.extend(kept)
    arrays = {}
    for tensor in weights:
        dtype = _WITH_ARRAYS.get(tensor.data_type)
        if dtype is None or tensor_bytes(tensor) < _LARGE_BYTES:
            light_model.graph.initializer.append(tensor)
            continue
        array = np.frombuffer(_little_endian_bytes(tensor), dtype).reshape(list(tensor.dims))
        arrays[tensor.name] = array
        _add_reference(light_model, tensor, _IN_MEMORY, 0, array.nbytes)
    embedded = [t for t in light_model.graph.initializer if t.name not in arrays]
    if sum(map(tensor_bytes, embedded)) > EMBEDDED_BYTES:
        raise InputError(
            "the weights whose type NumPy lacks, such as bfloat16, take more than 1.9 GB: convert "
            "them to float32 or float16"
        )
    return LightModel(light_model, arrays)


def _add_reference(
    light_model: ModelProto, tensor: TensorProto, location: str, offset: int, length: int
) -> None:
    """Name a tensor whose data lies elsewhere."""
    reference = light_model.graph.initializer.add()
    reference.name = tensor.name
    reference.data_type = tensor.data_type
    reference.dims.extend(tensor.dims)
    reference.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": offset, "length": length}
    for key, value in entries.items():
        reference.external_data.add(key=key, value=str(value))


def _little_endian_bytes(tensor: TensorProto) -> bytes:
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    array = onnx.numpy_helper.to_array(tensor)
    return onnx.numpy_helper.from_array(array).raw_data
