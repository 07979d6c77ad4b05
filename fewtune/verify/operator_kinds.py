"""What ONNX's operators do to rounding: which round, and how far; which hand on, or take steps."""

from __future__ import annotations

from onnx import TensorProto

# Half the width of the factors, by element type: 32 and 6 units in the last place. Float32 leaves
# room for other orders of summation and for Winograd's transforms. Noise adds up over depth: in an
# EfficientNet B0 with random weights, 18 of 24 weight tensors off by 1 % went unseen at 256 units,
# 8 of 11 still did at 32.
AMPLITUDE: dict[int, float] = {
    TensorProto.FLOAT: 2.0**-18,
    TensorProto.DOUBLE: 2.0**-47,
    TensorProto.FLOAT16: 3 * 2.0**-9,
}
# Of float32 whose products are in bfloat16: each factor is rounded by up to 2^-9 of itself.
BF16_AMPLITUDE = 2.0**-8
# These add 0.5 or 1 to something before or after an exponential.
SQUASHING = frozenset(
    {"Sigmoid", "HardSigmoid", "Softplus", "Erf", "Gelu", "Mish", "LSTM", "GRU", "RNN"}
    | {"FastGelu", "BiasGelu", "QuickGelu", "Swish"}
)
# Hand values on as they are, so that nothing is rounded.
EXACT = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Slice"}
    | {"Split", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Pad"}
    | {"Expand", "Tile", "Relu", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Max", "Min"}
    | {"Clip", "Where", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Cast", "CastLike"}
    | {"Dropout", "DepthToSpace", "SpaceToDepth", "TopK", "OneHot", "Compress", "Trilu", "Range"}
    | {"ReverseSequence", "MaxUnpool", "Scatter", "CenterCropPad", "Optional"}
)
# Where the scale and the zero point of a quantised output stand among the inputs.
SCALES = {
    "QuantizeLinear": (1, 2),
    "QLinearConv": (6, 7),
    "QLinearMatMul": (6, 7),
    "QLinearAdd": (6, 7),
    "QLinearMul": (6, 7),
    "QLinearSigmoid": (3, 4),
    "QLinearLeakyRelu": (3, 4),
    "QLinearGlobalAveragePool": (3, 4),
    "QLinearAveragePool": (3, 4),
    "QGemm": (7, 8),
}
# Of whole numbers these make whole numbers: nothing is rounded, as in ``1 - mask``.
KEEPS_WHOLE = frozenset(
    {"Add", "Sub", "Mul", "Neg", "Abs", "Max", "Min", "Where", "Clip", "Relu", "Concat", "Expand"}
    | {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split"}
    | {"Gather", "Tile", "ReduceSum", "ReduceMax", "ReduceMin", "Cast"}
)
INTEGERS = frozenset(
    {TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
    | {TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64}
)
# Operators whose result may take the other step; and those that round floats to whole ones, as
# quantisations do that are written out.
QUANTISED = frozenset({*SCALES, "DynamicQuantizeLinear"})
ROUNDED = frozenset({"Round", "Floor", "Ceil"})
# What an input's values do not matter to.
SHAPE_ONLY = frozenset({"Shape", "Size", "ConstantOfShape"})
