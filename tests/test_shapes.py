"""One library of several shapes, from the call that tunes it to the session that runs it."""

import numpy as np
import onnx
import onnxruntime
import pytest

import fewtune
from fewtune.artifacts import BenchmarkReport, ImportReport, TaskTable
from tests import tiny_models

pytestmark = pytest.mark.slow

QUICK = {
    "benchmark": {"rounds": 3, "copies": 1, "wait_s": 0},
    "share_schedules": {"finals": 0, "trials_per_task": 1, "least_gain": 0.03},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "small.onnx"
    onnx.save(tiny_models.dynamic_model(), path)
    return path


@pytest.fixture(scope="module")
def tuned(model):
    return fewtune.tune(
        model,
        {"one": {"input": (1, 3, 16, 16)}, "many": {"input": (4, 3, 16, 16)}},
        paddable={"batch": 0},
        trials=2,
        out=model.parent / "out",
        options=QUICK,
    )


@pytest.mark.parametrize("batch", [4, 1, 3])
def test_every_shape_runs_as_onnxruntime_does(model, tuned, batch):
    given = np.random.default_rng(batch).normal(size=(batch, 3, 16, 16)).astype("float32")
    session = fewtune.InferenceSession(tuned.library)
    expected = onnxruntime.InferenceSession(str(model)).run(None, {"input": given})
    np.testing.assert_allclose(
        session.run(None, {"input": given})[0], expected[0], rtol=1e-4, atol=1e-5
    )
    served = "one: input=1x3x16x16" if batch == 1 else "many: input=4x3x16x16"
    served += ", padded" * (batch == 3)
    assert session.served_by == served


def test_each_shape_is_measured_and_reported(tuned):
    report = BenchmarkReport.read(tuned.directory / "benchmark")
    shapes = [each.shapes for each in report.shapes]
    assert shapes == ["many: input=4x3x16x16", "one: input=1x3x16x16"]
    for each in report.shapes:
        assert {"tuned", "onnxruntime"} <= each.variants.keys()
        assert each.shapes in tuned.report
    functions = ImportReport.read(tuned.directory / "import").functions
    assert [each.function for each in functions] == ["main", "main_1"]
    # The table of kernels is the largest shape's.
    tasks = TaskTable.read(tuned.directory / "tasks").tasks
    own = {task.name for task in tasks if not task.is_of_other_shape}
    assert {row.task for row in report.kernels} == own
    assert own < {task.name for task in tasks}
