"""`fewtune.check` reports what a run would do with a model, without registering it."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fewtune.model_check.check import check_here
from fewtune.model_check.report import CheckJob, CheckReport
from fewtune.pipelines.cli import main
from tests import tiny_models
from tests.made.onnx_text import model_of

pytestmark = pytest.mark.slow


def check(path: Path, *shapes: dict, **given: object) -> CheckReport:
    """As `fewtune.check`, but in this process, which has TVM loaded."""
    job = CheckJob(model=path, shapes=dict(*shapes), **given)
    return CheckReport.model_validate(check_here(job))


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "small.onnx"
    onnx.save(model, path)
    return path


def test_a_good_model_is_verified_and_its_tasks_are_counted(tmp_path, capsys):
    path = saved(tiny_models.tiny_convolutional_model(), tmp_path)
    assert main(["check", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    assert said["reason"] is None
    assert said["max_error"] < 1e-4
    assert said["tasks"] >= len(said["tuned"]) > 0
    assert "estimate" in said["estimate"]["rule"]
    assert {"left_out", "inputs", "outputs"} <= said.keys()
    assert list(tmp_path.iterdir()) == [path]


def test_all_unsupported_operators_are_named(tmp_path):
    model = model_of(
        """(float[1,4] x) => (float[1,4] z) {
            [first] y = example.Frobnicate (x)
            [second] z = example.Defrost (y)
        }"""
    )
    model.opset_import.append(helper.make_opsetid("example", 1))
    report = check(saved(model, tmp_path))
    assert not report.ok
    assert report.exit_code == 2
    assert "example" in report.reason
    assert "Frobnicate" in report.reason


def test_a_constant_binds_an_input(tmp_path):
    """A reshape by an input: its shape is known once the input is a constant."""
    model = model_of(
        """(float[2,6] x, int64[2] to) => (float["rows",4] z) {
            y = Reshape (x, to)
            z = Add (y, bias)
        }""",
        bias=np.arange(4, dtype=np.float32),
    )
    path = saved(model, tmp_path)
    report = check(path, constants={"to": [3, 4]})
    assert report.ok, report.reason
    assert [spec.name for spec in report.inputs] == ["x"]
    assert report.outputs[0].shape == [3, 4]
    assert not check(path).ok


def test_axes_of_a_filler_name_are_not_one_dimension(tmp_path):
    model = model_of('(float["?","?"] x) => (float["?","?"] y) {y = Relu (x)}')
    path = saved(model, tmp_path)
    report = check(path, {"x": [2, 3]})
    assert report.ok, report.reason
    assert report.inputs[0].shape == [2, 3]
    assert not check(path, dimensions={"?": 2}).ok


def test_the_command_has_the_exit_code_of_run(tmp_path, capsys):
    path = saved(tiny_models.tiny_convolutional_model(), tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    assert main(["check", str(path), "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert not said["ok"]
    assert said["reason"]


def test_a_reserved_files_name_is_replaced_by_a_given_one(tmp_path):
    path = saved(tiny_models.tiny_convolutional_model(), tmp_path).rename(tmp_path / "bank.onnx")
    assert "reserved" in str(check(path).reason)
    assert check(path, name="mine").model == "mine"


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
