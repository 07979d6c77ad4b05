"""Concatenations are left out, their parts computed in place, and outputs stay onnxruntime's."""

from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper

from fewtune.artifacts import CompileReport
from fewtune.compile.compile import LIBRARY, TunedParts, compile_model, verify
from fewtune.compile.concatenations import concatenations
from fewtune.compile.in_place import write_in_place
from fewtune.compile.options import CompileOptions
from fewtune.model.import_model import read_lowered
from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import te, tvm
from fewtune.schedule.defaults.default import apply_default_schedules
from fewtune.storage.database import write_database
from fewtune.task.analysis import call_counts
from fewtune.task.extract import extract_tasks
from fewtune.verify.session import random_inputs, run_onnxruntime, tensor_specs
from tests import tuned_tiny
from tests.made.onnx_text import model_of
from tests.made.outputs import relative_error
from tests.model.test_import_model import imported
from tests.tiny_models import make_model, random_weight

pytestmark = pytest.mark.slow

BOUND = 2e-5


class Network:
    """Convolutions of ``x``, 1 x 16 x 6 x 6, and concatenations of what they give."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.channels = {"x": 16}
        self._random = np.random.default_rng(0)

    def convolution(self, name: str, given: str, filters: int) -> str:
        shape = (filters, self.channels[given], 1, 1)
        self.weights[f"{name}_weight"] = random_weight(self._random, *shape)
        self.channels[name] = filters
        inputs = [given, f"{name}_weight"]
        self.nodes.append(helper.make_node("Conv", inputs, [name], name=name, kernel_shape=[1, 1]))
        return name

    def concatenation(self, name: str, *parts: str) -> str:
        self.nodes.append(helper.make_node("Concat", parts, [name], name=name, axis=1))
        self.channels[name] = sum(self.channels[part] for part in parts)
        return name

    def node(self, operator: str, name: str, *given: str) -> str:
        self.nodes.append(helper.make_node(operator, given, [name], name=name))
        self.channels[name] = self.channels[given[0]]
        return name

    def model(self, *outputs: str) -> ModelProto:
        return make_model(self.nodes, {"x": [1, 16, 6, 6]}, dict.fromkeys(outputs), self.weights)


def two_parts(first: int = 16, second: int = 32) -> Network:
    """Two convolutions of the input, ``a`` and ``b``, and their concatenation ``both``."""
    network = Network()
    parts = [network.convolution("a", "x", first), network.convolution("b", "x", second)]
    network.concatenation("both", *parts)
    return network


def lowered_of(model: ModelProto) -> tvm.IRModule:
    simplified = prepare.simplify(bind_shapes(model, {}, {}))
    return lower(simplified, tuned_tiny.target(), "NHWC")


def checked(model: ModelProto) -> Counter[str]:
    """The calls that are left out of a model; its outputs are compared with onnxruntime's."""
    lowered, target = lowered_of(model), tuned_tiny.target()
    scheduled = apply_default_schedules(lowered, list(call_counts(lowered)), target)
    left_out: Counter[str] = Counter()
    concatenating = concatenations(lowered)

    def rewrite(module: tvm.IRModule) -> tvm.IRModule:
        before = calls_of(module)
        rewritten, calls = write_in_place(module, concatenating)
        left_out.update(calls)
        assert calls_of(rewritten) == before - calls.total()
        kept = {v.name_hint for v, f in rewritten.functions_items()}
        assert not [name for name in calls if name in kept and not used(rewritten, name)]
        return rewritten

    bound = bind_shapes(model, {}, {})
    inputs, _ = tensor_specs(bound)
    feeds = random_inputs(inputs, 0)
    expected = run_onnxruntime(bound, feeds, 1)
    built = CompiledModel(build_executable(scheduled, target, rewrite), target)
    actual = built.outputs([feeds[spec.name] for spec in inputs])
    assert all(np.std(each) > 0 for each in expected)
    assert relative_error(actual, expected) < BOUND
    return left_out


def calls_of(module: tvm.IRModule) -> int:
    """Calls of kernels in a module whose tensors are allocated."""
    return sum(used(module, v.name_hint) for v, _ in module.functions_items())


def used(module: tvm.IRModule, name: str) -> int:
    values = [b.value for block in module["main"].body.blocks for b in block.bindings]
    return sum(getattr(getattr(v, "op", None), "name_hint", None) == name for v in values)


def test_a_kernel_of_parts_of_another_rank_concatenates_nothing():
    parts = [te.placeholder((2, 3), "float32", name) for name in ("first", "second")]
    whole = te.compute((2, 3, 4), lambda i, j, _: parts[0][i, j] + parts[1][i, j])
    function = te.create_prim_func([*parts, whole])
    assert concatenations(tvm.IRModule({"kernel": function})) == {}


def chain() -> Network:
    network = two_parts()
    network.convolution("c", "both", 16)
    network.concatenation("three", "both", "c")
    network.convolution("d", "three", 48)
    network.concatenation("four", "three", "d")
    network.convolution("y", "four", 16)
    return network


def shared_parts(other: str) -> Network:
    """One or two parts of a whole are read by something else, too."""
    network = two_parts(16, 16)
    network.convolution("d", "both", 16)
    if other == "convolution":
        network.convolution("c", "b", 16)
    elif other == "product":
        network.node("Mul", "product", "a", "b")
        network.convolution("c", "product", 16)
    else:
        network.convolution("e", "x", 16)
        network.concatenation("others", "e", "a")
        network.convolution("c", "others", 16)
    network.node("Add", "y", "c", "d")
    return network


def ended(network: Network) -> Network:
    network.convolution("y", "both", 16)
    return network


def one_tensor_twice() -> Network:
    network = Network()
    part = network.convolution("a", "x", 16)
    network.concatenation("both", part, part)
    return ended(network)


@pytest.mark.parametrize(
    ("network", "outputs", "left_out"),
    [
        (ended(two_parts()), ["y"], 1),
        # A kernel transposes the output to NCHW, and reads the whole.
        (ended(two_parts()), ["y", "both"], 1),
        (chain(), ["y"], 3),
        (shared_parts("convolution"), ["y"], 1),
        (shared_parts("product"), ["y"], 1),
        # A part of two wholes is in the first.
        (shared_parts("whole"), ["y"], 1),
        # Rows that are no whole vectors are copied.
        (ended(two_parts(16, 12)), ["y"], 0),
        (one_tensor_twice(), ["y"], 0),
    ],
)
def test_parts_are_computed_in_their_whole(network, outputs, left_out):
    assert checked(network.model(*outputs)).total() == left_out


def test_an_input_of_the_model_stays_where_it_is():
    generator = np.random.default_rng(0)
    model = model_of(
        """(float[4,16] x) => (float[] y) {
            a = MatMul (x, first)
            both = Concat <axis = 1> (x, a)
            y = MatMul (both, second)
        }""",
        first=random_weight(generator, 16, 16),
        second=random_weight(generator, 32, 32),
    )
    assert checked(model).total() == 0


def test_concatenations_are_recognised_by_what_they_compute():
    lowered = lowered_of(ended(two_parts()).model("y"))
    (name,) = concatenations(lowered)
    assert concatenations(lowered) == {name: 3}
    # With a fused activation, a kernel does more than concatenate.
    network = two_parts()
    network.node("Relu", "active", "both")
    network.convolution("y", "active", 16)
    assert concatenations(lowered_of(network.model("y"))) == {}


@pytest.mark.parametrize(("in_place", "left_out"), [("auto", 1), ("never", 0)])
def test_a_compilation_reports_what_it_leaves_out(tmp_path, in_place, left_out):
    imported(ended(two_parts()).model("y"), tmp_path)
    target, fingerprint = tuned_tiny.target(), tuned_tiny.fingerprint()
    lowered = read_lowered(tmp_path / "import")
    tasks = extract_tasks(lowered)
    log, directory = tmp_path / "share", tmp_path / "compile"
    log.mkdir()
    directory.mkdir()
    write_database(log, {}, {}, target)
    report = compile_model(
        TunedParts("tiny", "selective", lowered, tasks, tmp_path / "import", log),
        fingerprint,
        CompileOptions(in_place=in_place),
        directory,
    )
    (name,) = concatenations(lowered)
    assert report.in_place == ({name: left_out} if left_out else {})
    assert CompileReport.read(directory) == report
    found = verify(directory / LIBRARY, tmp_path / "import", target)
    assert found.allowances <= 1
