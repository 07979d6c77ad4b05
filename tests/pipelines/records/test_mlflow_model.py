"""A real library as an MLflow model, that says what it takes and needs."""

import shutil

import pytest

from fewtune.artifacts import ImportReport
from fewtune.errors import InputError
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.pipelines.records.mlflow_model import save_model
from fewtune.stages.paths import Places
from tests import tuned_tiny

pytestmark = pytest.mark.slow

RESULT = Result("tiny", "selective")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkout")
    places = Places(root)
    shutil.copytree(tuned_tiny.imported(), places.imported("tiny"))
    shutil.copytree(tuned_tiny.compiled(), places.compiled("tiny", "selective"))
    save_model(root, RESULT, tuned_tiny.fingerprint(), root / "model")
    return root / "model"


def test_it_describes_itself(saved):
    from mlflow.models import Model

    specs = ImportReport.read(tuned_tiny.imported()).inputs
    shapes = {spec.name: tuple(spec.shape) for spec in specs}
    model = Model.load(str(saved))
    assert {it.name: tuple(it.shape) for it in model.signature.inputs} == shapes
    example = model.load_input_example(str(saved))
    assert {name: value.shape for name, value in example.items()} == shapes
    requirements = (saved / "requirements.txt").read_text().splitlines()
    assert {line.partition("=")[0] for line in requirements} == {"numpy", "mlflow"}


def test_a_library_that_is_gone_is_told(saved, tmp_path):
    root = tmp_path / "checkout"
    shutil.copytree(saved.parent / "out", root / "out")
    (Places(root).compiled("tiny", "selective") / "model.so").unlink()
    with pytest.raises(InputError, match="dvc checkout"):
        save_model(root, RESULT, tuned_tiny.fingerprint(), root / "model")
