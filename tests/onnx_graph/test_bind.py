"""Models are bound: branches, rare forms, poolings, empty inputs, and what is refused."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.errors import InputError, MachineError
from fewtune.onnx_graph.bind import bind_shapes, refuse_beyond_memory
from fewtune.onnx_graph.graph import all_nodes, static_shape
from fewtune.onnx_graph.session import OnnxruntimeSession
from tests.made import onnx_text
from tests.made.outputs import run_onnxruntime

DATA = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
TERA = 2**20


def model_of(nodes, outputs="float[] y", inputs="", **constants):
    """A model that reads ``x`` of two rows."""
    return onnx_text.model_of(f"(float[2,4] x{inputs}) => ({outputs}) {{{nodes}}}", **constants)


# One of two scales, by a sampling rate; the first branch squeezes if there is one row.
BRANCHING = """(float["rows",4] x, int64 rate) => (float[] y) <int64 high = {16000}> {
    is_high = Equal (rate, high)
    y = If (is_high) <
        then_branch = twice () => (float[] chosen) <float two = {2.0}, int64 one = {1}> {
            doubled = Mul (x, two)
            size = Shape <start = 0, end = 1> (doubled)
            rows = Squeeze (size)
            is_one = Equal (rows, one)
            chosen = If (is_one) <
                then_branch = a () => (float[] inner_a) { inner_a = Squeeze (doubled) },
                else_branch = b () => (float[] inner_b) { inner_b = Identity (doubled) }>
        },
        else_branch = thrice () => (float[] tripled) <float three = {3.0}> {
            tripled = Mul (x, three)
        }>
}"""


def test_branches_of_a_bound_input_are_inlined():
    model, x = onnx_text.model_of(BRANCHING), np.arange(4, dtype=np.float32)[None]
    bound = bind_shapes(model, {"x": [1, 4]}, {}, {"rate": 16000})
    assert not any(node.op_type == "If" for node in all_nodes(bound.graph))
    # Its optimiser crashes on such branches.
    plain = OnnxruntimeSession(model, 1, optimised=False)
    (given,) = plain.run({"x": x, "rate": np.array(16000)})
    (settled,) = run_onnxruntime(bound, {"x": x}, 1)
    np.testing.assert_array_equal(settled, given)
    assert settled.shape == (4,)


def test_a_branch_that_depends_on_an_input_stays():
    bound = bind_shapes(onnx_text.model_of(BRANCHING), {"x": [2, 4]}, {})
    assert [node.op_type for node in bound.graph.node].count("If") == 1


def test_nodes_of_one_name_get_different_names():
    model = model_of("[same] a = Relu (x) [same] b = Neg (a) [same_2] y = Exp (b)")
    bound = bind_shapes(model, {}, {})
    assert len({node.name for node in bound.graph.node}) == 3
    np.testing.assert_allclose(run_onnxruntime(bound, DATA, 1)[0], np.exp(-DATA["x"]))


def test_a_constant_output_is_written_by_a_node():
    weight = np.arange(4, dtype=np.float32)
    bound = bind_shapes(model_of("y = Add (x, w)", "float[] y, float[] w", w=weight), {}, {})
    sums, given = run_onnxruntime(bound, DATA, 1)
    np.testing.assert_array_equal(sums, DATA["x"] + weight)
    np.testing.assert_array_equal(given, weight)


def test_an_unsorted_topk_is_sorted():
    bound = bind_shapes(model_of("y, places = TopK <sorted = 0> (x, k)", k=[2]), {}, {})
    np.testing.assert_array_equal(run_onnxruntime(bound, DATA, 1)[0], [[3, 2], [7, 6]])


def test_empty_inputs_at_the_end_are_removed():
    # onnxruntime's optimizer does not expect empty inputs.
    nodes = "n = LayerNormalization (x, scale, ) c = Clip (n, , ) y = Mul (c, scale)"
    bound = bind_shapes(model_of(nodes, scale=np.ones(4, np.float32)), {}, {})
    assert [len(node.input) for node in bound.graph.node] == [2, 1, 2]
    run_onnxruntime(bound, DATA, 1)


def with_past():
    return onnx_text.model_of(
        """(float[1,3,4] keys, float[1,"past_length",4] past) => (float[] present) {
            present = Concat <axis = 1> (past, keys)
        }"""
    )


@pytest.mark.parametrize(
    ("shapes", "dimensions"), [({"past": [1, 0, 4]}, {}), ({}, {"past_length": 0})]
)
def test_an_empty_past_becomes_a_constant(shapes, dimensions):
    bound = bind_shapes(with_past(), shapes, dimensions)
    assert [value.name for value in bound.graph.input] == ["keys"]
    keys = np.random.default_rng(0).standard_normal((1, 3, 4)).astype(np.float32)
    (present,) = run_onnxruntime(bound, {"keys": keys}, 1)
    np.testing.assert_array_equal(present, keys)


@pytest.mark.parametrize("size", [-1, 0])
def test_not_all_inputs_may_be_empty(size):
    model = with_past()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "length"
    with pytest.raises(InputError, match="1 or more"):
        bind_shapes(model, {"past": [1, size, 4], "keys": [1, size, 4]}, {})


def test_a_tensor_beyond_the_memory_is_refused():
    model = onnx_text.model_of(
        f"(float[1,1] x) => (float[{TERA},{TERA}] y) {{[widen] y = Expand (x, size)}}",
        size=[TERA, TERA],
    )
    with pytest.raises(MachineError, match=r"'y', what Expand \('widen'\) gives, .* 4\.4e\+03 GB"):
        bind_shapes(model, {}, {})


def test_a_tensor_of_half_of_the_memory_is_allowed():
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [100])
    model = helper.make_model(helper.make_graph([], "one", [value], []))
    refuse_beyond_memory(model, 800)
    with pytest.raises(MachineError, match="'x', an input of the model"):
        refuse_beyond_memory(model, 799)


@pytest.mark.parametrize(
    ("operator", "drawn"),
    [
        ("RandomNormal", "RandomNormal <shape = [2, 4]> ()"),
        ("RandomUniformLike", "RandomUniformLike (x)"),
        ("Bernoulli", "Bernoulli (x)"),
    ],
)
def test_random_numbers_are_refused_by_node(operator, drawn):
    with pytest.raises(InputError, match=f"{operator} node 'noise' draws random numbers"):
        bind_shapes(model_of(f"[noise] drawn = {drawn} y = Add (x, drawn)"), {}, {})


def test_an_input_that_decides_a_shape_must_be_bound():
    model = model_of("[shaped] y = Reshape (x, sizes)", inputs=", int64[2] sizes")
    with pytest.raises(InputError, match=r"Reshape node 'shaped' .*--constant sizes=\[1,2\]"):
        bind_shapes(model, {}, {})
    bound = bind_shapes(model, {}, {}, {"sizes": [4, 2]})
    assert static_shape(bound.graph.output[0]) == [4, 2]


@pytest.mark.parametrize("shape", ["", "[1]"])
def test_a_size_of_one_number_is_bound_by_a_number(shape):
    model = model_of("[largest] y, places = TopK (x, count)", inputs=f", int64{shape} count")
    with pytest.raises(InputError, match=r"TopK node 'largest' .*--constant count=8"):
        bind_shapes(model, {}, {})


def test_lengths_whose_largest_decides_a_shape_must_be_bound():
    nodes = """
        longest = ReduceMax <keepdims = 0> (lengths)
        [counted] places = Range (zero, longest, one)
        y = Cast <to = 1> (places)"""
    model = model_of(nodes, inputs=", int64[2] lengths", zero=0, one=1)
    with pytest.raises(InputError, match=r"Range node 'counted' .*--constant lengths=\[1,2\]"):
        bind_shapes(model, {}, {})


def test_a_condition_that_decides_a_shape_must_be_bound():
    nodes = """[chosen] y = If (is_cached) <
        then_branch = a () => (float[] one) { one = Neg (x) },
        else_branch = b () => (float[] number) { two = Size (x) number = Cast <to = 1> (two) }>"""
    with pytest.raises(InputError, match=r"If node 'chosen' .*--constant is_cached=\[true\]"):
        bind_shapes(model_of(nodes, inputs=", bool[1] is_cached"), {}, {})
