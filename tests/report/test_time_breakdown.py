"""What tuning time went to: the steps of a result and their table."""

from fewtune.artifacts import (
    PredictedTask,
    Prediction,
    PredictReport,
    ShareReport,
    ShareRound,
    TunedTask,
    TuneReport,
)
from fewtune.report.time_breakdown import tuning_steps
from tests.made.tasks import made_task


def tuned(*tasks: TunedTask, tuning_s: float = 5.0) -> TuneReport:
    return TuneReport(
        model="made",
        strategy="selective",
        tasks=list(tasks),
        trials=16 * len(tasks),
        trials_per_task=16,
        tuning_s=tuning_s,
        search_s=1.0,
        build_s=2.5,
        run_s=1.25,
        model_update_s=0.0,
        stopped_by="trials",
    )


def searched(name: str, default_ms: float | None, best_ms: float | None) -> TunedTask:
    return TunedTask(
        task=name,
        status="tuned",
        trials=16,
        tuning_s=5.0,
        failures={},
        default_ms=default_ms,
        best_ms=best_ms,
    )


def round_of(name: str, spent_s: float, gained_ms: float) -> ShareRound:
    return ShareRound(
        name=name,
        rule=f"the rule of {name}",
        tasks=2,
        trials=8,
        spent_s=spent_s,
        search_s=0.0,
        build_s=spent_s,
        run_s=0.0,
        model_update_s=0.0,
        gained_ms=gained_ms,
    )


def shared(*rounds: ShareRound) -> ShareReport:
    return ShareReport(
        model="made",
        strategy="selective",
        tasks=[],
        rounds=list(rounds),
        trials=16,
        sharing_s=10.0,
        stopped_by="trials",
    )


def test_steps_stand_in_order_and_those_that_did_nothing_do_not():
    lines = [PredictedTask(task="twice", status="predicted", spread=0.1, points=9)]
    predicted = PredictReport(
        model="made",
        strategy="selective",
        tasks=lines,
        prediction=Prediction(predictor=None, points=9),
        predicting_s=2.5,
    )
    rounds = shared(
        round_of("in the model", 3.0, 0.5),
        round_of("alone", 0.0, 0.0),
        round_of("other shapes", 7.0, 0.25),
    )
    tasks = [made_task("twice", 2), made_task("once", 1)]
    tuning = tuned(searched("twice", 3.0, 1.0), searched("once", None, 2.0))
    steps = tuning_steps(tasks, predicted, 0.5, tuning, rounds)
    names = [step.name for step in steps]
    assert names == [
        "predicting", "selecting", "search of the selected", "in the model", "other shapes",
    ]  # fmt: skip
    assert [step.spent_s for step in steps] == [2.5, 0.5, 5.0, 3.0, 7.0]
    # 2 ms in each of two calls; where no default schedule was measured, nothing is known.
    assert [step.gained_ms for step in steps] == [None, None, 4.0, 0.5, 0.25]
