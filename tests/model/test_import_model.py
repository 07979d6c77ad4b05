"""Import into Relax: what is refused, what falls back, and what is verified."""

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from fewtune.artifacts import ImportReport
from fewtune.errors import InputError, VerificationError
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model.import_model import imported_model, read_lowered
from fewtune.model.lower import UnsupportedError
from fewtune.model.source import add_model
from fewtune.onnx_graph import simplify
from fewtune.options import ImportOptions
from fewtune.runtime.target import target_from_json
from fewtune.task.extract import extract_tasks
from tests import tiny_models
from tests.made.layers import layer
from tests.made.onnx_text import model_of


def imported(model, tmp_path: Path, options: ImportOptions | None = None) -> ImportReport:
    file = tiny_models.write_model(model, tmp_path)
    add_model(str(file), tmp_path / "models", "tiny")
    fingerprint = detect_fingerprint(FingerprintOptions())
    directory = tmp_path / "import"
    directory.mkdir()
    target = target_from_json(fingerprint.target)
    given = (target, fingerprint.threads, options or ImportOptions())
    imported_model("tiny", tmp_path / "models", *given).write(directory)
    return ImportReport.read(directory)


@pytest.mark.slow
def test_a_convolutional_model_is_laid_out_nhwc_and_agrees(tmp_path):
    report = imported(tiny_models.tiny_convolutional_model(0), tmp_path)
    assert report.layout == "NHWC"
    assert report.max_relative_error < 1e-5
    tasks = extract_tasks(read_lowered(tmp_path / "import"))
    assert {"conv2d"} <= {task.info.operator for task in tasks}


@pytest.mark.slow
def test_nchw_is_kept_when_asked_for(tmp_path):
    model = tiny_models.tiny_convolutional_model(0)
    report = imported(model, tmp_path, ImportOptions(layout="NCHW"))
    assert (report.layout, report.layout_note) == ("NCHW", "as asked")


@pytest.mark.slow
def test_a_recurrent_layer_that_is_one_kernel_is_named(tmp_path):
    report = imported(simplify.with_shapes(layer("LSTM", batch=1)[0]), tmp_path)
    assert any("computed by one kernel: 1" in note for note in report.notes)
    tasks = extract_tasks(read_lowered(tmp_path / "import"))
    assert not any("recurrence" in task.info.name for task in tasks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        tiny_models.elementwise_model,
        tiny_models.two_input_model,
        tiny_models.integer_input_model,
        tiny_models.half_precision_model,
    ],
)
def test_other_kinds_of_models_are_imported(make, tmp_path):
    bound = 2e-2 if make is tiny_models.half_precision_model else 1e-4
    report = imported(make(), tmp_path)
    assert report.allowances <= 1
    assert report.max_relative_error <= bound


def test_an_operator_that_tvm_lacks_is_named_with_its_node(tmp_path):
    text = "(float[2,2] x) => (float[2,2] y) {[inverted] y = com.microsoft.Inverse (x)}"
    with pytest.raises(UnsupportedError, match="com.microsoft.Inverse .node 'inverted'") as caught:
        imported(model_of(text, 13), tmp_path)
    assert [node.node for node in caught.value.unsupported] == ["inverted"]


def test_an_output_without_elements_that_is_constant_is_refused_by_name(tmp_path):
    text = "(float[2] x) => (float[2] y, float[3,0] z) {y = Neg (x) z = Identity (none)}"
    model = model_of(text, 13, none=np.zeros((3, 0), np.float32))
    with pytest.raises(InputError, match="output 'z' has no elements"):
        imported(model, tmp_path)


def test_constant_weights_are_refused(tmp_path):
    model = tiny_models.tiny_convolutional_model(0)
    for weight in model.graph.initializer:
        array = numpy_helper.to_array(weight)
        if array.dtype == np.float32:
            weight.CopyFrom(numpy_helper.from_array(np.ones_like(array), weight.name))
    with pytest.raises(InputError, match="all one constant"):
        imported(model, tmp_path)


@pytest.mark.slow
def test_an_error_above_the_bound_is_refused(tmp_path):
    with pytest.raises(
        VerificationError, match="imported without tuning, output .*rounding allows"
    ):
        imported(tiny_models.tiny_convolutional_model(0), tmp_path, ImportOptions(allowance=1e-9))
    assert not (tmp_path / "import" / "import.json").exists()
