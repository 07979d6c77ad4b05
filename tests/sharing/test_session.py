"""Rounds of sharing on the tiny model, by a judge that measures nothing."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from fewtune.artifacts import BankDonor, LogInfo, ShareReport
from fewtune.options import ShareOptions
from fewtune.storage.database import best_trials, read_database
from fewtune.storage.journal import Journal
from fewtune.trial.trial import trace_key
from fewtune.tuning.state import WRONG_SCHEDULES
from tests import tuned_tiny
from tests.made.judges import MadeJudge
from tests.made.sessions import events_of

pytestmark = pytest.mark.slow

OPTIONS = ShareOptions(trials_per_task=2, finals=2, least_gain=0.005)


def share(
    root: Path, judge: MadeJudge, options: ShareOptions = OPTIONS, **changed: object
) -> ShareReport:
    """Share in a new folder of ``root``; its journals are kept."""
    directory = root / f"share{len(list(root.glob('share*')))}"
    model = tuned_tiny.extracted()
    with mock.patch("fewtune.sharing.session.InModel", lambda *_: judge):
        return tuned_tiny.share(directory, root / "journals", options, model, **changed)


def named(letter: str) -> str:
    return tuned_tiny.convolutions()[letter].info.name


def journal_of(root: Path) -> Path:
    (path,) = (root / "journals").glob("*.jsonl")
    return path


class Faster:
    """Whatever comes later is faster, down to a third of the first."""

    def __init__(self) -> None:
        self._times_s: dict[tuple[str, str], float] = {}

    def __call__(self, name: str, key: str) -> float:
        earlier = sum(each == name for each, _ in self._times_s)
        return self._times_s.setdefault((name, key), 1e-3 * max(0.8**earlier, 0.3))


def test_rounds_end_when_they_gain_nothing_and_nothing_is_tried_twice(tmp_path):
    judge = MadeJudge(lambda _name, _key: 1e-3)
    report = share(tmp_path, judge)
    assert report.stopped_by == "converged"
    assert set(judge.rounds[0]) == {named(letter) for letter in "abc"}
    tried = judge.contenders()
    assert len(judge.rounds) > 1
    assert len(tried) == len(set(tried))
    # Each has what it had: of equal ones nobody is better.
    first = {name: keys[0] for name, keys in judge.rounds[0].items()}
    assert all(keys[0] == first[name] for each in judge.rounds for name, keys in each.items())
    assert {line.task: line.status for line in report.tasks} == {
        named("a"): "predicted",
        named("c"): "predicted",
    }


def decisions(key: str) -> object:
    """What a trace decides; instructions are written anew when TVM has read them."""
    return json.loads(key)[1]


def test_the_fastest_is_taken_and_what_it_is(tmp_path):
    judge = MadeJudge(Faster())
    # No predictor reorders what donors give.
    report = share(tmp_path, judge, OPTIONS.model_copy(update={"predictor": "never"}))
    lines = {line.task: line for line in [*report.tasks, *report.representatives]}
    assert {lines[named(letter)].status for letter in "ac"} <= {"shared", "searched"}
    events = [each for each in events_of(journal_of(tmp_path)) if each["kind"] == "round"]
    donors = {donor for each in events for known in each["donors"].values() for donor in known}
    assert donors == {None, named("b")}
    database = read_database(tmp_path / "share0")
    for letter in "abc":
        final = events[-1]["finals"][named(letter)]
        (best,) = best_trials(database, tuned_tiny.convolutions()[letter].mod, 1)
        assert decisions(trace_key(best.trace)) == decisions(final["keys"][final["chosen"]])
        assert lines[named(letter)].best_ms == pytest.approx(1e3 * float(best.run_secs[0]))
    (held,) = report.rounds
    contested = [sum(len(f["keys"]) > 1 for f in each["finals"].values()) for each in events]
    assert (held.name, held.tasks) == ("in the model", max(contested))
    assert held.trials == len(judge.contenders())


def test_another_shape_takes_what_the_largest_has_come_to_unmeasured(tmp_path):
    (cluster,) = tuned_tiny.selection().clusters
    clusters = [cluster.model_copy(update={"members": [named("b"), named("a")]})]
    changed = {"clusters": clusters, "twins": {named("c"): named("b")}}
    judge = MadeJudge(lambda _name, _key: 1e-3)
    report = share(tmp_path, judge, selection=tuned_tiny.selection().model_copy(update=changed))
    assert named("c") not in judge.rounds[0]
    (line,) = (each for each in report.tasks if each.task == named("c"))
    assert (line.status, line.donor, line.note) == ("shared", named("b"), f"as {named('b')}")


def test_another_shape_without_a_twin_keeps_its_schedule(tmp_path):
    """The skeleton, in which rounds measure, is of the largest shape."""
    info = tuned_tiny.convolutions()["c"].info.model_copy(update={"calls": {"main_1": 1}})
    given = [replace(t, info=info) if t.info.name == info.name else t for t in tuned_tiny.tasks()]
    judge = MadeJudge(lambda _name, _key: 1e-3)
    report = share(tmp_path, judge, tasks=given)
    assert not any(info.name in each for each in judge.rounds)
    assert report.trials > 0
    log = read_database(tmp_path / "share0")
    assert best_trials(log, tuned_tiny.convolutions()["c"].mod, 1)


class KilledError(BaseException):
    """What ends a session as a signal would."""


def test_a_killed_session_goes_on_and_measures_nothing_twice(tmp_path):
    says = Faster()
    judge = MadeJudge(says)
    whole = judge.judged

    def killed(entries):
        if len(judge.rounds) == 2:
            raise KilledError
        return whole(entries)

    judge.judged = killed
    with pytest.raises(KilledError):
        share(tmp_path, judge)
    kept = journal_of(tmp_path).read_bytes()
    again = MadeJudge(says)
    report = share(tmp_path, again)
    assert journal_of(tmp_path).read_bytes().startswith(kept)
    entries = Counter(
        (name, json.dumps(trial["trace"]))
        for event in events_of(journal_of(tmp_path))
        for name, trials in event.get("by_task", {}).items()
        for trial in trials
    )
    assert set(entries.values()) == {1}
    assert report.trials == len(entries)
    # What had won is what the next round begins with.
    last = events_of(journal_of(tmp_path))
    second = [event for event in last if event["kind"] == "round"][1]
    assert {name: keys[0] for name, keys in again.rounds[0].items()} == {
        name: final["keys"][final["chosen"]] for name, final in second["finals"].items()
    }
    # A session that has ended measures nothing.
    idle = MadeJudge(says)
    assert share(tmp_path, idle) == report
    assert idle.rounds == []


def test_a_wrong_contender_is_refused_and_named(tmp_path):
    has: set[str] = set()

    def says(name: str, key: str) -> float | str:
        if name != named("a"):
            return 1e-3
        # What the task had comes first.
        has.update([key] if not has else [])
        return 1e-3 if key in has else "12 of 99 elements differ"

    judge = MadeJudge(says)
    report = share(tmp_path, judge)
    line = next(line for line in report.tasks if line.task == named("a"))
    assert line.trials > 0
    assert line.failures == {"wrong_output": line.trials}
    assert line.status == "predicted"
    told = (tmp_path / "share0" / WRONG_SCHEDULES).read_text()
    assert "12 of 99 elements differ" in told
    records = best_trials(read_database(tmp_path / "share0"), tuned_tiny.convolutions()["a"].mod, 9)
    assert [decisions(trace_key(each.trace)) for each in records] == [decisions(*has)]


def test_a_crash_costs_its_task_only(tmp_path):
    judge = MadeJudge(lambda _name, _key: 1e-3)
    judge.judged = mock.Mock(side_effect=KilledError)
    with pytest.raises(KilledError):
        share(tmp_path, judge)
    path = journal_of(tmp_path)
    header = json.loads(path.read_bytes().split(b"\n")[0].partition(b" ")[2])
    journal = Journal(path, {k: v for k, v in header.items() if k not in ("kind", "format")})
    journal.append({"kind": "crash", "task": named("a"), "signal": "SIGSEGV"})
    journal.close()
    again = MadeJudge(lambda _name, _key: 1e-3)
    report = share(tmp_path, again)
    assert set(again.rounds[0]) == {named("b"), named("c")}
    line = next(line for line in report.tasks if line.task == named("a"))
    assert "crashed (SIGSEGV)" in line.note


def test_without_time_for_a_round_the_predicted_schedules_stay(tmp_path):
    judge = MadeJudge(lambda _name, _key: 1e-3)
    report = share(tmp_path, judge, OPTIONS.model_copy(update={"budget_s": 1e-3}))
    assert (report.stopped_by, report.trials, judge.rounds) == ("budget", 0, [])
    # A representative was measured while tuning: the log is of use to banks and other runs.
    assert not LogInfo.read(tmp_path / "share0").predicted
    database = read_database(tmp_path / "share0")
    for letter in "ac":
        task = tuned_tiny.convolutions()[letter]
        (ours,), (theirs,) = (
            best_trials(each, task.mod, 9)
            for each in (database, read_database(tuned_tiny.predicted()))
        )
        assert trace_key(ours.trace) == trace_key(theirs.trace)


def test_a_bank_serves_what_it_is_selected_for(tmp_path):
    workload = tuned_tiny.convolutions()["b"].info.workload
    donor = BankDonor(workload=workload, origin="earlier", similarity=0.9)
    banked = tuned_tiny.selection().model_copy(
        update={"clusters": [], "banked": {named(letter): [donor] for letter in "ac"}}
    )
    judge = MadeJudge(lambda _name, _key: 1e-3)
    given = {"selection": banked, "bank_directory": tuned_tiny.bank(tmp_path)}
    # No predictor reorders what donors give.
    report = share(tmp_path, judge, OPTIONS.model_copy(update={"predictor": "never"}), **given)
    assert {line.task for line in report.tasks} == {named(letter) for letter in "ac"}
    events = [each for each in events_of(journal_of(tmp_path)) if each["kind"] == "round"]
    given = {donor for each in events for known in each["donors"].values() for donor in known}
    assert donor.name in given
