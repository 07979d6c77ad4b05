"""`fewtune.check` reports what a run would do with a model, without registering it."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fewtune
from fewtune.model_check.check import check_here
from fewtune.model_check.job import CheckJob
from fewtune.model_check.report import CheckReport
from pipelines.cli import main
from tests import tiny_models

pytestmark = pytest.mark.slow


def graph_of(
    nodes: list, inputs: dict, outputs: dict, weights: dict | None = None
) -> onnx.ModelProto:
    def values(named: dict) -> list:
        return [helper.make_tensor_value_info(n, *kind) for n, kind in named.items()]

    constants = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "small", values(inputs), values(outputs), constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def check(path: Path, *shapes: dict, **given: object) -> CheckReport:
    """As `fewtune.check`, but in this process, which has TVM loaded."""
    return CheckReport.from_json(check_here(CheckJob(model=path, shapes=dict(*shapes), **given)))


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "small.onnx"
    onnx.save(model, path)
    return path


def test_a_good_model_is_verified_and_its_tasks_are_counted(tmp_path):
    report = fewtune.check(saved(tiny_models.tiny_convolutional_model(), tmp_path))
    assert report.ok
    assert report.exit_code == 0
    assert report.reason is None
    assert report.max_error is not None
    assert report.max_error < 1e-4
    assert report.tasks >= len(report.tuned) > 0
    assert report.estimate is not None
    assert "estimate" in report.estimate.rule
    assert list(tmp_path.iterdir()) == [tmp_path / "small.onnx"]


def test_all_unsupported_operators_are_named(tmp_path):
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["y"], name="first", domain="org.example"),
        helper.make_node("Defrost", ["y"], ["z"], name="second", domain="org.example"),
    ]
    kind = (TensorProto.FLOAT, [1, 4])
    model = graph_of(nodes, {"x": kind}, {"z": kind})
    model.opset_import.append(helper.make_opsetid("org.example", 1))
    report = check(saved(model, tmp_path))
    assert not report.ok
    assert report.exit_code == 2
    assert report.reason is not None
    assert "org.example" in report.reason
    assert "Frobnicate" in report.reason


def test_a_constant_binds_an_input(tmp_path):
    """A reshape by an input: its shape is known once the input is a constant."""
    node = helper.make_node("Reshape", ["x", "to"], ["y"], name="fold")
    add = helper.make_node("Add", ["y", "bias"], ["z"], name="shift")
    model = graph_of(
        [node, add],
        {"x": (TensorProto.FLOAT, [2, 6]), "to": (TensorProto.INT64, [2])},
        {"z": (TensorProto.FLOAT, ["rows", 4])},
        {"bias": np.arange(4, dtype=np.float32)},
    )
    path = saved(model, tmp_path)
    report = check(path, constants={"to": [3, 4]})
    assert report.ok, report.reason
    assert [spec.name for spec in report.inputs] == ["x"]
    assert report.outputs[0].shape == [3, 4]
    unbound = check(path)
    assert not unbound.ok


def test_axes_of_a_filler_name_are_not_one_dimension(tmp_path):
    model = graph_of(
        [helper.make_node("Relu", ["x"], ["y"], name="rectify")],
        {"x": (TensorProto.FLOAT, ["?", "?"])},
        {"y": (TensorProto.FLOAT, ["?", "?"])},
    )
    path = saved(model, tmp_path)
    report = check(path, {"x": [2, 3]})
    assert report.ok, report.reason
    assert report.inputs[0].shape == [2, 3]
    assert not check(path, dimensions={"?": 2}).ok


def test_nodes_in_any_order_are_sorted(tmp_path):
    nodes = [
        helper.make_node("Exp", ["y"], ["z"], name="last"),
        helper.make_node("Relu", ["x"], ["y"], name="first"),
    ]
    kind = (TensorProto.FLOAT, [1, 4])
    report = check(saved(graph_of(nodes, {"x": kind}, {"z": kind}), tmp_path))
    assert report.ok, report.reason


def test_weights_that_are_nan_are_named(tmp_path):
    kind = (TensorProto.FLOAT, [1, 4])
    model = graph_of(
        [helper.make_node("Add", ["x", "shift"], ["y"], name="add")],
        {"x": kind},
        {"y": kind},
        {"shift": np.array([0, np.nan, 1, 2], np.float32)},
    )
    report = check(saved(model, tmp_path))
    assert not report.ok
    assert report.reason is not None
    assert "shift" in report.reason
    assert "NaN" in report.reason


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_prints_json_and_has_the_exit_code_of_run(tmp_path, capsys, broken):
    path = saved(tiny_models.tiny_convolutional_model(), tmp_path)
    if broken:
        path.write_bytes(path.read_bytes()[:100])
    code = main(["check", str(path), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is not broken
    assert code == (2 if broken else 0)
    assert (said["reason"] is None) is not broken
    assert {"max_error", "tasks", "left_out", "inputs", "outputs"} <= said.keys()


def test_sample_inputs_are_used_and_misfits_are_named(tmp_path):
    path = saved(tiny_models.tiny_convolutional_model(), tmp_path)
    given = onnx.load(path).graph.input[0]
    shape = [each.dim_value for each in given.type.tensor_type.shape.dim]
    sample = tmp_path / "sample.npz"
    np.savez(sample, **{given.name: np.ones(shape, np.float32)})
    assert check(path, inputs=sample).ok
    np.savez(sample, **{given.name: np.ones([1, 2], np.float32)})
    refused = check(path, inputs=sample)
    assert refused.exit_code == 2
    assert refused.reason is not None
    assert given.name in refused.reason
