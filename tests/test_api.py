"""The Python API: a small network tuned and run from a script, without the pipeline."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi

import fewtune
from fewtune.artifacts import (
    BenchmarkReport,
    ImportReport,
    PredictReport,
    ShareReport,
    TaskTable,
    TuneReport,
)
from fewtune.compile import other_shapes
from fewtune.compile.compile import CompileJob, compile_model
from fewtune.errors import InputError
from fewtune.options import CompileOptions
from fewtune.pipelines.cli import main
from fewtune.runtime.tvm import tvm
from tests import tiny_models
from tests.made.command import python
from tests.waiting import until

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parent.parent
QUICK = {
    "benchmark": {"rounds": 3, "copies": 1, "wait_s": 0},
    "share_schedules": {"finals": 0, "trials_per_task": 1, "least_gain": 0.005},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("api") / "small.onnx"
    onnx.save(tiny_models.smallest_model(), path)
    return path


@pytest.fixture(scope="module")
def heard():
    return []


@pytest.fixture(scope="module")
def tuned(model, heard):
    out = model.parent / "out"
    return fewtune.tune(model, trials=2, out=out, options=QUICK, progress=heard.append)


def test_the_result_is_measured_and_runs_as_onnxruntime_does(model, tuned):
    assert tuned.latency_ms > 0
    assert tuned.onnxruntime_latency_ms > 0
    assert "onnxruntime" in tuned.report
    session = onnxruntime.InferenceSession(str(model))
    name = session.get_inputs()[0].name
    shape = session.get_inputs()[0].shape
    given = np.random.default_rng(3).normal(size=shape).astype("float32")
    outputs = fewtune.load(tuned.library)(**{name: given})
    assert list(outputs) == [each.name for each in session.get_outputs()]
    for actual, expected in zip(outputs.values(), session.run(None, {name: given}), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_result_tells_its_figures_in_python(tuned, heard):
    assert heard[-1].trials <= heard[-1].trials_total
    assert heard[0].line()
    assert tuned.to_dict()["latency_ms"] == tuned.latency_ms
    assert len(repr(tuned)) < 400
    assert "latency ms" in repr(tuned)
    tasks = tuned.kernels["task"] if hasattr(tuned.kernels, "columns") else tuned.kernels
    assert len(tasks) > 0


def test_what_is_asked_for_is_an_argument_in_python_and_an_option_of_the_command(tmp_path, capsys):
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3] x) => (float[N, 3] y)'
        " { y = Relu(x) }"
    )
    onnx.save(graph, tmp_path / "open.onnx")
    with pytest.raises(fewtune.InputError, match=r"as in shapes=\{'x': \(N,") as raised:
        fewtune.tune(tmp_path / "open.onnx", out=tmp_path / "out")
    assert "--" not in str(raised.value)
    reason = str(fewtune.check(tmp_path / "open.onnx").reason)
    assert "shapes={'x': (N," in reason
    assert "--" not in reason
    assert main(["check", str(tmp_path / "open.onnx")]) == 2
    assert "--shape x=N," in capsys.readouterr().err


def test_an_equal_call_makes_nothing_anew(model, tuned):
    before = {path: path.stat().st_mtime_ns for path in (tuned.directory / "tune").iterdir()}
    library = tuned.library.stat().st_mtime_ns
    again = fewtune.tune(model, trials=2, out=tuned.directory, options=QUICK)
    assert again == tuned
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert tuned.library.stat().st_mtime_ns == library


def test_a_moved_library_needs_no_other_file_and_names_no_place(tuned, tmp_path):
    library = tmp_path / "moved.so"
    content = tuned.library.read_bytes()
    library.write_bytes(content)
    session = fewtune.InferenceSession(library)
    (given,) = session.get_inputs()
    (output,) = session.run(None, {given.name: np.zeros(given.shape, "float32")})
    assert list(output.shape) == session.get_outputs()[0].shape
    assert session.note.verified["allowances"] <= 1
    assert not re.search(rb"(?:/[\w.-]{3,}){2,}", content)


def test_what_does_not_fit_is_said_in_a_sentence(model, tuned):
    run = fewtune.load(tuned.library)
    with pytest.raises(InputError, match="the model takes"):
        run(nothing=np.zeros(1))
    with pytest.raises(InputError, match="no section 'tuning'"):
        fewtune.tune(model, out=tuned.directory, options={"tuning": {}})
    with pytest.raises(InputError, match=r"option tune\.trials_per_task"):
        fewtune.tune(model, trials=0, out=tuned.directory)
    with pytest.raises(InputError, match="strategy 'best' is unknown"):
        fewtune.tune(model, strategy="best", out=tuned.directory)
    with pytest.raises(InputError, match="cannot be read"):
        fewtune.load(tuned.directory / "absent.so")


REFUSING = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r} or name in ("fewtune.pipelines", "fewtune.stages"):
            raise ImportError(name + " is not installed")
sys.meta_path.insert(0, Refused())
"""


def extras() -> list[str]:
    """The modules of everything that is no core dependency."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    named = [*itertools.chain(*project["project"]["optional-dependencies"].values())]
    named += project["dependency-groups"]["dev"]
    modules = [
        re.split("[<>=]", name)[0].partition("-")[0].partition(".")[0]
        for name in named
        if not name.startswith("types-")
    ]
    return [*modules, "dask"]


def test_the_library_needs_no_extra(cold, model, tuned):
    """Neither to be imported, nor to check, tune and run a model."""
    script = REFUSING.format(names=extras()) + (
        "import fewtune, fewtune.api\n"
        f"result = fewtune.tune({str(model)!r}, trials=2, options={QUICK!r},"
        f" out={str(tuned.directory)!r})\n"
        "print(result.latency_ms, fewtune.load(result.library) is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [str(tuned.latency_ms), "True"], done.stderr


def test_importing_fewtune_loads_nothing_heavy_and_changes_no_handler(tmp_path):
    assert set(fewtune.__all__) <= set(dir(fewtune))
    # Nor does the API, before it has started what loads TVM beside it.
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("import fewtune; fewtune.tune")
    (package / "main.py").write_text(
        "import signal, sys\n"
        "print([m for m in ('tvm', 'numpy', 'onnx') if m in sys.modules])\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "found = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGHUP)]\n"
        "print(all(isinstance(each, signal.Handlers) for each in found))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}"}
    command = [sys.executable, "-m", "mine.main"]
    told = subprocess.check_output(command, env=environment, text=True)
    assert told.split() == ["[]", "True", "True"]


def test_the_notebook_runs(model, tuned, tmp_path):
    """Its cells in order, on the small network that is tuned already."""
    notebook = json.loads((PROJECT / "examples" / "squeezenet.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    cells[0] = f"MODEL, TRIALS, OUT = {str(model)!r}, 2, {str(tuned.directory)!r}"
    cells[1] = cells[1].replace("out=OUT", f"out=OUT, options={QUICK!r}")
    names: dict[str, object] = {}
    for cell in cells:
        exec(compile(cell, "squeezenet.ipynb", "exec"), names)
    assert names["result"] == tuned


INTERRUPTED = """
import os, signal, fewtune

def heard(snapshot):
    if snapshot.phase == "tune":
        os.kill(os.getpid(), signal.SIGINT)

result = fewtune.tune(progress=heard, **%r)
print(result.latency_ms > 0, result.library.is_file())
"""


def test_an_interrupt_ends_with_the_best_so_far_and_an_equal_call_goes_on(
    cold, model, tuned, tmp_path
):
    # What comes before tuning is there.
    out = shutil.copytree(tuned.directory, tmp_path / "out")
    given = {"model": str(model), "strategy": "full", "trials": 2, "out": str(out)}
    given["options"] = {**QUICK, "tune": {"predictor": "never"}}
    command = [sys.executable, "-c", INTERRUPTED % given]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr
    assert TuneReport.read(out / "tune").stopped_by == "interrupted"
    fewtune.tune(**given)
    assert TuneReport.read(out / "tune").stopped_by == "trials"


def test_a_killed_call_leaves_no_temporary_files(cold, model, tmp_path):
    code = f"import fewtune; fewtune.tune({str(model)!r}, out={str(tmp_path / 'out')!r})"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=PROJECT) as killed:
        until(lambda: list(temporary.glob("**/fewtune-apart-*")))
        killed.terminate()
    until(lambda: not list(temporary.iterdir()))


def test_a_limit_of_a_files_size_is_the_machines_fault(cold, model, tmp_path):
    code = (
        "import resource, fewtune\nfrom fewtune.errors import MachineError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        f"print(fewtune.check({str(model)!r}).exit_code)\n"
        f"try: fewtune.tune({str(model)!r}, out={str(tmp_path / 'out')!r})\n"
        "except MachineError as error: print(error)\n"
    )
    exit_code, sentence = python(code).stdout.strip().splitlines()
    assert exit_code == "3"
    assert "file too large; raise the limit" in sentence


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "small.onnx"
    onnx.save(tiny_models.smallest_model("batch"), path)
    return path


@pytest.fixture(scope="module")
def of_shapes(dynamic):
    return fewtune.tune(
        dynamic,
        {"one": {"input": (1, 3, 16, 16)}, "many": {"input": (4, 3, 16, 16)}},
        paddable={"batch": 0},
        mode="predict",
        out=dynamic.parent / "out",
        options=QUICK,
    )


@pytest.mark.parametrize("batch", [4, 1, 3])
def test_every_shape_runs_as_onnxruntime_does(dynamic, of_shapes, batch):
    given = np.random.default_rng(batch).normal(size=(batch, 3, 16, 16)).astype("float32")
    session = fewtune.InferenceSession(of_shapes.library)
    expected = onnxruntime.InferenceSession(str(dynamic)).run(None, {"input": given})
    np.testing.assert_allclose(
        session.run(None, {"input": given})[0], expected[0], rtol=1e-4, atol=1e-5
    )
    served = "one: input=1x3x16x16" if batch == 1 else "many: input=4x3x16x16"
    served += ", padded" * (batch == 3)
    assert session.served_by == served


def _more(store):
    """What is stored, and a half."""
    half = tvm.tirx.const(0.5, store.buffer.dtype)
    return tvm.tirx.BufferStore(store.buffer, store.value + half, store.indices)


def test_a_wrong_schedule_of_another_shape_is_left_out(of_shapes, tmp_path, monkeypatch):
    moved, wrong = other_shapes._moved, []

    def one_wrong(task, *given):
        made = moved(task, *given)
        if made is None or wrong or "conv2d" not in task.info.name:
            return made
        wrong.append(task.info.name)
        stores = (tvm.tirx.BufferStore, _more)
        return made.with_body(tvm_ffi.structural_map(made.body, stores, order="post"))

    monkeypatch.setattr(other_shapes, "_moved", one_wrong)
    folder = of_shapes.directory
    job = CompileJob(
        imported=folder / "import",
        tasks=folder / "tasks",
        shared=folder / "share",
        fingerprint=folder / "fingerprint",
        options=CompileOptions(),
        directory=tmp_path,
        model="small",
        strategy="selective",
    )
    report = compile_model(job)
    assert wrong
    assert [line.kernel for line in report.replaced] == wrong


def test_mode_predict_measures_nothing_while_it_tunes(of_shapes):
    told = ShareReport.read(of_shapes.directory / "share")
    assert told.trials == 0
    assert {line.status for line in told.tasks} <= {"predicted", "default", "shared"}
    assert "predicted, not measured" in of_shapes.report


def test_each_shape_is_measured_and_reported(of_shapes):
    report = BenchmarkReport.read(of_shapes.directory / "benchmark")
    shapes = [each.shapes for each in report.shapes]
    assert shapes == ["many: input=4x3x16x16", "one: input=1x3x16x16"]
    for each in report.shapes:
        assert {"tuned", "onnxruntime"} <= each.variants.keys()
        assert each.shapes in of_shapes.report
    functions = ImportReport.read(of_shapes.directory / "import").functions
    assert [each.function for each in functions] == ["main", "main_1"]
    # The table of kernels is the largest shape's.
    tasks = TaskTable.read(of_shapes.directory / "tasks").tasks
    own = {task.name for task in tasks if not task.is_of_other_shape}
    assert {row.task for row in report.kernels} == own
    assert own < {task.name for task in tasks}
    # For other shapes, nothing is predicted: they take the largest shape's schedules.
    assert {t.task for t in PredictReport.read(of_shapes.directory / "predict").tasks} <= own
    lines = ShareReport.read(of_shapes.directory / "share").tasks
    assert {line.donor for line in lines if line.task not in own} < own
