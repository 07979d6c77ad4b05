"""What tuning time went to: the steps of a result and their table."""

from fewtune.artifacts import (
    PredictedTask,
    Prediction,
    PredictReport,
    TunedTask,
    TuneReport,
    TuningStep,
)
from fewtune.report.tables import tuning_steps
from tests.made import results as made
from tests.made.tasks import made_task

PHASES = {"search_s": 0.0, "build_s": 0.0, "run_s": 0.0, "model_update_s": 0.0}


def searched(name: str, default_ms: float | None, best_ms: float | None) -> TunedTask:
    figures = {"trials": 16, "tuning_s": 5.0, "default_ms": default_ms, "best_ms": best_ms}
    return TunedTask(task=name, status="tuned", failures={}, **figures)


def round_of(name: str, spent_s: float, gained_ms: float) -> TuningStep:
    figures = {"tasks": 2, "trials": 8, "spent_s": spent_s, "gained_ms": gained_ms, **PHASES}
    return TuningStep(name=name, **figures)


def test_steps_stand_in_order_and_those_that_did_nothing_do_not():
    predicted = PredictReport(
        model="made",
        strategy="selective",
        tasks=[PredictedTask(task="twice", status="predicted", spread=0.1)],
        prediction=Prediction(predictor=None),
        predicting_s=2.5,
    )
    rounds = [
        round_of("in the model", 3.0, 0.5),
        round_of("alone", 0.0, 0.0),
        round_of("alone", 7.0, 0.25),
    ]
    tasks = [made_task("twice", 2), made_task("once", 1)]
    tuned = TuneReport(
        model="made",
        strategy="selective",
        tasks=[searched("twice", 3.0, 1.0), searched("once", None, 2.0)],
        trials=32,
        trials_per_task=16,
        tuning_s=5.0,
        stopped_by="trials",
        **PHASES,
    )
    steps = tuning_steps(tasks, predicted, 0.5, tuned, made.share_report(rounds=rounds))
    names = [step.name for step in steps]
    assert names == [
        "predicting", "selecting", "search of the selected", "in the model", "alone",
    ]  # fmt: skip
    assert [step.spent_s for step in steps] == [2.5, 0.5, 5.0, 3.0, 7.0]
    # 2 ms in each of two calls; where no default schedule was measured, nothing is known.
    assert [step.gained_ms for step in steps] == [None, None, 4.0, 0.5, 0.25]
