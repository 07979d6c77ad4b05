"""Finals in the model: which schedules take part, which is chosen, and that they are held."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewtune.artifacts import ImportReport, ShareReport
from fewtune.finals import finals
from fewtune.finals.finalists import FinalistRules, contenders_of
from fewtune.finals.finals import Final
from fewtune.model.call_graph import make_skeleton
from fewtune.options import ShareOptions
from fewtune.storage.database import best_trials, read_database
from fewtune.task.extract import write_tasks
from fewtune.trial.trial import trace_key
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import TaskState
from fewtune.workers import model_runner
from tests import tuned_tiny
from tests.made.tasks import made_task, trial

pytestmark = pytest.mark.slow

OPTIONS = ShareOptions(top="50%", trials_per_task=4, finals=3)


def state_of(*times_s: float) -> TaskState:
    """A task with a trial of each time, named by their order."""
    state = RunState([made_task("conv")], ["conv"]).tasks["conv"]
    for place, time_s in enumerate(times_s):
        state.add(trial(str(place), time_s))
    return state


def test_all_contenders_take_turns_in_an_order_by_lot():
    counts = {"one": 1, "three": 3, "four": 4}
    runs = list(model_runner.picks(counts, 24, seed=1))
    assert runs == list(model_runner.picks(counts, 24, seed=1))
    assert runs != list(model_runner.picks(counts, 24, seed=2))
    for name, count in counts.items():
        found = Counter(run[name] for run in runs)
        assert found == dict.fromkeys(range(count), 24 // count)
    # Every contender meets every contender of another task.
    assert len({(run["three"], run["four"]) for run in runs}) > 8


def test_the_chosen_one_is_faster_in_every_process():
    first, second = [[4.0, 4.2, 4.1], [3.0], [3.5]], [[4.0], [4.5], [3.6]]
    # The second is the fastest by far in one process only.
    final = Final.of(["a", "b", "c"], [first, second])
    assert (final.chosen, final.medians_s[0]) == (2, [4.1, 3.0, 3.5])
    assert final.time_s(2) == pytest.approx(3.55)
    # What one chooses is worth in the other: the second loses a half, the third gains 0.6.
    assert final.gain_s == pytest.approx((-0.5 + 0.6) / 2)
    assert Final(**json.loads(json.dumps(final._asdict()))) == final


def test_where_nobody_is_faster_everywhere_the_first_stays():
    final = Final.of(["a", "b"], [[[2.0], [1.0]], [[2.0], [2.1]]])
    assert final.chosen == 0


def test_one_process_decides_alone_and_says_no_gain():
    final = Final.of(["a", "b"], [[[2.0], [1.0]]])
    assert (final.chosen, final.gain_s) == (1, 0.0)


@pytest.mark.parametrize(
    ("part", "names"), [(0.5, "0123"), (0.01, "0123"), (0.005, "01"), (0.001, "0")]
)
def test_heavy_tasks_send_more(part, names):
    state = state_of(1.0, 1.05, 1.1, 1.15, 1.18)
    assert "".join(t.trace[0] for t in contenders_of(state.ranked(), part, most=4)) == names


def test_a_schedule_far_behind_alone_does_not_take_part():
    assert len(contenders_of(state_of(1.0, 1.1, 1.3).ranked(), 0.5, most=4)) == 2
    assert contenders_of([], 0.5, most=4) == []


def test_what_was_chosen_in_the_model_is_what_tvm_takes():
    run = RunState([made_task("conv")], ["conv"])
    state = run.tasks["conv"]
    for each in (trial("fast", 1.0), trial("chosen", 1.1), trial("slow", 1.2)):
        state.add(each)
    keys = [t.key for t in state.ranked()]
    final = Final.of(keys, [[[3.0], [2.0], [4.0]]])
    run.take({"kind": "in_model", "finals": {"conv": final._asdict()}, "note": ""})
    assert [t.trace[0] for t in state.ranked()] == ["chosen", "fast", "slow"]
    # Figures stay those of the kernel alone; what was faster alone is left out.
    assert [(t.trace[0], t.run_s) for t in state.published()] == [
        ("chosen", [1.1]),
        ("slow", [1.2]),
    ]
    assert state.report().best_ms == 1100.0


def decisions(key: str) -> list[Any]:
    """What a trace decides; instructions are written anew when TVM has read them."""
    return json.loads(key)[1]


def model_directory(directory: Path) -> Path:
    """What the extract_tasks stage writes, of the tiny model."""
    directory.mkdir()
    tasks = tuned_tiny.tasks()
    target = tuned_tiny.fingerprint().target
    write_tasks(tasks, "tiny", target, directory)
    inputs = ImportReport.read(tuned_tiny.imported()).inputs
    make_skeleton(tuned_tiny.lowered(), inputs).write(directory)
    return directory


# All trials are near enough to each other, and all tasks heavy enough.
CONTESTED = replace(
    tuned_tiny.RULES,
    finalists=FinalistRules(
        near=math.inf, near_other=math.inf, heavy=0.0, light=0.0, least_contested=0.0
    ),
)


def share(directory: Path, journals: Path, model: Path) -> ShareReport:
    return tuned_tiny.share(directory, journals, OPTIONS, model, CONTESTED)


def test_finals_are_held_and_decide_what_the_log_gives(tmp_path):
    model = model_directory(tmp_path / "model")
    report = share(tmp_path / "share", tmp_path / "journals", model)
    names = {letter: tuned_tiny.convolutions()[letter].info.name for letter in "abc"}
    # Of a task with one checked candidate none are held: the others were much slower this time.
    contested = [line.task for line in report.finals]
    assert contested
    assert contested == sorted(contested)
    assert set(contested) <= set(names.values())
    assert report.finals_note == ""
    *_, last = report.rounds
    assert (last.name, last.tasks, last.trials) == ("finals in the model", len(contested), 0)
    assert last.spent_s > 0
    (path,) = (tmp_path / "journals").glob("*.jsonl")
    events = [json.loads(each.partition(b" ")[2]) for each in path.read_bytes().splitlines()]
    (held,) = [event for event in events if event["kind"] == "in_model"]
    # Where the model decides, no duels do.
    assert not [event for event in events if event["kind"] == "finals"]
    database = read_database(tmp_path / "share")
    for letter, name in names.items():
        if name not in contested:
            continue
        line = next(line for line in report.finals if line.task == name)
        final = Final(**held["finals"][name])
        assert 2 <= line.contenders == len(final.keys) <= OPTIONS.finals
        assert final.keys[line.chosen_rank - 1] == final.keys[final.chosen]
        assert line.chosen_ms <= line.first_ms
        # A contender that the next kernels are much faster after may come to less than nothing.
        assert {len(figures) for figures in final.medians_s} == {len(final.keys)}
        assert all(math.isfinite(figure) for figures in final.medians_s for figure in figures)
        (best,) = best_trials(database, tuned_tiny.convolutions()[letter].mod, 1)
        assert decisions(trace_key(best.trace)) == decisions(final.keys[final.chosen])
    # A run that goes on from the journal holds them no second time.
    content = path.read_bytes()
    assert share(tmp_path / "again", tmp_path / "journals", model) == report
    assert path.read_bytes() == content


def test_without_a_working_model_the_fastest_alone_is_taken(tmp_path, monkeypatch):
    model = model_directory(tmp_path / "model")
    skeleton = model / "skeleton.json"
    broken = json.loads(skeleton.read_text())
    broken["module"] = "{}"
    skeleton.write_text(json.dumps(broken))
    report = share(tmp_path / "share", tmp_path / "journals", model)
    assert report.finals == []
    assert report.finals_note.startswith("no finals in the model: ")
    assert "\n" not in report.finals_note
    # A run that goes on from the journal does not try again.
    assert share(tmp_path / "again", tmp_path / "journals", model) == report
    assert all(line.best_ms is not None for line in report.tasks)


def test_without_a_skeleton_no_finals_are_held(tmp_path):
    model = model_directory(tmp_path / "model")
    (model / "skeleton.json").unlink()
    report = share(tmp_path / "share", tmp_path / "journals", model)
    assert (report.finals, report.finals_note) == ([], "")
    assert "finals in the model" not in [line.name for line in report.rounds]


def holding() -> finals.Finals:
    return finals.Finals(make_skeleton(tuned_tiny.lowered(), []), [], tuned_tiny.target(), most=4)


def searched(weight: int, *times_s: float) -> TaskState:
    state = state_of(*times_s)
    state.progress.weight = weight
    state.progress.best_s = [min(times_s)]
    return state


def test_little_to_contest_is_not_worth_it():
    states = {"conv": searched(1, 1e-4, 1.1e-4), "other": searched(9, 1e-4)}
    assert holding().contenders(states) == {}
    states["other"].progress.weight = 2
    assert {name: len(each) for name, each in holding().contenders(states).items()} == {
        "conv": 2,
        "other": 1,
    }


def test_a_schedule_that_a_bank_has_of_the_task_is_not_contested():
    taken, crashed = searched(1, 1e-4, 1.1e-4), searched(1, 1e-4, 1.1e-4)
    taken.taken = trial("taken", 0.9e-4)
    crashed.crashed = "SIGSEGV"
    states = {"conv": searched(3, 1e-4, 1.1e-4), "taken": taken, "crashed": crashed}
    found = holding().contenders(states)
    assert set(found) == {"conv", "taken"}
    assert [t.trace for t in found["taken"]] == [["taken"]]


def test_long_calls_are_not_contested():
    states = {"conv": searched(90, 1e-4, 1.1e-4), "long": searched(1, 1e-2, 1.1e-2)}
    found = holding().contenders(states)
    assert {name: len(each) for name, each in found.items()} == {"conv": 2, "long": 1}
    # Where they are nearly all there is, no finals are held.
    states["conv"].progress.weight = 9
    assert holding().contenders(states) == {}
