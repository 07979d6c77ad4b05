"""External data: weights in files beside a model, or in memory beside it."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, external_data_helper, helper

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import (
    all_tensors,
    detach_weights,
    model_bytes,
    remove_inputs,
    tensor_bytes,
)
from fewtune.util.files import write_bytes

# Protobuf refuses messages of 2 GB: the weights of larger models are written beside the model.
EMBEDDED_BYTES = 1_900_000_000
# Types whose elements are not packed into shared bytes.
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

# Types whose NumPy arrays onnxruntime uses without a copy.
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
# `light` detaches weights of at least this size.
_LARGE_BYTES = 2**16
# The location of weights that are in no file.
_IN_MEMORY = "memory"


def external_files(model: ModelProto, directory: Path) -> list[str]:
    """List the files of a model's external data, which is not loaded yet.

    Parameters
    ----------
    model : ModelProto
        Parsed from its file.
    directory : Path
        The folder of that file.

    Returns
    -------
    locations : list of str
        Paths relative to ``directory``, sorted, each once.

    Raises
    ------
    InputError
        If a file is missing, too short, or outside of ``directory``: a model from elsewhere must
        not make this process read or copy other files of the machine.
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
    """Bytes that a tensor takes at least; 0 if a dimension is negative."""
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
        If its external data is missing or outside of the model's folder.
    """
    model = onnx.load(path, load_external_data=False)
    external_files(model, path.parent)
    external_data_helper.load_external_data_for_model(model, str(path.parent))
    return model


def save(model: ModelProto, path: Path, embedded_bytes: int = EMBEDDED_BYTES) -> None:
    """Write a model of any size, the model file itself last.

    The weights of a model of more than ``embedded_bytes`` are written to ``<file name>.data``.
    """
    if model_bytes(model) <= embedded_bytes:
        write_bytes(path, model.SerializeToString())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    location = f"{path.name}.data"
    light_model, weights = detach_weights(model)
    remove_inputs(light_model.graph, {tensor.name for tensor in weights})
    with (path.parent / location).open("wb") as stream:
        for tensor in weights:
            content = _little_endian_bytes(tensor)
            _add_reference(light_model, tensor, location, stream.tell(), len(content))
            stream.write(content)
    write_bytes(path, light_model.SerializeToString())


class LightModel(NamedTuple):
    """A model without its large weights, and these as arrays.

    onnxruntime takes both without parsing, writing or copying a weight
    (``SessionOptions.add_external_initializers``). A graph is rewritten without copying them.

    Attributes
    ----------
    model : ModelProto
        Its external data is in ``arrays``, not in the file that it names.
    arrays : dict of arrays
        The large weights, by name.
    """

    model: ModelProto
    arrays: dict[str, np.ndarray]


def light(model: ModelProto | LightModel) -> LightModel:
    """Detach a model's large weights, except those of types that NumPy lacks.

    Raises
    ------
    InputError
        If the weights that stay in the model exceed `EMBEDDED_BYTES`.
    """
    if isinstance(model, LightModel):
        return model
    light_model, weights = detach_weights(model)
    remove_inputs(light_model.graph, {tensor.name for tensor in weights})
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
    """Add an initialiser that refers to external data."""
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
