"""Models of a few thousand parameters, made by hand, that the tests run on."""

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


def make_model(
    nodes: list[NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str] | None],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = OPSET,
    element_type: int = TensorProto.FLOAT,
    input_type: int | None = None,
) -> ModelProto:
    """A model of these nodes; an output without a shape is None."""
    input_type = element_type if input_type is None else input_type
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(n, input_type, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, element_type, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (weights or {}).items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION
    )


def random_weight(
    generator: np.random.Generator, *shape: int, dtype: type = np.float32
) -> np.ndarray:
    """A weight at He's scale."""
    scale = np.sqrt(2 / max(1, int(np.prod(shape[1:]))))
    return (generator.standard_normal(shape) * scale).astype(dtype)


def tiny_convolutional_model(
    seed: int = 0, batch: int | str = 1, dtype: type = np.float32
) -> ModelProto:
    """Four distinct convolutions (two 3x3, two 1x1), pooling and a dense layer: 10 logits.

    ``input`` is batch x 3 x 16 x 16, ``logits`` batch x 10.
    """
    generator = np.random.default_rng(seed)
    layers = {"a": (16, 3, 3), "b": (16, 16, 3), "c": (32, 16, 1), "d": (32, 32, 1)}
    weights = {}
    nodes = []
    value = "input"
    for name, (channels, inputs, kernel) in layers.items():
        weights[f"{name}_weight"] = random_weight(
            generator, channels, inputs, kernel, kernel, dtype=dtype
        )
        weights[f"{name}_bias"] = (generator.standard_normal(channels) * 0.1).astype(dtype)
        nodes += [
            helper.make_node(
                "Conv",
                [value, f"{name}_weight", f"{name}_bias"],
                [f"{name}_conv"],
                name=f"conv_{name}",
                kernel_shape=[kernel, kernel],
                pads=[kernel // 2] * 4,
            ),
            helper.make_node("Relu", [f"{name}_conv"], [f"{name}_relu"], name=f"relu_{name}"),
        ]
        value = f"{name}_relu"
        if name == "b":
            nodes.append(
                helper.make_node(
                    "MaxPool", [value], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2]
                )
            )
            value = "pooled"
    weights["dense_weight"] = random_weight(generator, 10, 32, dtype=dtype)
    weights["dense_bias"] = (generator.standard_normal(10) * 0.1).astype(dtype)
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["average"], name="average"),
        helper.make_node("Flatten", ["average"], ["features"], name="flatten"),
        helper.make_node(
            "Gemm",
            ["features", "dense_weight", "dense_bias"],
            ["logits"],
            name="dense",
            transB=1,
        ),
    ]
    return make_model(
        nodes,
        {"input": [batch, 3, 16, 16]},
        {"logits": [batch, 10]},
        weights,
        element_type=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
    )


def dynamic_model(seed: int = 0) -> ModelProto:
    """The convolutional model with a dynamic dimension called ``batch``."""
    return tiny_convolutional_model(seed, batch="batch")


def half_precision_model(seed: int = 0) -> ModelProto:
    """The convolutional model in float16."""
    return tiny_convolutional_model(seed, dtype=np.float16)


def softmax_model(seed: int = 0) -> ModelProto:
    """The convolutional model with a Softmax behind it, whose output is ``probabilities``."""
    model = tiny_convolutional_model(seed)
    model.graph.node.append(
        helper.make_node("Softmax", ["logits"], ["probabilities"], name="softmax", axis=1)
    )
    del model.graph.output[:]
    model.graph.output.append(
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])
    )
    return model


def integer_input_model(seed: int = 0, element_type: int = TensorProto.INT64) -> ModelProto:
    """Token ids (``tokens``, 1 x 8) through an embedding and a dense layer: 1 x 8 x 24."""
    generator = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["embedded"], name="embed"),
        helper.make_node("MatMul", ["embedded", "dense_weight"], ["dense"], name="dense"),
        helper.make_node("Relu", ["dense"], ["output"], name="relu"),
    ]
    weights = {
        "embedding": random_weight(generator, 32, 16),
        "dense_weight": random_weight(generator, 16, 24),
    }
    return make_model(
        nodes, {"tokens": [1, 8]}, {"output": [1, 8, 24]}, weights, input_type=element_type
    )


def elementwise_model() -> ModelProto:
    """Relu and Add only: nothing in it is worth tuning."""
    nodes = [
        helper.make_node("Relu", ["input"], ["positive"], name="relu"),
        helper.make_node("Add", ["input", "positive"], ["output"], name="add"),
    ]
    return make_model(nodes, {"input": [1, 64]}, {"output": [1, 64]})


def two_input_model(seed: int = 0) -> ModelProto:
    """Two images (``left``, ``right``) through one convolution, added: 1 x 8 x 16 x 16."""
    weight = random_weight(np.random.default_rng(seed), 8, 3, 3, 3)
    nodes = [
        helper.make_node(
            "Conv", [side, "weight"], [f"{side}_conv"], name=f"conv_{side}", pads=[1, 1, 1, 1]
        )
        for side in ("left", "right")
    ]
    nodes.append(helper.make_node("Add", ["left_conv", "right_conv"], ["output"], name="add"))
    shapes = {"left": [1, 3, 16, 16], "right": [1, 3, 16, 16]}
    return make_model(nodes, shapes, {"output": [1, 8, 16, 16]}, {"weight": weight})


def write_model(model: ModelProto, directory: Path, name: str = "model.onnx") -> Path:
    """Write a model into ``directory`` and give its path."""
    path = directory / name
    path.write_bytes(model.SerializeToString())
    return path


def write_with_external_data(
    model: ModelProto, directory: Path, name: str = "model.onnx", location: str = "weights.bin"
) -> Path:
    """Write a model whose weights lie in a file of their own, and give the model's path."""
    copy = ModelProto.FromString(model.SerializeToString())
    path = directory / name
    (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(copy, path, save_as_external_data=True, location=location, size_threshold=0)
    return path
