"""The shapes a model is tuned for: dynamic dimensions bound to the user's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import ModelProto, TensorProto, ValueInfoProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import graph_inputs, type_name

SUPPORTED_TYPES = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
)

# Sizes for an error's example of a shape, where nothing is known of a dimension but its place.
_EXAMPLE_IMAGE = 224
_EXAMPLE_LENGTH = 128


def check_types(model: ModelProto) -> None:
    """Refuse models whose inputs, outputs or weights are of a kind that cannot be tuned.

    Raises
    ------
    InputError
        Naming the first input, output or initialiser and its type.
    """
    supported = ", ".join(type_name(element_type) for element_type in SUPPORTED_TYPES)
    values = [("input", value) for value in graph_inputs(model.graph)]
    values += [("output", value) for value in model.graph.output]
    for role, value in values:
        kind = value.type.WhichOneof("value")
        if kind not in ("tensor_type", None):
            raise InputError(
                f"{role} {value.name!r} is a {kind.removesuffix('_type').replace('_', ' ')}; "
                f"only tensors of {supported} are supported"
            )
        element_type = value.type.tensor_type.elem_type
        # An output may leave its type to be inferred; an input may not.
        if element_type == TensorProto.UNDEFINED and role == "output":
            continue
        if element_type not in SUPPORTED_TYPES:
            raise InputError(
                f"{role} {value.name!r} holds {_words(element_type)}; supported are {supported}"
            )
    for tensor in model.graph.initializer:
        if tensor.data_type in (
            TensorProto.STRING,
            TensorProto.COMPLEX64,
            TensorProto.COMPLEX128,
        ):
            raise InputError(
                f"initialiser {tensor.name!r} holds {_words(tensor.data_type)}; "
                f"supported are {supported}"
            )


def _words(element_type: int) -> str:
    return TensorProto.DataType.Name(element_type).lower()


def input_shapes(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int],
) -> dict[str, list[int]]:
    """Work out the static shape of every input.

    Parameters
    ----------
    model : ModelProto
        Weights may still be external.
    shapes : mapping
        Input name to its shape. A named dynamic dimension bound here is bound in every input.
    dimensions : mapping
        Name of a dynamic dimension to its size.

    Returns
    -------
    shapes : dict
        Input name to shape, all sizes positive, in the order of the inputs.

    Raises
    ------
    InputError
        If a dimension is left open, or a given shape or dimension does not fit the model.
    """
    inputs = graph_inputs(model.graph)
    by_name = {value.name: value for value in inputs}
    for name, shape in shapes.items():
        if name not in by_name:
            raise InputError(
                f"a shape is given for {name!r}, which is no input of the model; "
                f"its inputs are {', '.join(by_name)}"
            )
        _check_against_declared(by_name[name], shape)
    sizes = _dimension_sizes(by_name, shapes, dimensions)
    return {value.name: _bound(value, shapes.get(value.name), sizes) for value in inputs}


def declared_dimensions(value: ValueInfoProto) -> list[int | str] | None:
    """Sizes, or names (perhaps empty) where dynamic; None where even the rank is open."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else d.dim_param
        for d in value.type.tensor_type.shape.dim
    ]


def _check_against_declared(value: ValueInfoProto, shape: Sequence[int]) -> None:
    text = ",".join(str(size) for size in shape)
    if any(size < 1 for size in shape):
        raise InputError(f"shape {value.name}={text}: every size must be 1 or more")
    declared = declared_dimensions(value)
    if declared is None:
        return
    if len(declared) != len(shape):
        raise InputError(
            f"shape {value.name}={text} has {len(shape)} dimensions, "
            f"but the model's input has {len(declared)}: {_shown(declared)}"
        )
    for axis, (size, fixed) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(fixed, int) and fixed != size:
            raise InputError(
                f"shape {value.name}={text}: dimension {axis} is fixed to {fixed} in the model, "
                f"whose input is {_shown(declared)}"
            )


def _dimension_sizes(
    inputs: Mapping[str, ValueInfoProto],
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int],
) -> dict[str, int]:
    """Size of every named dimension that the user bound, directly or by an input's shape."""
    declared = {name: declared_dimensions(value) or [] for name, value in inputs.items()}
    named = {d for dims in declared.values() for d in dims if isinstance(d, str) and d}
    for name, size in dimensions.items():
        if name not in named:
            known = ", ".join(sorted(named)) or "none"
            raise InputError(
                f"dimension {name!r} is given, but no input has it; dynamic dimensions: {known}"
            )
        if size < 1:
            raise InputError(f"dimension {name}={size}: the size must be 1 or more")
    sizes = dict(dimensions)
    for name, shape in shapes.items():
        for dimension, size in zip(declared[name], shape, strict=False):
            if not isinstance(dimension, str) or not dimension:
                continue
            if sizes.setdefault(dimension, size) != size:
                raise InputError(
                    f"dimension {dimension!r} is given twice: as {sizes[dimension]}, "
                    f"and as {size} by the shape of input {name!r}"
                )
    return sizes


def _bound(
    value: ValueInfoProto, shape: Sequence[int] | None, sizes: Mapping[str, int]
) -> list[int]:
    if shape is not None:
        return list(shape)
    declared = declared_dimensions(value)
    if declared is None:
        raise InputError(
            f"input {value.name!r} has no shape in the model: give one, "
            f"for example --shape {value.name}=1,3,{_EXAMPLE_IMAGE},{_EXAMPLE_IMAGE}"
        )
    bound = [sizes.get(d, d) if isinstance(d, str) else d for d in declared]
    for axis, size in enumerate(bound):
        if isinstance(size, str):
            called = f"{size!r} (axis {axis})" if size else f"at axis {axis}"
            raise InputError(
                f"input {value.name!r} has a dynamic dimension {called}: give its shape, "
                f"for example --shape {value.name}={_example(bound)}"
            )
    return [int(size) for size in bound]


def _example(sizes: Sequence[int | str]) -> str:
    """A shape with the open dimensions filled by what is usual at their place."""
    filled = []
    for axis, size in enumerate(sizes):
        if isinstance(size, int):
            filled.append(size)
        elif axis == 0:
            filled.append(1)
        elif len(sizes) == 4:
            filled.append(3 if axis == 1 else _EXAMPLE_IMAGE)
        else:
            filled.append(_EXAMPLE_LENGTH)
    return ",".join(str(size) for size in filled)


def _shown(declared: Sequence[int | str]) -> str:
    return "x".join(str(d) if d else "?" for d in declared) or "a scalar"
