"""The outcome of a run: results that cannot be read, exit codes."""

from fewtune.pipelines.dvc_repo.dag import Dag, Result, Stage
from fewtune.pipelines.runs.outcome import Outcome
from fewtune.pipelines.runs.run_plan import Run, Steps
from tests.made import results as made


def test_a_result_of_the_run_that_cannot_be_read_is_its_failure(tmp_path):
    directory = tmp_path / "out" / "good" / "full" / "benchmark"
    made.write_result(directory, "good", "full")
    (directory / "benchmark.json").write_text("{}")
    outcome = Outcome()
    stage = Stage("finish@good-full", Result("good", "full"))
    Run(tmp_path, Dag([stage]), Steps(), outcome, True, False).finish(Result("good", "full"), stage)
    assert not outcome.finished
    (failure,) = outcome.failures
    assert (failure.what, failure.exit_code) == ("finish@good-full", 2)
    assert failure.error.endswith("run its stage again, with --force")


def test_exit_codes_agree_or_are_one():
    outcome = Outcome()
    assert outcome.exit_code == 0
    stage = Stage("a", Result("m", "s"))
    outcome.fail(stage, "disk is full", 3)
    assert outcome.exit_code == 3
    outcome.fail(stage, "bad shape", 2)
    assert outcome.exit_code == 1


def test_a_regression_is_no_failure_of_a_model():
    outcome = Outcome(finished=[Result("m", "s")])
    outcome.refuse("m-s is 80 % slower", 6)
    assert outcome.message() == "m-s is 80 % slower; up to date: m-s"
    outcome.fail(Stage("a", None), "disk is full", 3)
    assert outcome.message().startswith("every model failed; m-s is 80 % slower; a: disk is full")
