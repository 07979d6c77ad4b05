"""A real library as an MLflow model: loaded by MLflow, without TVM's Python package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fewtune.artifacts import ImportReport
from fewtune.errors import InputError
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.pipelines.records.mlflow_model import save_model
from fewtune.runtime.executable import CompiledModel
from fewtune.stages.paths import Places
from tests import tuned_tiny

pytestmark = pytest.mark.slow

RESULT = Result("tiny", "selective")
LOAD = """
import sys
import mlflow.pyfunc
import numpy as np
before = set(sys.modules)
model = mlflow.pyfunc.load_model(sys.argv[1])
given = dict(np.load(sys.argv[2]))
np.savez(sys.argv[3], **model.predict(given))
assert not {"tvm", "pydantic_core", "fewtune.pipelines"} & set(sys.modules) - before
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkout")
    places = Places(root)
    shutil.copytree(tuned_tiny.imported(), places.imported("tiny"))
    shutil.copytree(tuned_tiny.compiled(), places.compiled("tiny", "selective"))
    save_model(root, RESULT, tuned_tiny.fingerprint(), root / "model")
    return root / "model"


@pytest.fixture(scope="module")
def inputs():
    random = np.random.default_rng(0)
    specs = ImportReport.read(tuned_tiny.imported()).inputs
    return {it.name: random.standard_normal(it.shape).astype(it.dtype) for it in specs}


@pytest.fixture(scope="module")
def expected(inputs):
    imported = ImportReport.read(tuned_tiny.imported())
    model = CompiledModel(tuned_tiny.compiled() / "model.so", tuned_tiny.target())
    outputs = model.outputs([inputs[spec.name] for spec in imported.inputs])
    return dict(zip([spec.name for spec in imported.outputs], outputs, strict=True))


def outside(folder: Path) -> dict[str, str]:
    """An environment in which this project's code is not on the path."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'none.db'}"}


def test_mlflow_loads_it_without_tvms_package(saved, inputs, expected, tmp_path):
    np.savez(tmp_path / "given.npz", **inputs)
    arguments = [str(saved), "given.npz", "found.npz"]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *arguments],
        cwd=tmp_path,
        env=outside(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = dict(np.load(tmp_path / "found.npz"))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_it_describes_itself(saved, inputs):
    from mlflow.models import Model

    model = Model.load(str(saved))
    signature = model.signature
    assert [tensor.name for tensor in signature.inputs] == list(inputs)
    assert [tuple(tensor.shape) for tensor in signature.inputs] == [
        value.shape for value in inputs.values()
    ]
    example = model.load_input_example(str(saved))
    assert {name: value.shape for name, value in example.items()} == {
        name: value.shape for name, value in inputs.items()
    }
    requirements = (saved / "requirements.txt").read_text().splitlines()
    assert {line.partition("=")[0] for line in requirements} == {"numpy", "mlflow"}


def test_a_library_that_is_gone_is_told(saved, tmp_path):
    root = tmp_path / "checkout"
    shutil.copytree(saved.parent / "out", root / "out")
    (Places(root).compiled("tiny", "selective") / "model.so").unlink()
    with pytest.raises(InputError, match="dvc checkout"):
        save_model(root, RESULT, tuned_tiny.fingerprint(), root / "model")
