"""TVM's importer of ONNX models: converters added to it, and faults that name their node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import onnx

# From builder, inputs, attributes and operator set to an expression; None leaves it to TVM.
Converter = Callable[[Any, list[Any], dict[str, Any], int], Any]
# A context around the conversion of one node, by operator and name.
Around = Callable[[str, str], AbstractContextManager[None]]


def known_operators() -> set[str]:
    """Operators that the importer knows.

    TVM lists its converters nowhere else.
    Test: tests/model/test_import_model.py::test_an_operator_that_tvm_lacks_is_named_with_its_node
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    return {*onnx_frontend._get_convert_map(), "If", "Constant"}


@contextmanager
def with_converters(
    ours: Mapping[str, Converter], around: Around, array_of: Callable[[Any], np.ndarray]
) -> Iterator[None]:
    """Within the block, the importer asks these converters before its own, and reads weights so.

    TVM has no public way to add a converter, and its faults name no node. It would have the whole
    model written and parsed to be checked, and then weights copied twice.
    Test: tests/model/converters/test_elementwise.py::test_activations_leave_no_transposes
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    theirs = onnx_frontend._get_convert_map
    reading, check = onnx_frontend.get_numpy, onnx.checker.check_model
    usual = theirs()
    joined = {
        name: _Node(name, ours.get(name), usual.get(name), around) for name in {*usual, *ours}
    }
    onnx_frontend._get_convert_map = lambda: joined
    onnx_frontend.get_numpy = array_of
    onnx.checker.check_model = lambda *_given, **_named: None
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = theirs
        onnx_frontend.get_numpy, onnx.checker.check_model = reading, check


class _Node:
    """The interface of a converter in TVM's importer."""

    def __init__(self, name: str, ours: Converter | None, usual: Any, around: Around) -> None:
        self._name, self._ours, self._usual, self._around = name, ours, usual, around

    def get_converter(self, opset: int) -> Callable[..., Any]:
        from tvm.relax.frontend.onnx.onnx_frontend import get_constant

        def convert(bb: Any, inputs: Any, attributes: dict[str, Any], params: Any) -> Any:
            node = attributes.get("tvm_custom", {}).get("name", "")
            with self._around(self._name, node):
                made = None
                if self._ours is not None:
                    known = [None if x is None else get_constant(x, params) for x in inputs]
                    made = self._ours(bb, known, attributes, opset)
                if made is None:
                    made = self._usual.get_converter(opset)(bb, inputs, attributes, params)
                return made

        return convert
