"""Models of a few thousand parameters, made by hand, that the tests run on."""

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.made.onnx_text import model_of

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
    for name, (channels, inputs, kernel) in layers.items():
        shape = (channels, inputs, kernel, kernel)
        weights[f"{name}_weight"] = random_weight(generator, *shape, dtype=dtype)
        weights[f"{name}_bias"] = (generator.standard_normal(channels) * 0.1).astype(dtype)
    weights["dense_weight"] = random_weight(generator, 10, 32, dtype=dtype)
    weights["dense_bias"] = (generator.standard_normal(10) * 0.1).astype(dtype)
    kind, pads = "float16" if dtype is np.float16 else "float", "<pads = [1, 1, 1, 1]>"
    size = f'"{batch}"' if isinstance(batch, str) else batch
    return model_of(
        f"""({kind}[{size},3,16,16] input) => ({kind}[{size},10] logits) {{
            [conv_a] a_conv = Conv {pads} (input, a_weight, a_bias)
            [relu_a] a_relu = Relu (a_conv)
            [conv_b] b_conv = Conv {pads} (a_relu, b_weight, b_bias)
            [relu_b] b_relu = Relu (b_conv)
            [pool] pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b_relu)
            [conv_c] c_conv = Conv (pooled, c_weight, c_bias)
            [relu_c] c_relu = Relu (c_conv)
            [conv_d] d_conv = Conv (c_relu, d_weight, d_bias)
            [relu_d] d_relu = Relu (d_conv)
            [average] average = GlobalAveragePool (d_relu)
            [flatten] features = Flatten (average)
            [dense] logits = Gemm <transB = 1> (features, dense_weight, dense_bias)
        }}""",
        **weights,
    )


def smallest_model(batch: int | str = 1) -> ModelProto:
    """One convolution and a dense layer, for runs of all stages: each task costs seconds."""
    generator = np.random.default_rng(0)
    size = f'"{batch}"' if isinstance(batch, str) else batch
    return model_of(
        f"""(float[{size},3,16,16] input) => (float[{size},10] logits) {{
            convolved = Conv <pads = [1, 1, 1, 1]> (input, weight)
            positive = Relu (convolved)
            average = GlobalAveragePool (positive)
            features = Flatten (average)
            logits = Gemm <transB = 1> (features, dense)
        }}""",
        weight=random_weight(generator, 16, 3, 3, 3),
        dense=random_weight(generator, 10, 16),
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
    kind = TensorProto.DataType.Name(element_type).lower()
    return model_of(
        f"""({kind}[1,8] tokens) => (float[1,8,24] output) {{
            [embed] embedded = Gather (embedding, tokens)
            [dense] dense = MatMul (embedded, dense_weight)
            [relu] output = Relu (dense)
        }}""",
        embedding=random_weight(generator, 32, 16),
        dense_weight=random_weight(generator, 16, 24),
    )


def elementwise_model() -> ModelProto:
    """Relu and Add only: nothing in it is worth tuning."""
    nodes = "[relu] positive = Relu (input) [add] output = Add (input, positive)"
    return model_of(f"(float[1,64] input) => (float[1,64] output) {{{nodes}}}")


def two_input_model(seed: int = 0) -> ModelProto:
    """Two images (``left``, ``right``) through one convolution, added: 1 x 8 x 16 x 16."""
    return model_of(
        """(float[1,3,16,16] left, float[1,3,16,16] right) => (float[1,8,16,16] output) {
            [conv_left] left_conv = Conv <pads = [1, 1, 1, 1]> (left, weight)
            [conv_right] right_conv = Conv <pads = [1, 1, 1, 1]> (right, weight)
            [add] output = Add (left_conv, right_conv)
        }""",
        weight=random_weight(np.random.default_rng(seed), 8, 3, 3, 3),
    )


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
