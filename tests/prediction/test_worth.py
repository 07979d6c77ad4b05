"""What a report says of predicted schedules."""

from fewtune.artifacts import PredictedTask
from fewtune.prediction.worth import BY_RULE, UNKNOWN, prediction_of, spread_of, with_tasks
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.predictor import Predictor, consensus_for
from fewtune.runtime.tvm import tvm

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "keys": ["cpu"]})


def line(note: str) -> PredictedTask:
    return PredictedTask(task="t", status="predicted", spread=0.1, points=100, note=note)


def test_a_known_cpu_and_tasks_that_its_predictor_knows_need_no_warning():
    found = with_tasks(prediction_of(consensus_for("auto", TARGET), TARGET), [line("")])
    assert (found.predictor, found.points, found.warning) == ("znver5", 100, "")


def test_tasks_that_no_predictor_knows_are_counted():
    lines = [line(BY_RULE), line(""), line(BY_RULE)]
    found = with_tasks(prediction_of(consensus_for("auto", TARGET), TARGET), lines)
    assert "2 of 3 tasks are of a kind that no predictor knows" in found.warning


def test_without_a_predictor_or_by_the_analytic_model_it_says_so():
    by_rule = prediction_of(None, TARGET)
    assert "chosen by rule" in by_rule.warning
    assert with_tasks(by_rule, [line(BY_RULE)]).warning == by_rule.warning
    assert "analytic model" in prediction_of(Predictor(Predefined.of(TARGET)), TARGET).warning


def test_measuring_may_save_more_the_less_the_predictor_knows_the_cpu():
    other = tvm.target.Target({**dict(TARGET.attrs), "kind": "llvm", "mcpu": "cascadelake"})
    analytic = Predictor(Predefined.of(TARGET))
    spreads = [spread_of(consensus_for("auto", each), each) for each in (TARGET, other)]
    spreads += [spread_of(analytic, TARGET)]
    assert spreads == sorted(spreads)
    assert spreads[0] < spreads[-1]
    assert spread_of(None, TARGET) == UNKNOWN
