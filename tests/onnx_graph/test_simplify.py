from collections import Counter

import numpy as np
import onnx
import onnxslim.core
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.errors import InputError
from fewtune.model.light import light_model
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.external_data import light
from fewtune.onnx_graph.graph import parameter_count, static_shape
from fewtune.onnx_graph.simplify import simplify, slimmed, with_shapes
from fewtune.verify.values import random_inputs, tensor_specs
from tests import tiny_models
from tests.made import onnx_text
from tests.made.outputs import relative_error, run_onnxruntime


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


def model_of(nodes, inputs=("input",), shape=(1, 4, 6, 6), opset=17, **weights):
    """A model of nodes in ONNX's text form that gives ``output``."""
    values = ", ".join(f"float{list(shape)} {name}" for name in inputs)
    return onnx_text.model_of(f"({values}) => (float[] output) {{{nodes}}}", opset, **weights)


# Binding


def test_dimension_bound_by_one_input_is_bound_in_all():
    text = """(float["batch","length"] a, float["batch","length"] b)
        => (float["batch","length"] output) {output = Add (a, b)}"""
    assert shape_of(bind_shapes(onnx_text.model_of(text), {"a": [2, 5]}, {})) == [2, 5]


def test_bind_follows_computed_shapes():
    text = """(float["n",4,6,6] input) => (float["n","flat"] output) {
        shape = Shape (input)
        batch = Gather (shape, zero)
        target = Concat <axis = 0> (batch, rest)
        output = Reshape (input, target)
    }"""
    bound = bind_shapes(onnx_text.model_of(text, zero=[0], rest=[-1]), {}, {"n": 2})
    assert shape_of(bound) == [2, 144]
    assert operators(simplify(bound)) == {"Reshape": 1}


def test_output_whose_shape_depends_on_values_is_refused():
    model = model_of("output = NonZero (input)")
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


@pytest.mark.slow
def test_simplify_folds_a_real_network_to_its_kernels():
    result = simplified(light_model("shufflenet", 0), bound_error=1e-5)
    assert "BatchNormalization" not in operators(result)
    assert len(result.graph.node) < 200


@pytest.mark.parametrize(
    ("operator", "inputs", "chain"),
    [
        ("Sum", "abc", {"Add": 2}),
        ("Sum", "ab", {"Add": 1}),
        ("Max", "abc", {"Max": 2}),
        ("Min", "abc", {"Min": 2}),
        ("Mean", "abc", {"Add": 2, "Div": 1}),
    ],
)
def test_operators_of_several_inputs_become_chains(operator, inputs, chain):
    result = simplified(model_of(f"output = {operator} ({', '.join(inputs)})", inputs))
    assert operators(result) == chain
    assert all(len(node.input) == 2 for node in result.graph.node)


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3), (1, 3, 7)])
def test_a_normalization_behind_no_convolution_becomes_a_product_and_a_sum(shape):
    random = np.random.default_rng(0)
    parts = ("scale", "bias", "mean", "variance")
    weights = {part: random.uniform(0.5, 2.0, shape[1]).astype(np.float32) for part in parts}
    nodes = """
        sum = Add (a, b)
        output = BatchNormalization <epsilon = 0.01> (sum, scale, bias, mean, variance)"""
    result = simplified(model_of(nodes, "ab", shape, **weights))
    assert operators(result) == {"Add": 2, "Mul": 1}
    channels = [1, shape[1], *[1] * (len(shape) - 2)]
    assert [list(each.dims) for each in result.graph.initializer] == [channels, channels]


@pytest.mark.parametrize(
    ("opset", "squeeze", "unsqueeze", "weights"),
    [
        (11, "Squeeze <axes = [-1]> (relu)", "Unsqueeze <axes = [-2]> (exp)", {}),
        (17, "Squeeze (relu, last)", "Unsqueeze (exp, third)", {"last": [-1], "third": [-2]}),
    ],
)
def test_negative_axes_become_positive(opset, squeeze, unsqueeze, weights):
    nodes = f"relu = Relu (input) squeezed = {squeeze} exp = Exp (squeezed) output = {unsqueeze}"
    result = simplified(model_of(nodes, shape=(1, 4, 6, 1), opset=opset, **weights))
    values = {t.name: numpy_helper.to_array(t).tolist() for t in result.graph.initializer}
    found = {}
    for node in result.graph.node:
        if node.op_type in ("Squeeze", "Unsqueeze"):
            attribute = [list(a.ints) for a in node.attribute if a.name == "axes"]
            found[node.op_type] = attribute[0] if attribute else values[node.input[1]]
    assert found == {"Squeeze": [3], "Unsqueeze": [2]}


def test_constants_get_full_rank_and_become_the_second_operand():
    generator = np.random.default_rng(0)
    scale = generator.random((4, 1, 1), dtype=np.float32)
    shift = generator.random(6, dtype=np.float32)
    nodes = "scaled = Mul (scale, input) output = Sub (shift, scaled)"
    result = simplified(model_of(nodes, scale=scale, shift=shift))
    dims = {tensor.name: list(tensor.dims) for tensor in result.graph.initializer}
    multiply, subtract = result.graph.node
    assert dims[multiply.input[1]] == [1, 4, 1, 1]
    assert dims[subtract.input[0]] == [1, 1, 1, 6]
    assert len(dims) == 2


def test_an_operator_set_too_old_for_onnxruntime_is_refused():
    with pytest.raises(InputError, match="operator set 6, and onnxruntime runs 7"):
        bind_shapes(model_of("output = Relu (input)", opset=6), {}, {})


def test_model_that_cannot_be_slimmed_is_kept(monkeypatch):
    monkeypatch.setattr("onnxslim.core.optimize", None)
    model = tiny_models.tiny_convolutional_model()
    assert operators(simplified(model)) == operators(model)


def test_large_weights_stay_outside_of_onnxslim(monkeypatch):
    """Weights that it folds, reads or turns are as they were; the others it never sees."""
    random = np.random.default_rng(0)
    drawn = {name: random.standard_normal((32, 32), np.float32) for name in ("w", "turned", "v")}
    rest = {"scale": np.ones((64, 32), "f4"), "row": np.ones(32, "f4"), "zero": np.zeros((), "f4")}
    nodes = """
        p = MatMul(input, w)
        a = Add(p, row)
        t = Transpose <perm = [1, 0]> (turned)
        b = MatMul(a, t)
        total = ReduceSum <keepdims = 0> (b)
        yes = Less(total, zero)
        c = If (yes) <
            then_branch = one () => (float[64,32] d) { m = MatMul(b, v) d = Add(m, row) },
            else_branch = two () => (float[64,32] e) { n = MatMul(b, v) e = Sub(n, row) }>
        output = Mul(c, scale)
    """
    monkeypatch.setattr("fewtune.onnx_graph.external_data._LARGE_BYTES", 1024)
    model = with_shapes(model_of(nodes, shape=(64, 32), opset=13, **drawn, **rest))
    optimize, given = onnxslim.core.optimize, []

    def noted(model):
        given.append({t.name for t in model.graph.initializer if not t.external_data})
        return optimize(model)

    monkeypatch.setattr("onnxslim.core.optimize", noted)
    shared = light(model)
    result = slimmed(shared.model)
    assert any(each is shared.arrays["w"] for each in result.arrays.values())
    assert given[0] >= {"turned"} and "w" not in given[0]
    feeds = {"input": random.standard_normal((64, 32)).astype(np.float32)}
    (wanted,), (made,) = (run_onnxruntime(m, feeds, 1) for m in (model, result.whole()))
    np.testing.assert_allclose(made, wanted, atol=1e-3)


@pytest.mark.parametrize(("begin", "end", "step"), [(0, 5, -1), (3, 3, 1)])
def test_an_empty_slice_starts_at_zero(begin, end, step):
    nodes = "none = Slice (input, b, e, a, s) output = ReduceSum <keepdims = 1> (none)"
    bounds = {"b": [begin], "e": [end], "a": [0], "s": [step]}
    graph = simplified(model_of(nodes, shape=(10, 3), opset=13, **bounds)).graph
    (none,) = [node for node in graph.node if node.op_type == "Slice"]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert [constants[name].tolist() for name in none.input[1:]] == [[0, 0], [0, 3], [0, 1], [1, 1]]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("operator", "opset", "factor"),
    [("Upsample", 9, 2.0), ("Resize", 10, 2.0), ("Resize", 10, 0.5)],
)
def test_a_resize_without_modes_keeps_its_coordinates(operator, opset, factor, mode):
    nodes = f'output = {operator} <mode = "{mode}"> (input, scales)'
    scales = np.array([1, 1, factor, factor], np.float32)
    simplified(model_of(nodes, shape=(1, 2, 6, 8), opset=opset, scales=scales))


def test_a_normalization_has_float32s_default_epsilon():
    weights = {name: np.random.default_rng(n).random(4) for n, name in enumerate("sbmv")}
    text = """(double[2,4,3,3] input) => (double[] output) {
        output = BatchNormalization (input, s, b, m, v)
    }"""
    simplified(onnx_text.model_of(text, **weights), 1e-13)
