"""Small models, one for each kind of output that a check can get wrong."""

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.tiny_models import make_model, random_weight


def conv(source: str, result: str, weight: str, name: str, **attributes: object) -> object:
    """A 3x3 convolution with padding of 1."""
    return helper.make_node(
        "Conv", [source, weight], [result], name=name, pads=[1, 1, 1, 1], **attributes
    )


def classifier(dtype: type = np.float32) -> ModelProto:
    """Two convolutions with a batch normalisation, pooling, softmax."""
    generator = np.random.default_rng(0)
    weights = {
        "w1": random_weight(generator, 8, 3, 3, 3, dtype=dtype),
        "w2": random_weight(generator, 16, 8, 3, 3, dtype=dtype),
        "scale": generator.uniform(0.5, 1.5, 8).astype(dtype),
        "shift": (generator.standard_normal(8) * 0.1).astype(dtype),
        "mean": (generator.standard_normal(8) * 0.1).astype(dtype),
        "variance": generator.uniform(0.5, 1.5, 8).astype(dtype),
        "dense": random_weight(generator, 16, 10, dtype=dtype),
    }
    nodes = [
        conv("x", "c1", "w1", "conv1"),
        helper.make_node(
            "BatchNormalization", ["c1", "scale", "shift", "mean", "variance"], ["n"], name="norm"
        ),
        helper.make_node("Relu", ["n"], ["r1"], name="relu1"),
        conv("r1", "c2", "w2", "conv2"),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "dense"], ["l"], name="dense"),
        helper.make_node("Softmax", ["l"], ["y"], name="softmax"),
    ]
    element_type = TensorProto.FLOAT16 if dtype == np.float16 else TensorProto.FLOAT
    return make_model(
        nodes, {"x": [1, 3, 12, 12]}, {"y": [1, 10]}, weights, element_type=element_type
    )


def detector() -> ModelProto:
    """Boxes in pixels, and scores close to zero, in one output."""
    generator = np.random.default_rng(1)
    weights = {
        "w1": random_weight(generator, 8, 3, 3, 3),
        "w2": random_weight(generator, 10, 8, 3, 3),
        "pixels": np.float32(640),
        "bias": np.float32(-9),
        "sizes": np.array([4, 6], np.int64),
    }
    nodes = [
        conv("x", "c1", "w1", "conv1"),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        conv("r1", "c2", "w2", "head"),
        helper.make_node("Split", ["c2", "sizes"], ["b", "s"], name="split", axis=1),
        helper.make_node("Mul", ["b", "pixels"], ["boxes"], name="scale"),
        helper.make_node("Add", ["s", "bias"], ["low"], name="shift"),
        helper.make_node("Sigmoid", ["low"], ["scores"], name="sigmoid"),
        helper.make_node("Concat", ["boxes", "scores"], ["y"], name="join", axis=1),
    ]
    return make_model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 10, 8, 8]}, weights)


def masked(fill: float) -> ModelProto:
    """Scores where a constant mask is true, ``fill`` elsewhere."""
    generator = np.random.default_rng(2)
    weights = {
        "w": random_weight(generator, 5, 3, 3, 3),
        "mask": generator.random((1, 1, 8, 8)) < 0.5,
        "fill": np.float32(fill),
    }
    nodes = [
        conv("x", "c", "w", "conv"),
        helper.make_node("Where", ["mask", "c", "fill"], ["y"], name="mask"),
    ]
    return make_model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 5, 8, 8]}, weights)


def spectrogram() -> ModelProto:
    """A logarithm of the input."""
    weights = {"w": random_weight(np.random.default_rng(3), 6, 4)}
    nodes = [
        helper.make_node("Log", ["x"], ["logs"], name="log"),
        helper.make_node("MatMul", ["logs", "w"], ["y"], name="dense"),
    ]
    return make_model(nodes, {"x": [5, 6]}, {"y": [5, 4]}, weights)


def segmenter() -> ModelProto:
    """The class of each pixel, as integers."""
    weights = {"w": random_weight(np.random.default_rng(4), 6, 3, 3, 3)}
    nodes = [
        conv("x", "c", "w", "conv"),
        helper.make_node("ArgMax", ["c"], ["y"], name="argmax", axis=1, keepdims=0),
    ]
    model = make_model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 16, 16]}, weights)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


def quantised() -> ModelProto:
    """A convolution between quantised values."""
    generator = np.random.default_rng(5)
    weights = {
        "w": random_weight(generator, 8, 3, 3, 3),
        "in_scale": np.float32(0.03),
        "out_scale": np.float32(0.05),
        "zero": np.int8(0),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "in_scale", "zero"], ["xq"], name="q_in"),
        helper.make_node("DequantizeLinear", ["xq", "in_scale", "zero"], ["xd"], name="d_in"),
        conv("xd", "c", "w", "conv"),
        helper.make_node("QuantizeLinear", ["c", "out_scale", "zero"], ["yq"], name="q_out"),
        helper.make_node("DequantizeLinear", ["yq", "out_scale", "zero"], ["y"], name="d_out"),
    ]
    return make_model(nodes, {"x": [1, 3, 12, 12]}, {"y": [1, 8, 12, 12]}, weights)


def embedding() -> ModelProto:
    """Token ids that read a table of 50 rows, and a mask."""
    generator = np.random.default_rng(6)
    weights = {"table": random_weight(generator, 50, 16), "w": random_weight(generator, 16, 16)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="read"),
        helper.make_node("MatMul", ["rows", "w"], ["values"], name="dense"),
        helper.make_node("Cast", ["mask"], ["kept"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "last"], ["column"], name="column"),
        helper.make_node("Mul", ["values", "column"], ["y"], name="masked"),
    ]
    weights["last"] = np.array([2], np.int64)
    return make_model(
        nodes,
        {"ids": [2, 8], "mask": [2, 8]},
        {"y": [2, 8, 16]},
        weights,
        input_type=TensorProto.INT64,
    )


def gated() -> ModelProto:
    """A gate deep inside, whose bias hides its input."""
    generator = np.random.default_rng(7)
    weights = {
        "w1": random_weight(generator, 16, 3, 3, 3),
        "squeeze": random_weight(generator, 8, 16, 1, 1) * np.float32(1e-3),
        "squeeze_bias": np.full(8, 2, np.float32),
        "excite": random_weight(generator, 16, 8, 1, 1) * np.float32(1e-3),
        "excite_bias": np.full(16, 8, np.float32),
        "w2": random_weight(generator, 10, 16, 1, 1),
    }
    nodes = [
        conv("x", "c1", "w1", "conv1"),
        helper.make_node("GlobalAveragePool", ["c1"], ["mean"], name="pool"),
        helper.make_node("Conv", ["mean", "squeeze", "squeeze_bias"], ["s"], name="squeeze"),
        helper.make_node("Relu", ["s"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "excite", "excite_bias"], ["e"], name="excite"),
        helper.make_node("Sigmoid", ["e"], ["gate"], name="sigmoid"),
        helper.make_node("Mul", ["c1", "gate"], ["g"], name="gating"),
        helper.make_node("Conv", ["g", "w2"], ["y"], name="conv2"),
    ]
    return make_model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 10, 16, 16]}, weights)


def masked_rows() -> ModelProto:
    """A softmax of rows of which some are masked as a whole: NaN for all inputs."""
    generator = np.random.default_rng(8)
    kept = np.ones((8, 1), bool)
    kept[[2, 5]] = False
    weights = {"w": random_weight(generator, 16, 8), "kept": kept, "fill": np.float32(-np.inf)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"], name="dense"),
        helper.make_node("Where", ["kept", "scores", "fill"], ["masked"], name="mask"),
        helper.make_node("Softmax", ["masked"], ["y"], name="softmax"),
    ]
    return make_model(nodes, {"x": [8, 16]}, {"y": [8, 8]}, weights)


def clipped() -> ModelProto:
    """Sums of thousands of elements behind ReLU, many of them close to zero."""
    generator = np.random.default_rng(9)
    weights = {"w": random_weight(generator, 2048, 512)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["sums"], name="dense"),
        helper.make_node("Relu", ["sums"], ["y"], name="relu"),
    ]
    return make_model(nodes, {"x": [64, 2048]}, {"y": [64, 512]}, weights)


def penalised() -> ModelProto:
    """Attention's scores with a penalty from a mask of integers, ``(1 - mask) * -10000``."""
    generator = np.random.default_rng(10)
    weights = {
        "table": random_weight(generator, 50, 16),
        "w": random_weight(generator, 16, 8),
        "one": np.float32(1),
        "penalty": np.float32(-10000),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="read"),
        helper.make_node("MatMul", ["rows", "w"], ["scores"], name="dense"),
        helper.make_node("Cast", ["mask"], ["kept"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "kept"], ["left"], name="left"),
        helper.make_node("Mul", ["left", "penalty"], ["penalties"], name="penalise"),
        helper.make_node("Add", ["scores", "penalties"], ["sum"], name="add"),
        helper.make_node("Softmax", ["sum"], ["y"], name="softmax"),
    ]
    return make_model(
        nodes,
        {"ids": [8], "mask": [8, 8]},
        {"y": [8, 8]},
        weights,
        input_type=TensorProto.INT64,
    )
