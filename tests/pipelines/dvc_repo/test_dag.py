"""The order of stages as read from DVC."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from dvc.render.converter.vega import get_datapoints
from dvc.repo import Repo

from fewtune.artifacts import Curve
from fewtune.errors import InputError, MachineError
from fewtune.pipelines.dvc_repo.dag import Dag, DvcBusyError, Result, outdated, read_dag
from fewtune.pipelines.dvc_repo.track import track
from tests import small_pipeline

PROJECT = Path(__file__).parents[3]
GOOD = Result("good", "selective")
STRATEGIES = ("selective", "full")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return small_pipeline.make(tmp_path_factory.mktemp("dag"))


@pytest.fixture(scope="module")
def dag(root):
    return read_dag(root)


def names(dag: Dag, *wanted: Result) -> list[str]:
    return [stage.name for stage in dag.plan(wanted)[0]]


def test_results_follow_one_another_and_are_joined(dag):
    wanted = [GOOD, Result("good", "full"), Result("bad", "selective")]
    assert names(dag, *wanted) == [
        "look",
        "prepare@good",
        "search@good-selective",
        "finish@good-selective",
        "search@good-full",
        "finish@good-full",
        "join@good",
        "prepare@bad",
        "search@bad-selective",
        "finish@bad-selective",
        "join@bad",
    ]
    ends = {"finish@good-selective": GOOD, "join@good": Result("good")}
    assert dag.plan([GOOD])[1] == ends


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (Result("goood", "selective"), "model 'goood' is not listed .* did you mean good?"),
        (Result("good", "ful"), "strategy 'ful' is not listed .* did you mean full?"),
    ],
)
def test_an_unknown_result_is_named(dag, result, expected):
    with pytest.raises(InputError, match=expected):
        dag.plan([result])


GATHER = """\
  gather:
    matrix:
      strategy: ${strategies}
    cmd: mkdir -p out/${item.strategy}
    outs: ["out/${item.strategy}"]
"""


def test_a_stage_of_a_strategy_serves_every_model(tmp_path):
    root = small_pipeline.make(tmp_path)
    own = '"out/${item.model}/prepare.txt"'
    reading = small_pipeline.PIPELINE.replace(
        f"deps: [{own}]", f'deps: [{own}, "out/${{item.strategy}}"]'
    )
    (root / "dvc.yaml").write_text(reading + GATHER)
    dag = read_dag(root)
    assert dag.results == [Result(model, it) for model in ("good", "bad") for it in STRATEGIES]
    planned = names(dag, GOOD, Result("bad", "selective"))
    assert planned.count("gather@selective") == 1
    assert planned.index("gather@selective") < planned.index("search@good-selective")
    assert "gather@full" not in planned
    assert dag.stages["gather@selective"].result is None


def test_a_pipeline_that_dvc_refuses_is_one_line(tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "params.yaml").write_text("models: [a]\n")
    (tmp_path / "dvc.yaml").write_text("stages:\n  a: {cmd: echo ${nothing}}\n")
    with pytest.raises(InputError) as caught:
        read_dag(tmp_path)
    assert "\n" not in str(caught.value)
    shutil.rmtree(tmp_path / ".dvc")
    with pytest.raises(InputError, match="DVC cannot read the pipeline"):
        read_dag(tmp_path)


def test_a_busy_dvc_is_no_bad_input(root, monkeypatch):
    monkeypatch.setattr("dvc.lock.DEFAULT_TIMEOUT", 0.06)
    other = Repo(str(root))
    with other.lock, pytest.raises(DvcBusyError, match="another DVC process is at work"):
        outdated(root, ["finish@good-full"])
    other.close()
    assert outdated(root, ["look", "finish@good-full"]) == {"finish@good-full"}


def test_a_disk_that_dvcs_database_finds_full_is_the_machines_fault(root, monkeypatch):
    def full(_: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("dvc.repo.Repo", full)
    with pytest.raises(MachineError, match=r"\(database or disk is full\): free some space"):
        read_dag(root)


def test_files_under_dvc_are_no_stages_but_may_be_missing(tmp_path):
    root = small_pipeline.make(tmp_path / "pulled")
    for model in small_pipeline.MODELS:
        file = root / "given" / model / "weights.bin"
        file.parent.mkdir(parents=True)
        file.write_text(model)
    pipeline = root / "dvc.yaml"
    text = pipeline.read_text()
    given = '[out/look.txt, "given/${item.model}"]'
    pipeline.write_text(text.replace("[out/look.txt]\n    params", f"{given}\n    params"))
    files = [f"given/{model}/weights.bin" for model in small_pipeline.MODELS]
    assert track(root, files) == ""
    assert all((root / f"{file}.dvc").is_file() for file in files)
    stages = read_dag(root).stages
    assert not [name for name in stages if name.endswith(".dvc")]
    prepare = stages["prepare@good"]
    assert prepare.needs == ("look",)
    assert prepare.missing() == ""
    (root / "given" / "good" / "weights.bin").unlink()
    assert prepare.missing() == (
        "inputs are missing: `dvc pull given/good/weights.bin.dvc` brings them here"
    )
    assert stages["prepare@bad"].missing() == ""
    assert "is not under DVC" in track(root, ["given/none"])


def test_the_projects_own_pipeline_ends_each_result_once():
    dag = read_dag(PROJECT)
    plan, ends = dag.plan(dag.results)
    assert {stage.name for stage in plan} == set(dag.stages)
    # None of its models is compared.
    assert sorted(ends.values()) == sorted(dag.results)


def test_the_curve_of_a_strategy_that_measures_nothing_can_be_drawn(tmp_path):
    nothing = Curve(points=[])
    nothing.write(tmp_path)
    assert get_datapoints(json.loads((tmp_path / Curve.file_name).read_text())) == []
    assert Curve.read(tmp_path) == nothing
