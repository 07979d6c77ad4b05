"""Models are bound: branches, rare forms, poolings, empty inputs, and what is refused."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.errors import InputError, MachineError
from fewtune.onnx_graph.bind import bind_shapes, refuse_beyond_memory
from fewtune.onnx_graph.graph import all_nodes, static_shape
from fewtune.onnx_graph.observed_shapes import run_onnxruntime_once
from fewtune.verify.session import run_onnxruntime

DATA = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
TERA = 2**20


def model_of(nodes, outputs=("y",), constants=(), inputs=()) -> ModelProto:
    """A model that reads ``x`` of two rows."""
    graph = helper.make_graph(
        nodes,
        "rare",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]), *inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branching_model() -> onnx.ModelProto:
    """One of two scales, by a sampling rate; the first branch squeezes if there is one row."""

    def scaled(by: float, squeezes: bool) -> onnx.GraphProto:
        scale = numpy_helper.from_array(np.float32(by), f"scale_{by}")
        nodes = [helper.make_node("Mul", ["x", scale.name], [f"scaled_{by}"])]
        result = f"scaled_{by}"
        if squeezes:
            condition = [
                helper.make_node("Shape", [result], ["size"], start=0, end=1),
                helper.make_node("Squeeze", ["size"], ["rows"]),
                helper.make_node("Equal", ["rows", "one"], ["is_one"]),
            ]
            inner = [
                helper.make_graph(
                    [helper.make_node(kind, [result], [f"inner_{kind}"])],
                    kind,
                    [],
                    [helper.make_tensor_value_info(f"inner_{kind}", TensorProto.FLOAT, None)],
                )
                for kind in ("Squeeze", "Identity")
            ]
            choice = helper.make_node(
                "If", ["is_one"], ["chosen"], then_branch=inner[0], else_branch=inner[1]
            )
            nodes, result = [*nodes, *condition, choice], "chosen"
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        one = numpy_helper.from_array(np.int64(1), "one")
        return helper.make_graph(nodes, f"by_{by}", [], [output], [scale, one])

    graph = helper.make_graph(
        [
            helper.make_node("Equal", ["rate", "high"], ["is_high"]),
            helper.make_node(
                "If",
                ["is_high"],
                ["y"],
                then_branch=scaled(2.0, True),
                else_branch=scaled(3.0, False),
            ),
        ],
        "rates",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4]),
            helper.make_tensor_value_info("rate", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.int64(16000), "high")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_branches_of_a_bound_input_are_inlined():
    model, x = branching_model(), np.arange(4, dtype=np.float32)[None]
    bound = bind_shapes(model, {"x": [1, 4]}, {}, {"rate": 16000})
    assert not any(node.op_type == "If" for node in all_nodes(bound.graph))
    given = run_onnxruntime_once(model, [{"x": x, "rate": np.array(16000)}])
    settled = run_onnxruntime_once(bound, [{"x": x}])
    np.testing.assert_array_equal(settled[0][0], given[0][0])
    assert settled[0][0].shape == (4,)


def test_a_branch_that_depends_on_an_input_stays():
    bound = bind_shapes(branching_model(), {"x": [2, 4]}, {})
    assert [node.op_type for node in bound.graph.node].count("If") == 1


def test_nodes_of_one_name_get_different_names():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "same"),
        helper.make_node("Neg", ["a"], ["b"], "same"),
        helper.make_node("Exp", ["b"], ["y"], "same_2"),
    ]
    bound = bind_shapes(model_of(nodes), {}, {})
    assert len({node.name for node in bound.graph.node}) == 3
    np.testing.assert_allclose(run_onnxruntime(bound, DATA, 1)[0], np.exp(-DATA["x"]))


def test_a_constant_output_is_written_by_a_node():
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], "add")]
    weight = np.arange(4, dtype=np.float32)
    bound = bind_shapes(model_of(nodes, ["y", "w"], [("w", weight)]), {}, {})
    sums, given = run_onnxruntime(bound, DATA, 1)
    np.testing.assert_array_equal(sums, DATA["x"] + weight)
    np.testing.assert_array_equal(given, weight)


def test_an_unsorted_topk_is_sorted():
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "places"], "top", sorted=0)]
    bound = bind_shapes(model_of(nodes, constants=[("k", np.array([2]))]), {}, {})
    np.testing.assert_array_equal(run_onnxruntime(bound, DATA, 1)[0], [[3, 2], [7, 6]])


def test_the_default_domain_has_one_spelling():
    node = helper.make_node("Neg", ["x"], ["y"], "negated", domain="ai.onnx")
    bound = bind_shapes(model_of([node]), {}, {})
    assert {node.domain for node in bound.graph.node} == {""}
    np.testing.assert_array_equal(run_onnxruntime(bound, DATA, 1)[0], -DATA["x"])


def test_empty_inputs_at_the_end_are_removed():
    # onnxruntime's optimizer does not expect empty inputs.
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", ""], ["n"], "normal"),
        helper.make_node("Clip", ["n", "", ""], ["c"], "bounded"),
        helper.make_node("Mul", ["c", "scale"], ["y"], "scaled"),
    ]
    bound = bind_shapes(model_of(nodes, constants=[("scale", np.ones(4, np.float32))]), {}, {})
    assert [len(node.input) for node in bound.graph.node] == [2, 1, 2]
    run_onnxruntime(bound, DATA, 1)


def test_a_short_transform_has_the_shape_that_onnxruntime_gives_it():
    node = helper.make_node("STFT", ["signal", "step", "", "frame"], ["y"])
    turned = helper.make_node("Unsqueeze", ["x", "last"], ["signal"])
    constants = [("step", np.array(1)), ("frame", np.array(4)), ("last", np.array([2]))]
    bound = bind_shapes(model_of([turned, node], constants=constants), {}, {})
    (output,) = run_onnxruntime(bound, DATA, 1)
    assert static_shape(bound.graph.output[0]) == list(output.shape)


@pytest.mark.parametrize("opset", [11, 19, 22])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "sizes"),
    [
        ([1, 1], [2, 2], [0, 0, 0, 0], [12, 13]),
        ([2, 2], [3, 2], [0, 0, 0, 0], [9, 7]),
        ([2, 3], [2, 2], [1, 1, 1, 1], [7, 8]),
    ],
)
def test_no_window_starts_behind_the_end(opset, pool, kernel, strides, pads, sizes):
    given = {"kernel_shape": kernel, "strides": strides, "ceil_mode": 1}
    # The second pooling's size follows from the first one's.
    nodes = [
        helper.make_node(pool, ["x"], ["between"], pads=pads, **given),
        helper.make_node(pool, ["between"], ["y"], **given),
    ]
    graph = helper.make_graph(
        nodes,
        "pools",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    bound = bind_shapes(model, {}, {})
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, *sizes)).astype(np.float32)}
    (wanted,), (actual,) = (run_onnxruntime(each, feeds, 1) for each in (model, bound))
    assert static_shape(bound.graph.output[0]) == list(wanted.shape)
    np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def with_past() -> ModelProto:
    dims = {"keys": [1, 3, 4], "past": [1, "past_length", 4]}
    graph = helper.make_graph(
        [helper.make_node("Concat", ["past", "keys"], ["present"], axis=1)],
        "with_past",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in dims.items()],
        [helper.make_tensor_value_info("present", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


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
    graph = helper.make_graph(
        [helper.make_node("Expand", ["x", "size"], ["y"], name="widen")],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [TERA, TERA])],
        [numpy_helper.from_array(np.array([TERA, TERA]), "size")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(MachineError, match=r"'y', what Expand \('widen'\) gives, .* 4\.4e\+03 GB"):
        bind_shapes(model, {}, {})


def test_a_tensor_of_half_of_the_memory_is_allowed():
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [100])
    model = helper.make_model(helper.make_graph([], "one", [value], []))
    refuse_beyond_memory(model, 800)
    with pytest.raises(MachineError, match="'x', an input of the model"):
        refuse_beyond_memory(model, 799)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("RandomNormal", [], {"shape": [2, 4]}),
        ("RandomUniformLike", ["x"], {}),
        ("Bernoulli", ["x"], {}),
    ],
)
def test_random_numbers_are_refused_by_node(operator, inputs, attributes):
    nodes = [
        helper.make_node(operator, inputs, ["drawn"], "noise", **attributes),
        helper.make_node("Add", ["x", "drawn"], ["y"], "add"),
    ]
    with pytest.raises(InputError, match=f"{operator} node 'noise' draws random numbers"):
        bind_shapes(model_of(nodes), {}, {})


def test_random_numbers_that_no_output_reads_are_allowed():
    nodes = [
        helper.make_node("RandomNormal", [], ["drawn"], "noise", shape=[2, 4]),
        helper.make_node("Relu", ["x"], ["y"], "relu"),
    ]
    assert bind_shapes(model_of(nodes), {}, {}).graph.output[0].name == "y"


def test_an_input_that_decides_a_shape_must_be_bound():
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [2])
    nodes = [helper.make_node("Reshape", ["x", "sizes"], ["y"], "shaped")]
    with pytest.raises(InputError, match=r"Reshape node 'shaped' .*--constant sizes=\[1,2\]"):
        bind_shapes(model_of(nodes, inputs=[sizes]), {}, {})
    bound = bind_shapes(model_of(nodes, inputs=[sizes]), {}, {}, {"sizes": [4, 2]})
    assert [d.dim_value for d in bound.graph.output[0].type.tensor_type.shape.dim] == [4, 2]


@pytest.mark.parametrize("shape", [[], [1]])
def test_a_size_of_one_number_is_bound_by_a_number(shape):
    count = helper.make_tensor_value_info("count", TensorProto.INT64, shape)
    nodes = [helper.make_node("TopK", ["x", "count"], ["y", "places"], "largest")]
    with pytest.raises(InputError, match=r"TopK node 'largest' .*--constant count=8"):
        bind_shapes(model_of(nodes, inputs=[count]), {}, {})


def test_lengths_whose_largest_decides_a_shape_must_be_bound():
    lengths = helper.make_tensor_value_info("lengths", TensorProto.INT64, [2])
    nodes = [
        helper.make_node("ReduceMax", ["lengths"], ["longest"], keepdims=0),
        helper.make_node("Range", ["zero", "longest", "one"], ["places"], "counted"),
        helper.make_node("Cast", ["places"], ["y"], to=TensorProto.FLOAT),
    ]
    numbers = [numpy_helper.from_array(np.int64(n), name) for n, name in enumerate(["zero", "one"])]
    model = model_of(nodes, inputs=[lengths])
    model.graph.initializer.extend(numbers)
    with pytest.raises(InputError, match=r"Range node 'counted' .*--constant lengths=\[1,2\]"):
        bind_shapes(model, {}, {})


def test_a_condition_that_decides_a_shape_must_be_bound():
    is_cached = helper.make_tensor_value_info("is_cached", TensorProto.BOOL, [1])
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("one", "two")]
    branches = [
        helper.make_graph([helper.make_node(kind, ["x"], [out.name])], kind, [], [out])
        for kind, out in zip(("Neg", "Size"), outputs, strict=True)
    ]
    branches[1].node.append(helper.make_node("Cast", ["two"], ["number"], to=TensorProto.FLOAT))
    branches[1].output[0].name = "number"
    given = dict(zip(("then_branch", "else_branch"), branches, strict=True))
    nodes = [helper.make_node("If", ["is_cached"], ["y"], "chosen", **given)]
    with pytest.raises(InputError, match=r"If node 'chosen' .*--constant is_cached=\[true\]"):
        bind_shapes(model_of(nodes, inputs=[is_cached]), {}, {})
