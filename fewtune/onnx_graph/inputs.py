"""What a user gives for a model's inputs: sizes, constants, and sample arrays."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import graph_inputs, type_name
from fewtune.util.asked import asked

# Names that exporters write for every unknown axis: two axes of one such name may differ.
_FILLERS = frozenset({"", "?", "*", "-1", "none", "null", "unk", "unknown"})


def input_shapes(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int],
    constants: Collection[str] = (),
) -> dict[str, list[int]]:
    """Bind the shape of every input.

    Parameters
    ----------
    model : ModelProto
        Its weights may be external.
    shapes : mapping
        Input name to shape. A named dynamic dimension bound here is bound in every input.
    dimensions : mapping
        Name of a dynamic dimension to its size.
    constants : collection of str
        Inputs that are bound to a value: they need no shape.

    Returns
    -------
    shapes : dict
        Input name to shape, in the order of the inputs. Some inputs may be empty, such as the past
        at a language model's first step, but not all.

    Raises
    ------
    InputError
        If a dimension is left open, or a given shape or dimension does not fit the model.
    """
    by_name = _inputs_by_name(model)
    for name, shape in shapes.items():
        if name not in by_name:
            raise InputError(_no_input(f"a shape is given for {name!r}", by_name))
        _check_against_declared(by_name[name], shape)
    sizes = _dimension_sizes(by_name, shapes, dimensions)
    found = {
        name: list(shapes[name]) if name in shapes else _bound(value, sizes)
        for name, value in by_name.items()
        if name not in constants
    }
    if found and all(0 in shape for shape in found.values()):
        name, shape = next(iter(found.items()))
        raise InputError(f"{_given(name, shape)}: every size must be 1 or more")
    return found


def _inputs_by_name(model: ModelProto) -> dict[str, ValueInfoProto]:
    return {value.name: value for value in graph_inputs(model.graph)}


def _no_input(given: str, inputs: Collection[str]) -> str:
    return f"{given}, which is no input of the model; its inputs are {', '.join(inputs)}"


def _declared_dimensions(value: ValueInfoProto) -> list[int | str] | None:
    """Size of each axis, or its name (perhaps empty) if it is dynamic; None if the rank is open."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else d.dim_param
        for d in value.type.tensor_type.shape.dim
    ]


def _check_against_declared(value: ValueInfoProto, shape: Sequence[int]) -> None:
    text = _given(value.name, shape)
    if any(size < 0 for size in shape):
        raise InputError(f"{text}: every size must be 1 or more")
    declared = _declared_dimensions(value)
    if declared is None:
        return
    if len(declared) != len(shape):
        raise InputError(
            f"{text} has {len(shape)} dimensions, "
            f"but the model's input has {len(declared)}: {_shown(declared)}"
        )
    for axis, (size, fixed) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(fixed, int) and fixed != size:
            raise InputError(
                f"{text}: dimension {axis} is fixed to {fixed} in the model, "
                f"whose input is {_shown(declared)}"
            )


def _dimension_sizes(
    inputs: Mapping[str, ValueInfoProto],
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int],
) -> dict[str, int]:
    """Size of every named dimension that the user bound, directly or by an input's shape."""
    declared = {name: _declared_dimensions(value) or [] for name, value in inputs.items()}
    every = (each for dims in declared.values() for each in dims)
    named = {each for each in every if isinstance(each, str) and not _is_filler(each)}
    check_dimensions(inputs.values(), dimensions)
    sizes = dict(dimensions)
    for name, shape in shapes.items():
        pairs = zip(map(str, declared[name]), shape, strict=False)
        given = {(dimension, size) for dimension, size in pairs if dimension in named}
        counts = Counter(dimension for dimension, _ in given)
        for dimension, size in sorted(given):
            # An input with two sizes for one name shows that the name has no meaning.
            is_name = counts[dimension] == 1 or dimension in dimensions
            if is_name and sizes.setdefault(dimension, size) != size:
                raise InputError(
                    f"dimension {dimension!r} is given twice: as {sizes[dimension]}, "
                    f"and as {size} by the shape of input {name!r}"
                )
    computed = {name: _computed_size(name, sizes) for name in named - sizes.keys()}
    return sizes | {name: size for name, size in computed.items() if size is not None}


def check_dimensions(inputs: Iterable[ValueInfoProto], dimensions: Mapping[str, int]) -> None:
    """Refuse dimensions that a user gives, but that no input has by one meaning."""
    names = [d for value in inputs for d in _declared_dimensions(value) or [] if isinstance(d, str)]
    for name, size in dimensions.items():
        if size < 0:
            raise InputError(f"dimension {name}={size}: the size must be 1 or more")
        if name not in names or not name:
            known = ", ".join(sorted({each for each in names if not _is_filler(each)})) or "none"
            raise InputError(
                f"dimension {name!r} is given, but no input has it; dynamic dimensions: {known}"
            )
        if _is_filler(name) and names.count(name) > 1:
            raise InputError(
                f"dimension {name!r} is the name of {names.count(name)} axes of unknown size: give "
                f"the shape of each input with {asked('shape')}"
            )


def _computed_size(name: str, sizes: Mapping[str, int]) -> int | None:
    """Size of a dimension whose name is a sum of others, such as ``past_length + 1``."""
    parts = re.split(r"\s*\+\s*", name.strip())
    terms = [int(term) if term.isdecimal() else sizes.get(term) for term in parts]
    return None if None in terms else sum(filter(None, terms)) or None


def _is_filler(name: str) -> bool:
    return name.strip().lower() in _FILLERS


def _bound(value: ValueInfoProto, sizes: Mapping[str, int]) -> list[int]:
    declared = _declared_dimensions(value)
    if declared is None:
        raise InputError(
            f"input {value.name!r} has no shape in the model: give one, "
            f"for example {asked('shape', value.name, '1,3,224,224')}"
        )
    bound = [sizes.get(d, d) if isinstance(d, str) else d for d in declared]
    for axis, size in enumerate(bound):
        if isinstance(size, str):
            called = f"at axis {axis}" if _is_filler(size) else f"{size!r} (axis {axis})"
            advice = asked("shape", value.name, ",".join(str(each) or "?" for each in bound))
            raise InputError(
                f"input {value.name!r} has a dynamic dimension {called}: give its shape, as in "
                f"{advice} with a number for each name"
            )
    return [int(size) for size in bound]


def _given(name: str, shape: Sequence[int]) -> str:
    return f"shape {name}={','.join(map(str, shape))}"


def _shown(declared: Sequence[int | str]) -> str:
    return "x".join(str(d) if d else "?" for d in declared) or "a scalar"


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
        As for `input_shapes`: shapes that numbers fill.

    Returns
    -------
    arrays : dict
        Input name to array.

    Raises
    ------
    InputError
        If a name is no input, a value does not fit the input's type or shape, or no input is left.
    """
    by_name = _inputs_by_name(model)
    arrays = {}
    for name, given in constants.items():
        if name not in by_name:
            raise InputError(_no_input(f"a constant is given for {name!r}", by_name))
        value = by_name[name]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        wanted: list[int | str] | None
        wanted = list(shapes[name]) if name in shapes else _declared_dimensions(value)
        if wanted is not None:
            wanted = [dimensions.get(d, d) if isinstance(d, str) else d for d in wanted]
        arrays[name] = _shaped(name, _typed(name, given, dtype), wanted)
    if len(arrays) == len(by_name):
        raise InputError(
            f"every input is bound by {asked('constant')}: leave one open, there is nothing to "
            "run the model on otherwise"
        )
    return arrays


def _typed(name: str, given: Any, dtype: np.dtype[Any]) -> np.ndarray:
    try:
        array = np.asarray(given)
    except ValueError:  # lists of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"constant {name}={given!r}: give a number, or a list of numbers such as [1,2]"
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
    sizes = [size for size in wanted if isinstance(size, int)]
    if array.ndim == 0 and len(sizes) == len(wanted):
        return np.full(sizes, array)
    fits = array.ndim == len(wanted) and all(
        isinstance(size, str) or size == given
        for size, given in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"constant {name!r} has the shape {_shown(array.shape)}, but the input has "
            f"{_shown(wanted)}: give such a list, or a number and {asked('shape', name, '1')}"
        )
    return array


def read_samples(path: Path) -> dict[str, np.ndarray]:
    """Read an ``.npz`` file: input name to array.

    Raises
    ------
    InputError
        If it is missing, damaged, or holds anything but plain arrays.
    """
    hint = "write it with numpy.savez(path, INPUT=array, ..)"
    if not path.is_file():
        raise InputError(f"no such file: {path}; {hint}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if isinstance(archive, np.lib.npyio.NpzFile):
                return {name: archive[name] for name in archive.files}
    except Exception as error:  # noqa: BLE001 (NumPy raises many kinds)
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is no .npz file of plain arrays ({reason}): {hint}") from None
    raise InputError(f"{path} holds one array without a name: {hint}")


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
    by_name = {name: v for name, v in _inputs_by_name(model).items() if name not in constants}
    for name in samples:
        if name in constants:
            raise InputError(
                f"the sample inputs hold {name!r}, which {asked('constant')} binds: leave it out "
                "of one"
            )
        if name not in by_name:
            raise InputError(_no_input(f"the sample inputs hold {name!r}", by_name))
    bound = {name: list(shape) for name, shape in shapes.items()}
    for name, value in by_name.items():
        if name not in samples:
            raise InputError(
                f"the sample inputs hold no array for input {name!r}: give one for each of "
                f"{', '.join(by_name)}"
            )
        array = samples[name]
        _check_sample(name, array, type_name(value.type.tensor_type.elem_type), shapes.get(name))
        if _declared_dimensions(value) != list(array.shape):
            # `input_shapes` refuses shapes that differ from fixed sizes.
            bound[name] = list(array.shape)
    return bound


def _check_sample(name: str, array: np.ndarray, dtype: str, shape: Sequence[int] | None) -> None:
    if array.dtype.name != dtype:
        raise InputError(
            f"sample input {name!r} holds {array.dtype.name}, the model wants {dtype}: "
            f"save it with .astype({dtype!r})"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InputError(f"sample input {name!r} holds NaN: outputs could not be compared")
    if array.size == 0:
        raise InputError(f"sample input {name!r} is empty: every size must be 1 or more")
    if shape is not None and list(shape) != list(array.shape):
        found = ",".join(map(str, array.shape))
        raise InputError(
            f"sample input {name!r} has the shape {found}, but {asked('shape')} says "
            f"{','.join(map(str, shape))}"
        )
