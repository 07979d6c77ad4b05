"""Tuning logs merged, distilled, and taken as the start of a later run."""

import json
import shutil
from pathlib import Path

import pytest

from fewtune.artifacts import LogInfo
from fewtune.errors import InputError, JournalError
from fewtune.pipelines.cli import main
from fewtune.storage.database import (
    RECORDS,
    WORKLOADS,
    best_trials,
    merge,
    read_database,
    read_seeds,
    read_trace,
)
from fewtune.trial.trial import Trial
from fewtune.tuning.job import measured
from fewtune.tuning.state import Start
from fewtune.tuning.tune import TuneJob
from tests import tuned_tiny


def new(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def times_s(directory: Path, letter: str) -> list[float]:
    database = read_database(directory)
    records = best_trials(database, tuned_tiny.convolutions()[letter].mod, 1000)
    return [float(record.run_secs[0]) for record in records]


@pytest.mark.slow
def test_distilling_keeps_the_fastest_of_each_workload(tmp_path):
    kept = merge([tuned_tiny.tuned()], new(tmp_path / "best"), best=2)
    assert list(kept.values()) == [2]
    assert times_s(tmp_path / "best", "b") == times_s(tuned_tiny.tuned(), "b")[:2]


@pytest.mark.slow
def test_a_merged_log_is_the_same_whatever_the_order(tmp_path):
    logs = [tuned_tiny.tuned(), tmp_path / "best"]
    merge([logs[0]], new(logs[1]), best=1)
    for place, order in enumerate((logs, logs[::-1])):
        merge(order, new(tmp_path / str(place)))
    for name in (WORKLOADS, RECORDS, LogInfo.file_name):
        contents = [(tmp_path / place / name).read_bytes() for place in "01"]
        assert contents[0] == contents[1]
    assert times_s(tmp_path / "0", "b") == times_s(tuned_tiny.tuned(), "b")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"), [("machine", "a toaster"), ("threads", 64), ("tvm", "0.1")]
)
def test_a_foreign_log_is_refused(tmp_path, field, value):
    foreign = tmp_path / "logs" / "foreign"
    shutil.copytree(tuned_tiny.tuned(), foreign)
    LogInfo.read(foreign).model_copy(update={field: value}).write(foreign)
    with pytest.raises(InputError, match=f"cannot be merged .* its {field} is {value}"):
        merge([tuned_tiny.tuned(), foreign], new(tmp_path / "out"))
    with pytest.raises(InputError, match=f"cannot be started from: its {field} is {value}"):
        read_seeds(tmp_path / "logs", {}, tuned_tiny.fingerprint())


@pytest.mark.slow
def test_a_later_run_tries_what_a_log_holds_first(tmp_path):
    task = tuned_tiny.convolutions()["b"]
    name = task.info.name
    merge([tuned_tiny.tuned()], new(tmp_path / "logs" / "one"), best=3)
    first = read_seeds(tmp_path / "logs", {name: task.info.workload}, tuned_tiny.fingerprint())
    assert len(first[name]) == 3
    given = ([task], tmp_path / "journals", tuned_tiny.OPTIONS)
    job = tuned_tiny.job_of(TuneJob, *given, starts={name: Start(seeds=first[name])})
    with tuned_tiny.in_this_process():
        state = measured(job)
    searched = [trial.trace for trial in first[name]]
    tried = [trial.trace for trial in state.tasks[name].trials]
    default = json.loads(state.tasks[name].default_key or "")
    expected = [trace for trace in searched if trace != default]
    assert all(trace in tried[: len(expected)] for trace in expected)
    assert state.trials == tuned_tiny.OPTIONS.trials_per_task


@pytest.mark.slow
def test_the_log_command(tmp_path, capsys):
    log, output = str(tuned_tiny.tuned()), tmp_path / "best"
    assert main(["log", log, "--best", "1", "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}: 1 records of 1 workloads\n"
    for arguments, complaint in (
        ([log, "--output", str(output)], "is there already"),
        ([str(tmp_path), "--output", str(tmp_path / "x")], "holds no tuning log"),
    ):
        assert main(["log", *arguments]) == 2
        assert complaint in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [WORKLOADS, RECORDS])
@pytest.mark.parametrize(
    "line", ["{}", "[]", "3", '["1"]', "[0,[]]", "[0,[[[3],[]],[1],{},[]]]", "x"]
)
def test_a_damaged_line_never_reaches_tvm(tmp_path, name, line):
    directory = tmp_path / "log"
    shutil.copytree(tuned_tiny.tuned(), directory)
    made_log = directory / name
    made_log.write_text(line + "\n" + made_log.read_text())
    with pytest.raises(JournalError, match=f"{name}: line 1 is damaged"):
        read_database(directory)


@pytest.mark.parametrize(
    "trace",
    [
        {},
        [[["GetLoops", ["b0"], [], ["l1"]]], []],
        [[["GetSBlock", [], ["conv", "main"]]], []],
        [[["GetSBlock", [None], ["conv", "main"], ["b0"]]], []],
        [[], [[0, 1]]],
    ],
    ids=str,
)
def test_a_trace_that_tvm_never_wrote_is_refused(trace):
    with pytest.raises(JournalError, match="none of TVM's"):
        read_trace(tuned_tiny.tasks()[0].mod, Trial(json.dumps(trace), [1.0], None), None)
