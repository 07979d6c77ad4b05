"""Sample inputs of the user: an ``.npz`` file with an array for every input."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import graph_inputs, type_name
from fewtune.onnx_graph.shapes import declared_dimensions

_UNREADABLE = (
    OSError, ValueError, EOFError, KeyError, MemoryError, AttributeError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_samples(path: Path) -> dict[str, np.ndarray]:
    """Read an ``.npz`` file: input name to array.

    Raises
    ------
    InputError
        If it is missing, damaged, or holds anything but plain arrays.
    """
    if not path.is_file():
        raise InputError(f"no such file: {path}; write it with numpy.savez(path, INPUT=array, ..)")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(
                    f"{path} holds one array without a name: write an .npz file with "
                    "numpy.savez(path, INPUT=array, ..)"
                )
            return {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path} is no .npz file of plain arrays ({reason}): write it with "
            "numpy.savez(path, INPUT=array, ..)"
        ) from None


def sample_shapes(
    model: ModelProto,
    samples: Mapping[str, np.ndarray],
    shapes: Mapping[str, Sequence[int]],
    constants: Collection[str],
) -> dict[str, list[int]]:
    """Check sample inputs against a model, and bind its dynamic dimensions by their shapes.

    Parameters
    ----------
    model : ModelProto
    samples : mapping
        From `read_samples`.
    shapes : mapping
        Shapes that the user gives; the samples must have them.
    constants : collection of str
        Inputs that are bound to a value: the samples must leave them out.

    Returns
    -------
    shapes : dict
        The given shapes, and those of samples of inputs with dynamic dimensions.

    Raises
    ------
    InputError
        If an input is missing, or a name, a type, a shape or a value does not fit.
    """
    by_name = {value.name: value for value in graph_inputs(model.graph)}
    wanted = [name for name in by_name if name not in constants]
    for name in samples:
        if name in constants:
            raise InputError(
                f"the sample inputs hold {name!r}, which --constant binds: leave it out of one"
            )
        if name not in by_name:
            raise InputError(
                f"the sample inputs hold {name!r}, which is no input of the model; "
                f"its inputs are {', '.join(wanted)}"
            )
    bound = {name: list(shape) for name, shape in shapes.items()}
    for name in wanted:
        if name not in samples:
            raise InputError(
                f"the sample inputs hold no array for input {name!r}: give one for each of "
                f"{', '.join(wanted)}"
            )
        array, value = samples[name], by_name[name]
        dtype = type_name(value.type.tensor_type.elem_type)
        if array.dtype.name != dtype:
            raise InputError(
                f"sample input {name!r} holds {array.dtype.name}, the model wants {dtype}: "
                f"save it with .astype({dtype!r})"
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise InputError(f"sample input {name!r} holds NaN: outputs could not be compared")
        if array.size == 0:
            raise InputError(f"sample input {name!r} is empty: every size must be 1 or more")
        if name in shapes and list(shapes[name]) != list(array.shape):
            given = ",".join(map(str, shapes[name]))
            found = ",".join(map(str, array.shape))
            raise InputError(
                f"sample input {name!r} has the shape {found}, but --shape says {given}"
            )
        declared = declared_dimensions(value)
        if declared is None or declared != list(array.shape):
            # `input_shapes` refuses shapes that differ from fixed sizes.
            bound[name] = list(array.shape)
    return bound
