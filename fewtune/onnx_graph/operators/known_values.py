"""Names, types and values of small constants of a graph under construction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fewtune.onnx_graph.external_data import array_of
from fewtune.onnx_graph.graph import RANDOM, element_count, opset_of

# Values up to this size are folded while the graph is built: shapes, counters, conditions.
FOLDED_ELEMENTS = 1024
# Dequantized weights are kept as integers (`fewtune.onnx_graph.quantized`).
_KEPT = RANDOM | {"DequantizeLinear", "QuantizeLinear"}


class KnownValues:
    """Names, types and constants of a graph.

    Parameters
    ----------
    model : ModelProto
        It is left as it is.
    """

    def __init__(self, model: ModelProto) -> None:
        self.opset = opset_of(model)
        self._types: dict[str, TypeProto] = {}
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._given = set(self._tensors)
        self._values: dict[str, np.ndarray] = {}
        self._by_content: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._counts: dict[str, int] = {}
        self._names = set(self._tensors)
        for name, tensor in self._tensors.items():
            self._types[name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        graph = model.graph
        for value in [*graph.value_info, *graph.input, *graph.output]:
            self._names.add(value.name)
            if value.name not in self._tensors:
                self._types[value.name] = value.type
        for node in graph.node:
            self._names.update(node.output)

    def shape(self, name: str) -> list[int] | None:
        """Static shape of a value; None if it is not known."""
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.tensor_type.shape.dim]
        return None if min(sizes, default=0) < 0 else sizes

    def element_type(self, name: str) -> int:
        """ONNX element type of a value; 0 if it is not known."""
        kind = self._types.get(name)
        return kind.tensor_type.elem_type if kind is not None else 0

    def dtype(self, name: str) -> np.dtype:
        """NumPy's type of a value's elements; float32 if it is not known."""
        return helper.tensor_dtype_to_np_dtype(self.element_type(name) or TensorProto.FLOAT)

    def value(self, name: str) -> np.ndarray | None:
        """A constant's value; None if the value is not constant."""
        if name not in self._values and name in self._tensors:
            self._values[name] = array_of(self._tensors[name])
        return self._values.get(name)

    def fresh(self, hint: str) -> str:
        """A name that no value has yet."""
        name, count = hint, self._counts.get(hint, 0)
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names.add(name)
        # A loop that is written out asks for thousands of one hint; names are never given back.
        self._counts[hint] = count
        return name

    def constant(self, value: object, dtype: object = None, hint: str = "constant") -> str:
        """Name of an initialiser with this value; equal values share one."""
        array = np.asarray(value, dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._by_content:
            name = self.fresh(hint)
            self._set_constant(name, array)
            self._by_content[key] = name
        return self._by_content[key]

    def _set_constant(self, name: str, array: np.ndarray) -> None:
        # NumPy returns scalars where an array of rank 0 is meant.
        array = np.asarray(array)
        self._values[name] = array
        self._tensors[name] = numpy_helper.from_array(array, name)
        self._types[name] = helper.make_tensor_type_proto(
            self._tensors[name].data_type, list(array.shape)
        )
        self._names.add(name)

    def nested_tensor(self, tensor: TensorProto) -> str:
        """Name in this graph of a nested graph's initialiser; its copies share one."""
        return self.constant(numpy_helper.to_array(tensor), hint=tensor.name)

    def compute(self, node: NodeProto, most: int | None = FOLDED_ELEMENTS) -> bool:
        """Fold a node, if all its inputs are constants.

        Parameters
        ----------
        node : NodeProto
        most : int or None
            Most elements of a constant that is read or written; None for any. Of the model's own
            constants, those of more than `FOLDED_ELEMENTS` are only read if it is None.

        Returns
        -------
        is_folded : bool
            Whether the outputs are known constants now.
        """
        if node.op_type == "Shape":
            shape = self.shape(node.input[0])
            if shape is None:
                return False
            bounds = {a.name: a.i for a in node.attribute}
            shape = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            self._set_constant(node.output[0], np.array(shape, np.int64))
            return True
        if node.op_type == "Size" and self.shape(node.input[0]) is not None:
            size = np.prod(self.shape(node.input[0]), dtype=np.int64)
            self._set_constant(node.output[0], np.array(size, np.int64))
            return True
        if node.op_type in _KEPT or any(a.HasField("g") for a in node.attribute):
            return False
        given = {name: self._read(name, most) for name in node.input if name}
        if any(array is None for array in given.values()):
            return False
        try:
            single = helper.make_model(
                helper.make_graph(
                    [node],
                    "one",
                    [],
                    [onnx.ValueInfoProto(name=o) for o in node.output if o],
                    [numpy_helper.from_array(a, n) for n, a in given.items()],
                ),
                opset_imports=[helper.make_opsetid("", self.opset)],
            )
            results = ReferenceEvaluator(single).run(None, {})
        except Exception:  # noqa: BLE001 (what cannot be computed stays in the graph)
            return False
        if not all(isinstance(result, np.ndarray | np.generic) for result in results):
            return False
        arrays = [np.asarray(result) for result in results]
        if most is not None and any(array.size > most for array in arrays):
            return False
        if any(array.dtype.kind not in "biuf" for array in arrays):
            return False
        for name, array in zip((o for o in node.output if o), arrays, strict=True):
            self._set_constant(name, array)
        return True

    def _read(self, name: str, most: int | None) -> np.ndarray | None:
        is_own = name in self._given and most is not None
        return self._small(name, FOLDED_ELEMENTS if is_own else most)

    def _small(self, name: str, most: int | None = FOLDED_ELEMENTS) -> np.ndarray | None:
        tensor = self._tensors.get(name)
        if tensor is None or (most is not None and element_count(tensor) > most):
            return None
        return self.value(name)

    def declare(self, name: str, element_type: int, shape: Sequence[int]) -> None:
        """Set a value's type, which ONNX's inference would not find."""
        self._types[name] = helper.make_tensor_type_proto(element_type, list(shape))

    def infer(self, node: NodeProto) -> None:
        """Infer the types of a node's outputs, as far as ONNX's inference knows them."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
            data = {
                name: self._tensors[name] for name in node.input if self._small(name) is not None
            }
            found = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self._types[name] for name in node.input if name},
                data,
                opset_imports=[helper.make_opsetid("", self.opset)],
            )
        except Exception:  # noqa: BLE001 (a C++ pass; what is unknown stays unknown)
            return
        for name, kind in found.items():
            known = self._types.get(name)
            if known is None or self.shape(name) is None:
                self._types[name] = kind
