"""A small builder of ONNX graphs with seeded random weights.

Weights are drawn so that activations keep about unit size from the first layer to the last. With
others, fifty layers end in zeros or infinities, and a comparison of outputs finds no fault.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from fewtune.model.light import SCALE_RANGE, SHIFT_SCALE, VARIANCE_RANGE, Draw, normal, uniform
from fewtune.onnx_graph.graph import DETACHED_BYTES

OPSET = 17
IR_VERSION = 8

# The last layer of a residual branch is scaled down. Statistics are drawn and not measured, so
# nothing else keeps the sum over many blocks from growing.
_RESIDUAL_SCALE = 0.25


class GraphBuilder:
    """An ONNX model under construction; each method adds a layer and returns its output's name.

    The caller names the layers; a layer's output has the name of the layer. Parameters are
    initialisers. Shapes, anchors and other constants are Constant nodes, so the number of
    parameters is that of the initialisers' floating-point elements.

    Parameters
    ----------
    name : str
        Name of the graph.
    seed : int
        A weight's values depend on the seed and on its name, not on the order of the layers.
    values : bool
        Whether large weights get values. A model without them can only be counted.
    """

    def __init__(self, name: str, seed: int, values: bool = True) -> None:
        self._seed = seed
        self._values = values
        self._channels: dict[str, int] = {}
        self._rectified: set[str] = set()
        # The graph is filled in place: adding a finished graph to a model copies all weights.
        self._model = ModelProto(ir_version=IR_VERSION, producer_name="fewtune")
        self._model.opset_import.append(helper.make_opsetid("", OPSET))
        self._graph = self._model.graph
        self._graph.name = name

    @property
    def model(self) -> ModelProto:
        """The model as built so far."""
        return self._model

    def channels(self, value: str) -> int:
        """Number of channels of a value."""
        return self._channels[value]

    def input(self, name: str, shape: Sequence[int], element_type: int = TensorProto.FLOAT) -> str:
        """Add an input; its second dimension counts as its channels."""
        self._graph.input.append(helper.make_tensor_value_info(name, element_type, shape))
        self._channels[name] = shape[1]
        return name

    def output(self, value: str, shape: Sequence[int]) -> None:
        """Make a float value an output of the model."""
        kind = TensorProto.FLOAT
        self._graph.output.append(helper.make_tensor_value_info(value, kind, shape))

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        name: str,
        channels: int | None = None,
        **attributes: AttributeProto | int | float | str | Sequence[int],
    ) -> str:
        """Add any operator with one output; its channels default to those of its first input."""
        given: dict[str, Any] = dict(attributes)
        made = helper.make_node(operator, list(inputs), [name], name=name, **given)
        self._graph.node.append(made)
        known = self._channels.get(inputs[0]) if inputs else None
        made_channels = channels if channels is not None else known
        if made_channels is not None:
            self._channels[name] = made_channels
        return name

    def constant(self, name: str, values: np.ndarray | Sequence[int] | float) -> str:
        """Add a constant that is no parameter: integers become int64, others float32."""
        array = np.asarray(values)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        return self.node("Constant", [], name, value=numpy_helper.from_array(array))

    def weight(self, name: str, shape: Sequence[int], draw: Draw) -> str:
        """Add a parameter."""
        tensor = self._graph.initializer.add()
        tensor.name = name
        tensor.data_type = TensorProto.FLOAT
        tensor.dims.extend(shape)
        if self._values or 4 * math.prod(shape) < DETACHED_BYTES:
            digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
            generator = np.random.default_rng(int.from_bytes(digest, "little"))
            values = draw(generator, tuple(shape))
            tensor.raw_data = values.astype("<f4", copy=False).tobytes()
        return name

    # Layers with weights

    def convolution(
        self,
        value: str,
        name: str,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        bias: bool = False,
    ) -> str:
        """Add a convolution with a square kernel; padding keeps the size unless given."""
        padding = kernel // 2 if padding is None else padding
        shape = (channels, self._channels[value] // groups, kernel, kernel)
        draw = normal(self._he_scale(value, math.prod(shape[1:])))
        inputs = [value, self.weight(f"{name}_weight", shape, draw)]
        if bias:
            inputs.append(self.weight(f"{name}_bias", (channels,), normal(SHIFT_SCALE)))
        return self.node(
            "Conv",
            inputs,
            name,
            channels,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[padding] * 4,
            group=groups,
        )

    def batch_normalization(self, value: str, name: str, ends_branch: bool = False) -> str:
        """Add a batch normalisation with positive scale and variance."""
        factor = _RESIDUAL_SCALE if ends_branch else 1.0
        low, high = SCALE_RANGE
        draws = {
            "scale": uniform(factor * low, factor * high),
            "shift": normal(SHIFT_SCALE),
            "mean": normal(SHIFT_SCALE),
            "variance": uniform(*VARIANCE_RANGE),
        }
        shape = (self._channels[value],)
        weights = [self.weight(f"{name}_{part}", shape, draw) for part, draw in draws.items()]
        return self.node("BatchNormalization", [value, *weights], name, epsilon=1e-5)

    def layer_normalization(self, value: str, name: str, epsilon: float) -> str:
        """Add a normalisation over the last axis, which must be that of the channels."""
        shape = (self._channels[value],)
        scale = self.weight(f"{name}_scale", shape, uniform(*SCALE_RANGE))
        shift = self.weight(f"{name}_shift", shape, normal(SHIFT_SCALE))
        return self.node(
            "LayerNormalization", [value, scale, shift], name, axis=-1, epsilon=epsilon
        )

    def dense(self, value: str, name: str, channels: int) -> str:
        """Add a fully connected layer over a matrix."""
        shape = (channels, self._channels[value])
        draw = normal(self._he_scale(value, shape[1]))
        weight = self.weight(f"{name}_weight", shape, draw)
        bias = self.weight(f"{name}_bias", (channels,), normal(SHIFT_SCALE))
        return self.node("Gemm", [value, weight, bias], name, channels, transB=1)

    def linear(self, value: str, name: str, channels: int) -> str:
        """Add a fully connected layer over the last axis of a value of any rank."""
        shape = (self._channels[value], channels)
        draw = normal(self._he_scale(value, shape[0]))
        weight = self.weight(f"{name}_weight", shape, draw)
        bias = self.weight(f"{name}_bias", (channels,), normal(SHIFT_SCALE))
        product = self.node("MatMul", [value, weight], f"{name}_product", channels)
        return self.node("Add", [product, bias], name)

    # Layers without weights

    def activation(self, operator: str, value: str, name: str, **attributes: float) -> str:
        """Add Relu, LeakyRelu or another operator that sets about half of its input to zero."""
        return self.rectified(self.node(operator, [value], name, None, **attributes))

    def rectified(self, value: str) -> str:
        """Mark a value of which about half is near zero: weights after it are larger."""
        self._rectified.add(value)
        return value

    def relu6(self, value: str, name: str) -> str:
        """Clip a value to 0 to 6."""
        low = self.constant(f"{name}_low", 0.0)
        high = self.constant(f"{name}_high", 6.0)
        return self.rectified(self.node("Clip", [value, low, high], name))

    def gelu(self, value: str, name: str) -> str:
        """Add x / 2 * (1 + erf(x / sqrt 2)): ONNX has one operator for it only from opset 20 on."""
        root = self.constant(f"{name}_root", math.sqrt(2))
        one = self.constant(f"{name}_one", 1.0)
        half = self.constant(f"{name}_half", 0.5)
        error = self.node("Erf", [self.node("Div", [value, root], f"{name}_ratio")], f"{name}_erf")
        share = self.node("Add", [error, one], f"{name}_share")
        product = self.node("Mul", [value, share], f"{name}_product")
        return self.rectified(self.node("Mul", [product, half], name))

    def pool(
        self, operator: str, value: str, name: str, kernel: int, stride: int, padding: int = 0
    ) -> str:
        """Add MaxPool or AveragePool over squares."""
        self._keep_rectified([value], name)
        return self.node(
            operator,
            [value],
            name,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[padding] * 4,
        )

    def global_average(self, value: str, name: str) -> str:
        """Average each channel over the image: batch x channels."""
        self._keep_rectified([value], name)
        pooled = self.node("GlobalAveragePool", [value], f"{name}_pooled")
        return self.node("Flatten", [pooled], name, axis=1)

    def concatenate(self, values: Sequence[str], name: str, axis: int = 1) -> str:
        """Join values along an axis; along axis 1 their channels add up."""
        joined = sum(self._channels[value] for value in values) if axis == 1 else None
        self._keep_rectified(values, name)
        return self.node("Concat", values, name, joined, axis=axis)

    def transpose(self, value: str, name: str, *order: int) -> str:
        """Reorder the axes; the number of channels stays."""
        return self.node("Transpose", [value], name, perm=order)

    def reshape(self, value: str, name: str, *shape: int, channels: int | None = None) -> str:
        """Give a value another shape."""
        self._keep_rectified([value], name)
        target = self.constant(f"{name}_shape", shape)
        return self.node("Reshape", [value, target], name, channels)

    def slice(self, value: str, name: str, start: int, end: int, axis: int) -> str:
        """Take the indices from ``start`` to before ``end`` of an axis."""
        bounds = {"start": start, "end": end, "axis": axis}
        made = [self.constant(f"{name}_{bound}", [at]) for bound, at in bounds.items()]
        return self.node("Slice", [value, *made], name)

    def _keep_rectified(self, values: Sequence[str], name: str) -> None:
        if self._rectified & set(values):
            self._rectified.add(name)

    def _he_scale(self, value: str, inputs: int) -> float:
        """Standard deviation of weights that keep the size of activations.

        He's factor of two (He et al., 2015, "Delving Deep into Rectifiers") compensates for the
        half that a rectifier before the layer sets to zero. Without a rectifier it is left out.
        """
        return math.sqrt((2 if value in self._rectified else 1) / inputs)
