"""params.yaml: what it means, and one clear line for everything that it cannot mean."""

import json
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fewtune.errors import InputError
from fewtune.stages.params import BY_MODEL, RUN_SETTINGS, SECTIONS, load_all, load_section
from fewtune.stages.paths import Places
from tests.made.command import python

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def params(tmp_path):
    """The project's own params.yaml, with the models it lists registered beside it."""
    shutil.copy(PROJECT / "params.yaml", tmp_path)
    for name in ("squeezenet", "resnet50"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "model.yaml").write_text(f"light: {name}\n")
    return tmp_path / "params.yaml"


def change(path: Path, key_path: str, value: object) -> None:
    content = YAML(typ="safe").load(path.read_text())
    *parents, key = key_path.split(".")
    place = content
    for parent in parents:
        place = place[parent]
    place[key] = value
    with path.open("w") as stream:
        YAML(typ="safe").dump(content, stream)


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_all(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message.removeprefix(f"{path}: ")


def test_the_projects_own_file_is_accepted():
    params = load_all(PROJECT / "params.yaml")
    assert params["models"] == ["squeezenet"]
    assert params["strategies"] == ["selective"]
    assert params["select_tasks"]["full"].method == "all"
    assert set(params) == {"models", "strategies", "compared", *SECTIONS, BY_MODEL}


def test_a_model_may_have_settings_of_its_own_in_the_file_and_in_one_run(params, monkeypatch):
    change(params, BY_MODEL, {"squeezenet": {"tune": {"trials_per_task": 64, "seed": 1}}})
    monkeypatch.setenv(RUN_SETTINGS, '{"squeezenet": {"tune": {"trials_per_task": 8}}}')
    own = load_all(params)[BY_MODEL]
    assert own == {"squeezenet": {"tune": {"trials_per_task": 8, "seed": 1}}}
    file = Places(params.parent).settings("squeezenet", "tune")
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(own["squeezenet"]["tune"]))
    options = load_section("tune", path=params, model="squeezenet")
    assert (options.trials_per_task, options.seed) == (8, 1)
    assert load_section("tune", path=params).trials_per_task == 32


def test_a_section_does_not_depend_on_another(params):
    change(params, "benchmark", {"rounds": "many"})
    change(params, "nonsense", 1)
    assert load_section("tune", path=params)
    assert load_section("select_tasks", "full", path=params).method == "all"


@pytest.mark.parametrize(
    ("key_path", "value", "expected"),
    [
        ("tune.trails_per_task", 4, "trails_per_task is no known key; did you mean trials_per"),
        ("tunes", {}, "tunes is no section; did you mean tune?"),
        ("benchmark.zzz", 1, "benchmark.zzz is no known key (known: "),
        ("tune.trials_per_task", 0, "tune.trials_per_task is 0: give "),
        ("import_model.layout", "nhwc", "import_model.layout is 'nhwc': give 'NHWC' or 'NCHW'"),
        ("select_tasks.selective.method", "clique", ".selective.method is 'clique': give "),
        ("build_bank", {"full": {}}, "build_bank.selective is missing"),
        ("by_model", {"squeezenot": {}}, "no listed model; did you mean squeezenet?"),
        ("by_model", {"squeezenet": {"tunes": {}}}, "no section of a model; did you mean tune?"),
        ("tune.predictor", "predictors/x", "tune.predictor is 'predictors/x': give auto, never, "),
        ("compare", [], "compare is []: give a mapping"),
        ("models", ["squeeznet"], "models lists 'squeeznet', but "),
        ("models", ["bank"], "models holds 'bank': not bank, fingerprint, settings, which are "),
        ("models", ["squeezenet", "squeezenet"], "models holds 'squeezenet' twice"),
        ("compared", ["squeezenet"], "strategies lacks 'full', which compared needs"),
        ("compared", ["resnet50"], "models lacks 'resnet50', which compared needs"),
        ("strategies", ["selective", "full", "ful"], "ful is missing; did you mean full?"),
        ("strategies", ["selective", "full", "tasks"], "strategies holds 'tasks': "),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(params, key_path, value, expected):
    change(params, key_path, value)
    assert expected in refusal(params)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is no mapping of sections"),
        ("- models\n", "is no mapping of sections"),
        ("models: [a\n", "line 2, column 1: "),
        ("tune:\n\tseed: 0\n", "line 2, column 1: "),
        ("tune: {}\ntune: {}\n", 'found duplicate key "tune"'),
    ],
)
def test_unreadable_yaml_is_one_line(tmp_path, content, expected):
    path = tmp_path / "params.yaml"
    path.write_text(content)
    assert expected in refusal(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert refusal(tmp_path / "params.yaml") == "cannot be read: No such file or directory"
    (tmp_path / "binary.yaml").write_bytes(b"models: \xff\n")
    assert refusal(tmp_path / "binary.yaml") == "byte 8 is no UTF-8 text"
    (tmp_path / "folder.yaml").mkdir()
    assert refusal(tmp_path / "folder.yaml") == "cannot be read: Is a directory"


def test_checking_the_file_loads_no_compiler(params):
    # Every command checks it first: TVM and onnxruntime take a second and a half to load.
    heavy = (
        "import sys, pathlib; from fewtune.stages.params import load_all;"
        "load_all(pathlib.Path(sys.argv[1]));"
        "print([m for m in ('tvm', 'onnx', 'onnxruntime', 'sklearn', 'sympy') if m in sys.modules])"
    )
    assert python(heavy, str(params)).stdout == "[]\n"
