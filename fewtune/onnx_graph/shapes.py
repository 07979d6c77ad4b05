"""Input shapes: dynamic dimensions bound to the sizes that a user gives."""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from onnx import ModelProto, TensorProto, ValueInfoProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import graph_inputs, type_name

SUPPORTED_TYPES = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT8,
    TensorProto.INT16,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT8,
    TensorProto.UINT16,
    TensorProto.UINT32,
    TensorProto.UINT64,
    TensorProto.BOOL,
)

# Sizes of dynamic dimensions in the example of a shape that an error gives.
_EXAMPLE_IMAGE = 224
_EXAMPLE_LENGTH = 128

# Names that exporters write for every unknown axis: two axes of one such name may differ.
_FILLERS = frozenset({"", "?", "*", "-1", "none", "null", "unk", "unknown"})

# Operators and functions in the names of dimensions that follow from others.
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., float]]
_FUNCTIONS = {"floor": math.floor, "ceil": math.ceil, "max": max, "min": min}

_NOT_NUMBERS = (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128)


def check_types(model: ModelProto) -> None:
    """Refuse models with inputs, outputs or weights of types that are not supported.

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
            word = kind.removesuffix("_type").replace("_", " ")
            raise InputError(
                f"{role} {value.name!r} is {'an' if word[0] in 'aeiou' else 'a'} {word}; only "
                f"tensors of {supported} are supported: give each of its tensors a name of its own"
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
        unknown = tensor.data_type not in TensorProto.DataType.values()
        if unknown or tensor.data_type in _NOT_NUMBERS:
            raise InputError(
                f"initialiser {tensor.name!r} holds {_words(tensor.data_type)}; "
                f"supported are {supported}"
            )


def _words(element_type: int) -> str:
    if element_type not in TensorProto.DataType.values():
        return f"the unknown element type {element_type}"
    return TensorProto.DataType.Name(element_type).lower()


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
    found = {
        value.name: _bound(value, shapes.get(value.name), sizes)
        for value in inputs
        if value.name not in constants
    }
    if found and all(0 in shape for shape in found.values()):
        name, shape = next(iter(found.items()))
        raise InputError(f"{_given(name, shape)}: every size must be 1 or more")
    return found


def declared_dimensions(value: ValueInfoProto) -> list[int | str] | None:
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
    declared = declared_dimensions(value)
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
    declared = {name: declared_dimensions(value) or [] for name, value in inputs.items()}
    axes = Counter(d for dims in declared.values() for d in dims if isinstance(d, str))
    fillers = {name for name in axes if is_filler(name)}
    named = axes.keys() - fillers
    for name, size in dimensions.items():
        if size < 0:
            raise InputError(f"dimension {name}={size}: the size must be 1 or more")
        if name in fillers and axes[name] == 1 and name:
            continue
        if name in fillers:
            raise InputError(
                f"dimension {name!r} is the name of {axes[name]} axes of unknown size: give the "
                "shape of each input with --shape"
            )
        if name not in named:
            known = ", ".join(sorted(named)) or "none"
            raise InputError(
                f"dimension {name!r} is given, but no input has it; dynamic dimensions: {known}"
            )
    sizes = dict(dimensions)
    for name, shape in shapes.items():
        own: dict[str, set[int]] = {}
        for dimension, size in zip(declared[name], shape, strict=False):
            if isinstance(dimension, str) and dimension not in fillers:
                own.setdefault(dimension, set()).add(size)
        for dimension, found in own.items():
            # An input with two sizes for one name shows that the name has no meaning.
            if len(found) > 1 and dimension not in dimensions:
                continue
            for size in sorted(found):
                if sizes.setdefault(dimension, size) != size:
                    raise InputError(
                        f"dimension {dimension!r} is given twice: as {sizes[dimension]}, "
                        f"and as {size} by the shape of input {name!r}"
                    )
    for name in named - sizes.keys():
        computed = _computed_size(name, sizes)
        if computed is not None:
            sizes[name] = computed
    return sizes


def _computed_size(name: str, sizes: Mapping[str, int]) -> int | None:
    """Size of a dimension whose name is a formula of others; None for other names.

    Exporters write ``past_sequence_length + 1`` or ``2*s0`` for a size that follows from others.
    """
    try:
        size = _value_of(ast.parse(name.strip(), mode="eval").body, sizes)
    except (SyntaxError, KeyError, ValueError, TypeError, ZeroDivisionError):
        return None
    return int(size) if size == int(size) and size >= 1 else None


def _value_of(term: ast.expr, sizes: Mapping[str, int]) -> float:
    """Value of a term; raises KeyError or ValueError if a part of it is not known."""
    if isinstance(term, ast.Constant) and isinstance(term.value, int):
        return term.value
    if isinstance(term, ast.Name):
        return sizes[term.id]
    if isinstance(term, ast.BinOp) and type(term.op) in _ARITHMETIC:
        left, right = _value_of(term.left, sizes), _value_of(term.right, sizes)
        return _ARITHMETIC[type(term.op)](left, right)
    if isinstance(term, ast.Call) and isinstance(term.func, ast.Name):
        function = _FUNCTIONS[term.func.id.lower()]
        return function(*(_value_of(each, sizes) for each in term.args))
    raise ValueError("not a term of dimensions")


def is_filler(name: str) -> bool:
    """Whether a dimension's name is one that exporters write for every unknown axis."""
    return name.strip().lower() in _FILLERS


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
            called = f"at axis {axis}" if is_filler(size) else f"{size!r} (axis {axis})"
            asked = f"give its shape, for example --shape {value.name}={_example(bound)}"
            dim = value.type.tensor_type.shape.dim[axis]
            if dim.HasField("dim_value") and dim.dim_value == 0:
                empty = _example([*bound[:axis], 0, *bound[axis + 1 :]])
                asked += f"; --shape {value.name}={empty} if it has no elements, as the file says"
            raise InputError(f"input {value.name!r} has a dynamic dimension {called}: {asked}")
    return [int(size) for size in bound]


def _example(sizes: Sequence[int | str]) -> str:
    """A shape in which usual sizes replace the open dimensions."""
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


def _given(name: str, shape: Sequence[int]) -> str:
    return f"shape {name}={','.join(map(str, shape))}"


def _shown(declared: Sequence[int | str]) -> str:
    return "x".join(str(d) if d else "?" for d in declared) or "a scalar"
