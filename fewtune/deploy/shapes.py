"""Inputs of a shape that a library lacks: padded up to one that it has, or onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from fewtune.deploy.bound import Bound
from fewtune.deploy.note import Function, Note, Tensor
from fewtune.errors import InputError, MachineError, last_line


def padding_for(note: Note, arrays: Sequence[np.ndarray]) -> tuple[Function, dict[str, int]] | None:
    """The smallest function that the arrays can be padded for, and each dimension's size as given.

    None without one. Only dimensions that the user declared paddable grow, each alike in every
    input that has it.
    """
    names = [spec.name for spec in note.functions[0].inputs]
    given = dict(zip(names, (array.shape for array in arrays), strict=True))
    sizes: dict[str, int] = {}
    for each in note.paddable:
        found = {given[name][axis] for name, axis in each.inputs.items() if len(given[name]) > axis}
        if len(found) != 1:
            return None
        sizes[each.name] = found.pop()
    axes = {(name, axis) for each in note.paddable for name, axis in each.inputs.items()}

    def takes(function: Function) -> bool:
        return all(
            len(given[spec.name]) == len(spec.shape)
            and all(
                size == known or (size < known and (spec.name, axis) in axes)
                for axis, (size, known) in enumerate(zip(given[spec.name], spec.shape, strict=True))
            )
            for spec in function.inputs
        )

    def elements(function: Function) -> int:
        return sum(int(np.prod(spec.shape)) for spec in function.inputs)

    fitting = [function for function in note.functions if takes(function)]
    return (min(fitting, key=elements), sizes) if fitting else None


class Padded:
    """A function of the library that serves smaller inputs: outputs are cut back.

    Parameters
    ----------
    bound : Bound
    sizes : mapping of str to int
        Of the padded dimensions, as they were given.
    note : Note
    """

    def __init__(self, bound: Bound, sizes: Mapping[str, int], note: Note) -> None:
        self._bound, self._sizes, self._note = bound, sizes, note
        self.function = replace(
            bound.function, outputs=tuple(map(self._cut, bound.function.outputs))
        )
        self.text = f"{bound.text}, padded"

    def padded(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays filled up with the values that were declared."""
        made = []
        for spec, array in zip(self._bound.function.inputs, arrays, strict=True):
            for each in self._note.paddable:
                axis = each.inputs.get(spec.name)
                if axis is not None:
                    widths = [(0, 0)] * array.ndim
                    widths[axis] = (0, spec.shape[axis] - array.shape[axis])
                    array = np.pad(array, widths, constant_values=array.dtype.type(each.value))
            made.append(array)
        return made

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run on padded arrays."""
        given = zip(self._bound.run(arrays), self.function.outputs, strict=True)
        return [array[tuple(map(slice, spec.shape))] for array, spec in given]

    def _cut(self, spec: Tensor) -> Tensor:
        """An output without what belongs to the padding."""
        shape = list(spec.shape)
        for each in self._note.paddable:
            if spec.name in each.outputs:
                shape[each.outputs[spec.name]] = self._sizes[each.name]
        return replace(spec, shape=tuple(shape))


class Peer:
    """Onnxruntime, which serves the shapes that the library lacks, where that was asked for.

    Parameters
    ----------
    model : Path
        The ONNX file.
    note : Note
    threads : int
    """

    def __init__(self, model: Path, note: Note, threads: int) -> None:
        try:
            onnxruntime = import_module("onnxruntime")
        except ImportError:
            raise MachineError(
                f"{model} is to serve other shapes, and onnxruntime is not installed: install it, "
                "or give no fallback"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self._session = onnxruntime.InferenceSession(str(model), options)
        except Exception as fault:  # noqa: BLE001 (onnxruntime raises several kinds)
            reason = last_line(fault)
            raise InputError(f"{model} cannot be loaded by onnxruntime: {reason}") from None
        first = note.functions[0]
        outputs = {each.name for each in self._session.get_outputs()}
        inputs = {each.name for each in self._session.get_inputs()}
        lacking = [each.name for each in first.outputs if each.name not in outputs]
        lacking += [each.name for each in first.inputs if each.name not in inputs]
        if lacking or len(inputs) != len(first.inputs):
            raise InputError(
                f"{model} is another model than the library's: its inputs are "
                f"{', '.join(sorted(inputs))}, its outputs {', '.join(sorted(outputs))}"
            )
        self.function = first
        self.text = "onnxruntime"

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once."""
        names = [spec.name for spec in self.function.outputs]
        specs = self.function.inputs
        feeds = {spec.name: array for spec, array in zip(specs, arrays, strict=True)}
        try:
            return list(self._session.run(names, feeds))
        except Exception as fault:  # noqa: BLE001 (onnxruntime raises several kinds)
            reason = last_line(fault)
            raise InputError(f"onnxruntime cannot run the model on this: {reason}") from None
