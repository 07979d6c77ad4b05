"""Moved reshapes and transposes: results stay, and activations fuse."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.views import move_views
from fewtune.runtime.tvm import tvm
from fewtune.task.analysis import call_counts
from fewtune.verify.session import random_inputs, run_onnxruntime, tensor_specs
from tests import tuned_tiny
from tests.made.outputs import relative_error
from tests.model.passes.test_winograd import error_of, scheduled
from tests.tiny_models import make_model, random_weight

BOUND = 1e-5
TOKENS, WIDTH, INNER = 12, 32, 48


def simplified(model: ModelProto) -> ModelProto:
    bound = bind_shapes(model, {}, {})
    result = prepare.simplify(bound)
    onnx.checker.check_model(result)
    inputs, _ = tensor_specs(bound)
    feeds = random_inputs(inputs, 0)
    expected, actual = (run_onnxruntime(each, feeds, 1) for each in (bound, result))
    assert relative_error(actual, expected) < BOUND
    return result


def lowered(model: ModelProto) -> tvm.IRModule:
    return lower(simplified(model), tuned_tiny.target(), "NHWC")


def kinds(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def gelu(given: str, result: str, constants: dict[str, np.ndarray], rank: int) -> list:
    """An exported GELU, with constants of this rank."""
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    constants.update({n: np.full((1,) * rank, v, np.float32) for n, v in numbers.items()})
    return [
        helper.make_node("Div", [given, "root"], ["ratio"], name="div"),
        helper.make_node("Erf", ["ratio"], ["share"], name="erf"),
        helper.make_node("Add", ["share", "one"], ["factor"], name="add"),
        helper.make_node("Mul", [given, "factor"], ["product"], name="mul"),
        helper.make_node("Mul", ["product", "half"], [result], name="half_of_it"),
    ]


def two_products(rank: int = 0, extra: bool = False) -> ModelProto:
    """Two products over the last axis with a GELU between; its input is an output if ``extra``."""
    generator = np.random.default_rng(0)
    constants = {
        "first": random_weight(generator, INNER, WIDTH).T.copy(),
        "second": random_weight(generator, WIDTH, INNER).T.copy(),
        "bias": generator.standard_normal(INNER).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["inner"], name="first_product"),
        helper.make_node("Add", ["inner", "bias"], ["biased"], name="bias_sum"),
        *gelu("biased", "activated", constants, rank),
        helper.make_node("MatMul", ["activated", "second"], ["y"], name="second_product"),
    ]
    outputs = {"y": None, "biased": None} if extra else {"y": None}
    return make_model(nodes, {"x": [1, TOKENS, WIDTH]}, outputs, constants)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_an_activation_is_fused_into_the_product_before_it(rank):
    module = lowered(two_products(rank))
    products = [name for name in call_counts(module) if "matmul" in name]
    assert len(products) == 2
    (activated,) = [name for name in products if "erf" in name]
    assert activated.startswith("fused_matmul_add_divide_erf")
    assert not [name for name in call_counts(module) if "erf" in name and "matmul" not in name]
    assert error_of(two_products(rank), scheduled(module)) < BOUND


def test_inverse_reshapes_are_dropped():
    assert kinds(simplified(two_products())).count("Reshape") == 2


def test_a_value_with_other_readers_keeps_its_reshape():
    model = two_products(extra=True)
    found = kinds(simplified(model))
    assert found.index("Reshape", found.index("Gemm")) < found.index("Erf")
    assert error_of(model, scheduled(lowered(model))) < BOUND


def block_of_rows(extra: bool = False) -> ModelProto:
    """A residual block with a layer norm between convolutions, as in ConvNeXt."""
    generator = np.random.default_rng(0)
    constants = {
        "stem": random_weight(generator, WIDTH, 3, 4, 4),
        "depthwise": random_weight(generator, WIDTH, 1, 3, 3),
        "product": random_weight(generator, WIDTH, WIDTH),
        "scale": generator.uniform(0.5, 1.5, WIDTH).astype(np.float32),
        "shift": generator.standard_normal(WIDTH).astype(np.float32),
    }
    last, first = [0, 2, 3, 1], [0, 3, 1, 2]
    depthwise = {"group": WIDTH, "pads": [1, 1, 1, 1]}
    norm = {"axis": -1, "epsilon": 1e-6}
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["planes"], name="conv", strides=[4, 4]),
        helper.make_node("Transpose", ["planes"], ["rows"], name="last", perm=last),
        helper.make_node("LayerNormalization", ["rows", "scale", "shift"], ["n"], name="n", **norm),
        helper.make_node("Transpose", ["n"], ["base"], name="first", perm=first),
        helper.make_node("Conv", ["base", "depthwise"], ["d"], name="depthwise_conv", **depthwise),
        helper.make_node("Transpose", ["d"], ["d_rows"], name="d_last", perm=last),
        helper.make_node("MatMul", ["d_rows", "product"], ["mixed"], name="product_of_rows"),
        helper.make_node("Transpose", ["mixed"], ["branch"], name="branch_first", perm=first),
        helper.make_node("Add", ["base", "branch"], ["sum"], name="residual"),
        helper.make_node("Conv", ["sum", "depthwise"], ["y"], name="next_conv", **depthwise),
    ]
    outputs = {"y": None, "base": None, "branch": None} if extra else {"y": None}
    return make_model(nodes, {"x": [1, 3, 32, 32]}, outputs, constants, opset=17)


def test_a_residual_between_layer_norms_needs_no_transposes():
    module = lowered(block_of_rows())
    # One transpose of the image, and one of the result.
    assert sum(n for name, n in call_counts(module).items() if "transpose" in name) == 2
    assert error_of(block_of_rows(), scheduled(module)) < BOUND


def test_transposes_with_other_readers_stay():
    model = block_of_rows(extra=True)
    assert kinds(simplified(model)).count("Transpose") == kinds(model).count("Transpose")
    assert error_of(model, scheduled(lowered(model))) < BOUND


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_constant_exponent_becomes_a_scalar(shape):
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"], name="relu"),
        helper.make_node("Pow", ["positive", "exponent"], ["y"], name="power"),
    ]
    exponent = np.full(shape, 2.0, np.float32)
    model = make_model(nodes, {"x": [1, 8, 8, 8]}, {"y": None}, {"exponent": exponent})
    module = lowered(model)
    (kernel,) = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(kernel.params) == 2
    assert error_of(model, scheduled(module)) < BOUND


def test_a_constant_whose_axes_matter_keeps_them():
    nodes = [helper.make_node("Add", ["x", "one"], ["y"], name="sum")]
    model = make_model(nodes, {"x": [8]}, {"y": None}, {"one": np.ones((1, 1), np.float32)})
    assert [len(tensor.dims) for tensor in simplified(model).graph.initializer] == [2]


def test_what_a_nested_graph_may_read_stays():
    order = {"perm": [1, 0]}
    nodes = [
        helper.make_node("MatMul", ["x", "square"], ["product"], name="matmul"),
        helper.make_node("Reshape", ["product", "shape"], ["shaped"], name="reshape"),
        helper.make_node("Neg", ["shaped"], ["less"], name="neg"),
        helper.make_node("Relu", ["less"], ["positive"], name="relu"),
        helper.make_node("Neg", ["x"], ["opposite"], name="neg_x"),
        helper.make_node("Transpose", ["opposite"], ["left"], name="left", **order),
        helper.make_node("Transpose", ["product"], ["right"], name="right", **order),
        helper.make_node("Add", ["left", "right"], ["sum"], name="sum"),
    ]
    branches = {}
    for branch, given in {"then_branch": "less", "else_branch": "right"}.items():
        own = helper.make_tensor_value_info(f"{branch}_y", onnx.TensorProto.FLOAT, None)
        step = helper.make_node("Identity", [given], [own.name], name=branch)
        branches[branch] = helper.make_graph([step], branch, [], [own])
    nodes.append(helper.make_node("If", ["which"], ["y"], name="if", **branches))
    constants = {
        "square": np.eye(8, dtype=np.float32),
        "shape": np.array([8, 2, 4], np.int64),
        "which": np.array(True),
    }
    outputs = {"positive": None, "sum": None, "y": None}
    model = onnx.shape_inference.infer_shapes(make_model(nodes, {"x": [8, 8]}, outputs, constants))
    assert move_views(model) is model
    # Without nested graphs, the same rewrite applies.
    del model.graph.node[-1]
    assert kinds(move_views(model)) == [
        "MatMul",
        "Neg",
        "Relu",
        "Reshape",
        "Neg",
        "Add",
        "Transpose",
    ]
