"""Concatenations are left out, their parts computed in place, and outputs stay onnxruntime's."""

import re
from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto

from fewtune.artifacts import CompileReport
from fewtune.compile.compile import LIBRARY, compile_model, verify
from fewtune.compile.in_place import concatenations, write_in_place
from fewtune.model.import_model import read_lowered
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.options import CompileOptions
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import te, tvm
from fewtune.storage.database import write_database
from fewtune.task.extract import extract_tasks, write_tasks
from fewtune.verify.values import random_inputs, tensor_specs
from tests import tuned_tiny
from tests.made.compiled import lowered, scheduled
from tests.made.onnx_text import model_of
from tests.made.outputs import relative_error, run_onnxruntime
from tests.model.test_import_model import imported
from tests.tiny_models import random_weight

pytestmark = pytest.mark.slow

BOUND = 2e-5


def network(text: str, outputs: str = "y", **filters: int) -> ModelProto:
    """1x1 convolutions of ``x`` of 16 channels: ``a`` and ``b`` in ``both``, and what follows.

    ``NAME = conv (INPUT)`` of the text is a convolution with as many filters as given, or 16.
    """
    random, constants = np.random.default_rng(0), {}
    text = f"a = conv (x) b = conv (x) {text}"
    channels = {"x": 16, "three": 48, "four": 96, "others": 32, "product": 16, "active": 32}

    def convolution(found: re.Match[str]) -> str:
        name, given = found.groups()
        channels[name] = filters.get(name, 16)
        shape = (channels[name], channels[given], 1, 1)
        constants[f"{name}_weight"] = random_weight(random, *shape)
        return f"{name} = Conv ({given}, {name}_weight)"

    channels["both"] = filters.get("a", 16) + filters.get("b", 16)
    nodes = re.sub(r"(\w+) = conv \((\w+)\)", convolution, text)
    given = ", ".join(f"float[] {name}" for name in outputs.split())
    return model_of(f"(float[1,16,6,6] x) => ({given}) {{{nodes}}}", **constants)


BOTH = "both = Concat <axis = 1> (a, b) "
ENDED = BOTH + "y = conv (both)"


def checked(model: ModelProto) -> Counter[str]:
    """The calls that are left out of a model; its outputs are compared with onnxruntime's."""
    module, target = lowered(model), tuned_tiny.target()
    left_out: Counter[str] = Counter()
    concatenating = concatenations(module)

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
    built = CompiledModel(build_executable(scheduled(module), target, rewrite), target)
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


def shared(other: str) -> str:
    """Parts of the whole ``both`` that something else reads, too."""
    return f"{BOTH} d = conv (both) {other} y = Add (c, d)"


@pytest.mark.parametrize(
    ("text", "outputs", "filters", "left_out"),
    [
        (ENDED, "y", {"b": 32}, 1),
        # A kernel transposes the output to NCHW, and reads the whole.
        (ENDED, "y both", {"b": 32}, 1),
        (
            f"""{BOTH} c = conv (both) three = Concat <axis = 1> (both, c)
            d = conv (three) four = Concat <axis = 1> (three, d) y = conv (four)""",
            "y",
            {"d": 48},
            3,
        ),
        (shared("c = conv (b)"), "y", {}, 1),
        (shared("product = Mul (a, b) c = conv (product)"), "y", {}, 1),
        # A part of two wholes is in the first.
        (shared("e = conv (x) others = Concat <axis = 1> (e, a) c = conv (others)"), "y", {}, 1),
        # Rows that are no whole vectors are copied.
        (ENDED, "y", {"b": 12}, 0),
        ("both = Concat <axis = 1> (a, a) y = conv (both)", "y", {}, 0),
    ],
)
def test_parts_are_computed_in_their_whole(text, outputs, filters, left_out):
    assert checked(network(text, outputs, **filters)).total() == left_out


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
    module = lowered(network(ENDED))
    (name,) = concatenations(module)
    assert concatenations(module) == {name: 3}
    # With a fused activation, a kernel does more than concatenate.
    active = f"{BOTH} active = Relu (both) y = conv (active)"
    assert concatenations(lowered(network(active))) == {}


@pytest.mark.parametrize(("in_place", "left_out"), [("auto", 1), ("never", 0)])
def test_a_compilation_reports_what_it_leaves_out(tmp_path, in_place, left_out):
    imported(network(ENDED), tmp_path)
    target = tuned_tiny.target()
    module = read_lowered(tmp_path / "import")
    write_tasks(extract_tasks(module), "tiny", "", tmp_path / "tasks")
    log, directory = tmp_path / "share", tmp_path / "compile"
    log.mkdir()
    directory.mkdir()
    write_database(log, {}, {}, target)
    job = tuned_tiny.compile_job(log, directory, CompileOptions(in_place=in_place))
    own = {"imported": tmp_path / "import", "tasks": tmp_path / "tasks"}
    report = compile_model(job.model_copy(update=own))
    (name,) = concatenations(module)
    assert report.in_place == ({name: left_out} if left_out else {})
    assert CompileReport.read(directory) == report
    found = verify(CompiledModel(directory / LIBRARY, target), tmp_path / "import")
    assert found.allowances <= 1
