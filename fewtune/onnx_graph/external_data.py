"""External data: weights in files beside a model, or in memory beside it."""

from __future__ import annotations

import itertools
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, external_data_helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import (
    DETACHED_BYTES,
    all_tensors,
    copy_model,
    detach_weights,
    is_native,
    remove_inputs,
    tensor_bytes,
)
from fewtune.util.files import write_bytes

# Protobuf refuses messages of 2 GB: the weights of larger models are written beside the model.
EMBEDDED_BYTES = 1_900_000_000
# Ends of the names of types whose elements share bytes.
_PACKED = ("INT2", "INT4", "FLOAT4E2M1")
# `light` detaches weights of at least this size.
_LARGE_BYTES = 2**16
# The weights that are in no file, by their location. `LightModel.arrays` keeps them.
_held: WeakValueDictionary[str, np.ndarray] = WeakValueDictionary()
_numbers = itertools.count()


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
        try:
            info = ExternalDataInfo(tensor)
        except ValueError as fault:
            raise InputError(
                f"tensor {tensor.name!r} has an impossible offset or length of its external data "
                f"({fault}): the model is damaged, export it again"
            ) from None
        location, offset, length = info.location, info.offset or 0, info.length or 0
        path = _checked_path(tensor.name, location, directory)
        size = path.stat().st_size
        is_packed = TensorProto.DataType.Name(tensor.data_type).endswith(_PACKED)
        needed = 0 if is_packed else tensor_bytes(tensor)
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


def _checked_path(tensor: str, location: str, directory: Path) -> Path:
    relative = PurePosixPath(location)
    path = directory / relative
    is_plain = bool(relative.name) and not set(location) & {"\0", "\\"}
    if (
        not is_plain
        or relative.is_absolute()
        or ".." in relative.parts
        or not path.resolve().is_relative_to(directory.resolve())
    ):
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


def load(path: Path) -> ModelProto:
    """Load a model that `save` wrote, weights included.

    Raises
    ------
    InputError
        If it is damaged, or its external data is missing or outside of the model's folder.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as fault:
        reason = getattr(fault, "strerror", None) or "it is no ONNX model, or is truncated"
        raise InputError(f"{path} cannot be read ({reason}): write it again") from None
    external_files(model, path.parent)
    external_data_helper.load_external_data_for_model(model, str(path.parent))
    return model


def save(model: ModelProto, path: Path) -> None:
    """Write a model of any size, the model file itself last.

    The weights of a model of more than `EMBEDDED_BYTES` are written to ``<file name>.data``.
    """
    # Protobuf's own ByteSize ends at 2 GB.
    light_model, weights = detach_weights(model)
    if light_model.ByteSize() + sum(map(tensor_bytes, weights)) <= EMBEDDED_BYTES:
        write_bytes(path, model.SerializeToString())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    location = f"{path.name}.data"
    (path.parent / location).unlink(missing_ok=True)
    copy = copy_model(model)
    external_data_helper.convert_model_to_external_data(
        copy, location=location, size_threshold=DETACHED_BYTES
    )
    external_data_helper.write_external_data_tensors(copy, str(path.parent))
    write_bytes(path, copy.SerializeToString())


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

    def whole(self) -> ModelProto:
        """A copy of the model with its weights in it."""
        model = ModelProto()
        model.CopyFrom(self.model)
        for tensor in model.graph.initializer:
            if tensor.name in self.arrays:
                bring_in(tensor)
        return model


def light(model: ModelProto | LightModel) -> LightModel:
    """Detach a model's large weights, except those of types that NumPy lacks.

    Those that a pass has left as they were in another light model are shared with it.

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
        made, kind = tensor, tensor.data_type
        if is_outside(tensor) or is_apart(kind, tensor_bytes(tensor)):
            array = arrays[tensor.name] = array_of(tensor)
            made = tensor if is_outside(tensor) else reference(tensor.name, kind, array)
        light_model.graph.initializer.append(made)
    embedded = [t for t in light_model.graph.initializer if t.name not in arrays]
    if sum(map(tensor_bytes, embedded)) > EMBEDDED_BYTES:
        raise InputError(
            "the weights whose type NumPy lacks, such as bfloat16, take more than 1.9 GB: convert "
            "them to float32 or float16"
        )
    return LightModel(light_model, arrays)


def is_apart(kind: int, size: int) -> bool:
    """Whether a weight of this ONNX type, and of so many bytes, is kept outside of the model."""
    return size >= _LARGE_BYTES and is_native(kind) and kind != TensorProto.BOOL


def reference(name: str, kind: int, array: np.ndarray) -> TensorProto:
    """A tensor without data, which refers to an array in memory that the caller keeps."""
    location = f"memory-{next(_numbers)}"
    _held[location] = array
    made = TensorProto(name=name, dims=array.shape, data_type=kind)
    made.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": 0, "length": array.nbytes}.items():
        made.external_data.add(key=key, value=str(value))
    return made


def is_outside(tensor: TensorProto) -> bool:
    """Whether a tensor refers to a weight of a light model, which is in memory."""
    return bool(tensor.external_data) and tensor.external_data[0].value in _held


def array_of(tensor: TensorProto) -> np.ndarray:
    """A tensor's values, of a light model's weights as well."""
    if is_outside(tensor):
        return _held[tensor.external_data[0].value]
    return numpy_helper.to_array(tensor)


def bring_in(tensor: TensorProto) -> None:
    """Write a weight into the tensor that refers to it."""
    tensor.CopyFrom(numpy_helper.from_array(array_of(tensor), tensor.name))
