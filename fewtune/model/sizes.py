"""Several shapes of one model, as a user gives them: one list of sizes, a shape each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

from onnx import ModelProto

from fewtune.artifacts import ShapeFunction
from fewtune.deploy.note import Paddable
from fewtune.errors import InputError
from fewtune.model.registration import Sizes
from fewtune.onnx_graph.graph import graph_inputs
from fewtune.onnx_graph.inputs import input_shapes

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
    rows: dict[str, list[dict[str, list[int]]]] = {}
    regimes: list[str] = []
    given: Any = shapes or {}
    if isinstance(shapes, Mapping):
        regimes = [name for name, each in shapes.items() if isinstance(each, Mapping)]
    if regimes:
        for name in given.keys() - regimes:
            raise InputError(f"shapes of {name!r} have no name: name each shape, or none")
        given = list(given.values())
    if isinstance(given, Mapping):
        for name, one in given.items():
            several = one if one and isinstance(one[0], Sequence) else [one]
            rows[f"shapes of {name}"] = [{name: list(shape)} for shape in several]
    elif given:
        rows["shapes"] = [{n: list(shape) for n, shape in each.items()} for each in given]
    sizes = {
        name: [size] if isinstance(size, int) else list(size)
        for name, size in (dimensions or {}).items()
    }
    counts = {what: len(each) for what, each in rows.items()}
    counts |= {f"values of dimension {name}": len(each) for name, each in sizes.items()}
    counts = {what: count for what, count in counts.items() if count != 1}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        text = " and ".join(f"{count} {what}" for what, count in counts.items())
        raise InputError(f"{text} are given: give equally many of each, or one")
    found: list[Sizes] = []
    for place in range(max(counts.values(), default=1)):
        own: dict[str, list[int]] = {}
        for row in rows.values():
            own |= row[place % len(row)]
        # Checked against the model, with a sentence, before they are kept.
        one = Sizes.model_construct(
            shapes=own,
            dimensions={n: each[place % len(each)] for n, each in sizes.items()},
            regime=regimes[place] if place < len(regimes) else "",
        )
        if any(one.text == each.text for each in found):
            raise InputError(f"the shape {one.text} is given twice: give it once")
        found.append(one)
    return found


def largest_first(
    model: ModelProto, sizes: Sequence[Sizes], constants: Mapping[str, object]
) -> list[Sizes]:
    """Order shapes by the elements of the inputs; each is checked against the model."""

    def elements(each: Sizes) -> int:
        return sum(map(prod, input_shapes(model, each.shapes, each.dimensions, constants).values()))

    return sorted(sizes, key=elements, reverse=True)


def check_paddable(model: ModelProto, paddable: Collection[str]) -> None:
    """Refuse a paddable dimension that no input has."""
    known = {
        dimension.dim_param
        for value in graph_inputs(model.graph)
        for dimension in value.type.tensor_type.shape.dim
        if dimension.dim_param
    }
    for name in paddable:
        if name not in known:
            raise InputError(
                f"dimension {name!r} is to be paddable, but no input has it; dynamic dimensions: "
                f"{', '.join(sorted(known)) or 'none'}"
            )


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
        sizes = [_size_of(function, inputs) for function in functions]
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


def _size_of(function: ShapeFunction, inputs: Mapping[str, int]) -> int:
    name, axis = next(iter(inputs.items()))
    return next(each.shape[axis] for each in function.inputs if each.name == name)
