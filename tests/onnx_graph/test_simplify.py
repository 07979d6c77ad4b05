from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.errors import InputError
from fewtune.model.light import light_model
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.checks import checked_file
from fewtune.onnx_graph.graph import opset_of, parameter_count, static_shape
from fewtune.onnx_graph.simplify import simplify
from fewtune.verify.session import random_inputs, run_onnxruntime, tensor_specs
from tests import tiny_models
from tests.made.outputs import relative_error


def operators(model):
    return Counter(node.op_type for node in model.graph.node)


def shape_of(model, name="output"):
    return next(static_shape(value) for value in model.graph.output if value.name == name)


def simplified(model, bound_error=1e-6):
    """Bind and simplify a static model, and check that its results stay."""
    given = model.SerializeToString()
    bound = bind_shapes(model, {}, {})
    result = simplify(bound)
    onnx.checker.check_model(result)
    assert model.SerializeToString() == given
    feeds = random_inputs(tensor_specs(bound)[0], 0)
    expected = run_onnxruntime(bound, feeds, 1)
    assert relative_error(run_onnxruntime(result, feeds, 1), expected) <= bound_error
    assert tensor_specs(result) == tensor_specs(bound)
    return result


def model_of(nodes, inputs=("input",), shape=(1, 4, 6, 6), weights=None, **arguments):
    shapes = {name: list(shape) for name in inputs}
    return tiny_models.make_model(nodes, shapes, {"output": None}, weights, **arguments)


# Binding


@pytest.mark.parametrize(
    ("shapes", "dimensions"),
    [({"input": [3, 3, 16, 16]}, {}), ({}, {"batch": 3})],
)
def test_bind_makes_every_value_static(shapes, dimensions):
    bound = bind_shapes(tiny_models.dynamic_model(), shapes, dimensions)
    assert shape_of(bound, "logits") == [3, 10]
    assert static_shape(bound.graph.input[0]) == [3, 3, 16, 16]
    values = {value.name: static_shape(value) for value in bound.graph.value_info}
    assert values["pooled"] == [3, 16, 8, 8]
    assert None not in values.values()


def test_dimension_bound_by_one_input_is_bound_in_all():
    node = helper.make_node("Add", ["a", "b"], ["output"])
    shapes = {"a": ["batch", "length"], "b": ["batch", "length"]}
    model = tiny_models.make_model([node], shapes, {"output": ["batch", "length"]})
    assert shape_of(bind_shapes(model, {"a": [2, 5]}, {})) == [2, 5]


def test_bind_follows_computed_shapes():
    nodes = [
        helper.make_node("Shape", ["input"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["input", "target"], ["output"]),
    ]
    weights = {"zero": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    model = tiny_models.make_model(
        nodes, {"input": ["n", 4, 6, 6]}, {"output": ["n", "flat"]}, weights
    )
    bound = bind_shapes(model, {}, {"n": 2})
    assert shape_of(bound) == [2, 144]
    assert operators(simplify(bound)) == {"Reshape": 1}


def test_output_whose_shape_depends_on_values_is_refused():
    model = model_of([helper.make_node("NonZero", ["input"], ["output"])])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(InputError, match="depends on the input's values: the NonZero node"):
        bind_shapes(model, {}, {})


def test_weights_listed_as_inputs_are_removed_from_the_inputs():
    model = tiny_models.tiny_convolutional_model()
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    bound = bind_shapes(model, {}, {})
    assert [value.name for value in bound.graph.input] == ["input"]
    assert bound.ir_version >= 8
    assert parameter_count(bound) == parameter_count(tiny_models.tiny_convolutional_model())


# Simplifying


@pytest.mark.parametrize(
    "make",
    [
        tiny_models.tiny_convolutional_model,
        tiny_models.softmax_model,
        tiny_models.integer_input_model,
        tiny_models.elementwise_model,
        tiny_models.two_input_model,
    ],
)
def test_simplify_keeps_the_result(make):
    simplified(make())


def test_simplify_keeps_the_result_in_half_precision():
    simplified(tiny_models.half_precision_model(), bound_error=1e-2)


@pytest.mark.slow
def test_simplify_folds_a_real_network_to_its_kernels():
    result = simplified(light_model("inception_v2", 0), bound_error=1e-5)
    assert "BatchNormalization" not in operators(result)
    assert len(result.graph.node) < 200


@pytest.mark.parametrize(
    ("operator", "chain"),
    [("Sum", {"Add": 2}), ("Max", {"Max": 2}), ("Min", {"Min": 2}), ("Mean", {"Add": 2, "Div": 1})],
)
def test_operators_of_several_inputs_become_chains(operator, chain):
    node = helper.make_node(operator, ["a", "b", "c"], ["output"])
    result = simplified(model_of([node], ("a", "b", "c")))
    assert operators(result) == chain
    assert all(len(node.input) == 2 for node in result.graph.node)


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3), (1, 3, 7)])
def test_a_normalization_behind_no_convolution_becomes_a_product_and_a_sum(shape):
    random = np.random.default_rng(0)
    parts = ("scale", "bias", "mean", "variance")
    weights = {part: random.uniform(0.5, 2.0, shape[1]).astype(np.float32) for part in parts}
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("BatchNormalization", ["sum", *parts], ["output"], epsilon=0.01),
    ]
    result = simplified(model_of(nodes, ("a", "b"), shape, weights))
    assert operators(result) == {"Add": 2, "Mul": 1}
    channels = [1, shape[1], *[1] * (len(shape) - 2)]
    assert [list(each.dims) for each in result.graph.initializer] == [channels, channels]


def test_sum_of_two_becomes_add():
    node = helper.make_node("Sum", ["a", "b"], ["output"])
    assert operators(simplified(model_of([node], ("a", "b")))) == {"Add": 1}


@pytest.mark.parametrize("opset", [11, 17])
def test_negative_axes_become_positive(opset):
    def axes_node(operator, source, result, axis):
        if opset < 13:
            return helper.make_node(operator, [source], [result], axes=[axis])
        return helper.make_node(operator, [source, f"{operator}_axes"], [result])

    nodes = [
        helper.make_node("Relu", ["input"], ["relu"]),
        axes_node("Squeeze", "relu", "squeezed", -1),
        helper.make_node("Exp", ["squeezed"], ["exp"]),
        axes_node("Unsqueeze", "exp", "output", -2),
    ]
    weights = {}
    if opset >= 13:
        weights = {"Squeeze_axes": np.array([-1]), "Unsqueeze_axes": np.array([-2])}
    result = simplified(model_of(nodes, shape=(1, 4, 6, 1), weights=weights, opset=opset))
    values = {t.name: numpy_helper.to_array(t).tolist() for t in result.graph.initializer}
    found = {}
    for node in result.graph.node:
        if node.op_type in ("Squeeze", "Unsqueeze"):
            attribute = [list(a.ints) for a in node.attribute if a.name == "axes"]
            found[node.op_type] = attribute[0] if attribute else values[node.input[1]]
    assert found == {"Squeeze": [3], "Unsqueeze": [2]}


def test_constants_get_full_rank_and_become_the_second_operand():
    nodes = [
        helper.make_node("Mul", ["scale", "input"], ["scaled"]),
        helper.make_node("Sub", ["shift", "scaled"], ["output"]),
    ]
    generator = np.random.default_rng(0)
    weights = {
        "scale": generator.random((4, 1, 1), dtype=np.float32),
        "shift": generator.random(6, dtype=np.float32),
    }
    result = simplified(model_of(nodes, weights=weights))
    dims = {tensor.name: list(tensor.dims) for tensor in result.graph.initializer}
    multiply, subtract = result.graph.node
    assert dims[multiply.input[1]] == [1, 4, 1, 1]
    assert dims[subtract.input[0]] == [1, 1, 1, 6]
    assert len(dims) == 2


def test_old_operator_sets_are_brought_up_to_date():
    statistics = ["scale", "shift", "mean", "variance"]
    nodes = [
        helper.make_node("BatchNormalization", ["input", *statistics], ["normal"]),
        helper.make_node("Slice", ["normal"], ["sliced"], axes=[2], starts=[0], ends=[4]),
        helper.make_node("Upsample", ["sliced", "factors"], ["output"], mode="nearest"),
    ]
    generator = np.random.default_rng(0)
    weights = {name: generator.random(4, dtype=np.float32) + 0.5 for name in statistics}
    weights["factors"] = np.array([1, 1, 2, 2], np.float32)
    result = simplified(model_of(nodes, weights=weights, opset=9))
    assert opset_of(result) >= 11
    assert "Upsample" not in operators(result)
    assert shape_of(result) == [1, 4, 8, 12]


def test_an_operator_set_too_old_for_onnxruntime_is_refused():
    model = model_of([helper.make_node("Relu", ["input"], ["output"])], opset=6)
    with pytest.raises(InputError, match="operator set 6, and onnxruntime runs 7"):
        bind_shapes(model, {}, {})


# Converters leave functions at the operator set that they were written in.
@pytest.mark.parametrize("opset", [tiny_models.OPSET, tiny_models.OPSET - 2])
def test_local_functions_are_inlined(opset, tmp_path):
    body = helper.make_function(
        "local",
        "Twice",
        ["x"],
        ["y"],
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [helper.make_opsetid("", opset)],
    )
    model = model_of([helper.make_node("Twice", ["input"], ["output"], domain="local")])
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("local", 1))
    onnx.save(model, tmp_path / "model.onnx")
    model, _ = checked_file(tmp_path / "model.onnx", frozenset())
    assert operators(simplified(model)) == {"Add": 1}


def test_model_that_cannot_be_slimmed_is_kept(monkeypatch):
    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr("onnxslim.slim", fail)
    model = tiny_models.tiny_convolutional_model()
    assert operators(simplified(model)) == operators(model)


@pytest.mark.parametrize(("begin", "end", "step"), [(0, 5, -1), (3, 3, 1)])
def test_an_empty_slice_starts_at_zero(begin, end, step):
    bounds = {"b": [begin], "e": [end], "a": [0], "s": [step]}
    weights = {name: np.array(value, np.int64) for name, value in bounds.items()}
    nodes = [
        helper.make_node("Slice", ["input", "b", "e", "a", "s"], ["none"], "slice"),
        helper.make_node("ReduceSum", ["none"], ["output"], "sum", keepdims=1),
    ]
    model = model_of(nodes, shape=(10, 3), weights=weights, opset=13)
    graph = simplified(model).graph
    (none,) = [node for node in graph.node if node.op_type == "Slice"]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert [constants[name].tolist() for name in none.input[1:]] == [[0, 0], [0, 3], [0, 1], [1, 1]]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("operator", "opset", "factor"),
    [("Upsample", 9, 2.0), ("Resize", 10, 2.0), ("Resize", 10, 0.5)],
)
def test_a_resize_without_modes_keeps_its_coordinates(operator, opset, factor, mode):
    node = helper.make_node(operator, ["input", "scales"], ["output"], "up", mode=mode)
    scales = {"scales": np.array([1, 1, factor, factor], np.float32)}
    model = tiny_models.make_model([node], {"input": [1, 2, 6, 8]}, {"output": None}, scales, opset)
    simplified(model)


def test_a_normalization_has_float32s_default_epsilon():
    weights = {name: np.random.default_rng(n).random(4) for n, name in enumerate("sbmv")}
    node = helper.make_node("BatchNormalization", ["input", *weights], ["output"], "norm")
    model = model_of([node], shape=(2, 4, 3, 3), weights=weights, element_type=TensorProto.DOUBLE)
    simplified(model, 1e-13)
