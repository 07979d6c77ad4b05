"""Binds inputs, such as a sampling rate, to constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import graph_inputs, remove_inputs
from fewtune.onnx_graph.shapes import declared_dimensions

# Constants are stored in model.yaml as text, so they are limited to what a person may write.
MAX_ELEMENTS = 4096


def constant_arrays(
    model: ModelProto,
    constants: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int],
) -> dict[str, np.ndarray]:
    """Convert the values given for inputs into arrays of the inputs' types and shapes.

    Parameters
    ----------
    model : ModelProto
    constants : mapping
        Input name to a number, a boolean, or nested lists of them. A number fills an input of any
        known shape.
    shapes, dimensions : mapping
        As for `fewtune.onnx_graph.shapes.input_shapes`: shapes that numbers fill.

    Returns
    -------
    arrays : dict
        Input name to array.

    Raises
    ------
    InputError
        If a name is no input, a value does not fit the input's type or shape, or no input is left.
    """
    by_name = {value.name: value for value in graph_inputs(model.graph)}
    arrays = {}
    for name, given in constants.items():
        if name not in by_name:
            raise InputError(
                f"a constant is given for {name!r}, which is no input of the model; "
                f"its inputs are {', '.join(by_name)}"
            )
        value = by_name[name]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        declared = declared_dimensions(value)
        wanted: list[int | str] | None = list(shapes[name]) if name in shapes else declared
        if wanted is not None:
            wanted = [dimensions.get(d, d) if isinstance(d, str) else d for d in wanted]
        arrays[name] = _shaped(name, _typed(name, given, dtype), wanted)
    if len(arrays) == len(by_name):
        raise InputError(
            "every input is bound by --constant: leave at least one open, there is nothing to "
            "run the model on otherwise"
        )
    return arrays


def empty_arrays(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Arrays for empty inputs, such as a past of no tokens, which have only one value."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    return {
        name: np.zeros(shape, helper.tensor_dtype_to_np_dtype(types[name]))
        for name, shape in shapes.items()
        if 0 in shape
    }


def bind_constants(model: ModelProto, arrays: Mapping[str, np.ndarray]) -> None:
    """Replace bound inputs by initialisers, in place."""
    remove_inputs(model.graph, arrays)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))


def _typed(name: str, given: Any, dtype: np.dtype[Any]) -> np.ndarray:
    try:
        array = np.asarray(given)
    except ValueError:  # lists of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"constant {name}={given!r}: give a number, or a list of numbers such as [1,2]"
        )
    if array.size > MAX_ELEMENTS:
        raise InputError(
            f"constant {name!r} has {array.size} numbers, more than {MAX_ELEMENTS}: make it an "
            "initializer of the model instead"
        )
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    exact = dtype.kind == "f" or np.array_equal(converted.astype(array.dtype), array)
    if not exact or (dtype.kind == "b" and not np.isin(array, (0, 1)).all()):
        raise InputError(
            f"constant {name}={given!r} is no {dtype.name}, which the model's input holds"
        )
    return converted


def _shaped(name: str, array: np.ndarray, wanted: Sequence[int | str] | None) -> np.ndarray:
    if wanted is None:
        return array
    if array.ndim == 0 and wanted:
        if not all(isinstance(size, int) for size in wanted):
            raise InputError(
                f"constant {name!r} is one number for an input with dynamic dimensions: give its "
                f"shape too, for example --shape {name}=1, or a list such as {name}=[{array}]"
            )
        return np.full([int(size) for size in wanted], array)
    fits = array.ndim == len(wanted) and all(
        isinstance(size, str) or size == given
        for size, given in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        shown = "x".join(str(size) or "?" for size in wanted) or "a scalar"
        found = "x".join(map(str, array.shape)) or "a scalar"
        raise InputError(f"constant {name!r} has the shape {found}, but the input has {shown}")
    return array
