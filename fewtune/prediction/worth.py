"""How far predicted schedules can be trusted on this machine, for the report."""

from __future__ import annotations

from fewtune.artifacts import Prediction
from fewtune.predictor import FLOATS, PREDEFINED
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.predictor import Predictor, extrapolated, is_trained_on
from fewtune.runtime.tvm import tvm

# The note of a task that the predictor could not rate.
BY_RULE = "rated by rule, no predictor knows it"
# Time of the first choice over that of a task's best trial, geometric means over 588 practice tasks
# on a Zen 4: with predictors of a Zen 5 and of a Xeon; with its own, on shapes held out.
_FOREIGN, _OWN = "1.23 to 1.25", "1.11"
# The part of its time that a measured schedule may save of a predicted one's, by the same figures;
# where no predictor knows the task, and nothing says how fast it can be.
_OWN_SPREAD, _FOREIGN_SPREAD, UNKNOWN = 0.1, 0.2, 0.5
# The time that the log has for a schedule that was not measured.
UNMEASURED_S = 1.0
_BY_RULE = (
    "no predictor is for this target's vectors and threads: schedules are chosen by rule, which is "
    "worth little; tune the model (strategy `selective`), or train a predictor (`fewtune predictor "
    "train`)"
)
_ANALYTIC = (
    "schedules are rated by the analytic model, which knows the processor's figures and learnt "
    "nothing: expect less than from a predictor of such a CPU (`fewtune predictor train`)"
)


def prediction_of(predictor: Predictor | None, target: tvm.target.Target) -> Prediction:
    """Which predictor rates points, and how far it can be trusted on this machine."""
    if predictor is None:
        return Prediction(predictor=None, warning=_BY_RULE)
    rating = predictor.of_kind(FLOATS)
    if isinstance(rating, Predefined):
        return Prediction(predictor=PREDEFINED, warning=_ANALYTIC)
    conditions = rating.conditions
    trained_on = str(conditions.get("target", {}).get("mcpu", conditions.get("device", "")))
    warnings = [extrapolated(rating, target)]
    if not is_trained_on(rating, target):
        warnings.append(
            f"no predictor knows the CPU {target.attrs.get('mcpu', 'of this target')}; the one of "
            f"{trained_on} is used: on a CPU that it does not know, its choice took {_FOREIGN} "
            f"times the best trial, on its own {_OWN}"
        )
    return Prediction(predictor=trained_on, warning="; ".join(filter(None, warnings)))


def spread_of(predictor: Predictor | None, target: tvm.target.Target, products: str) -> float:
    """The part of its time that measuring may save of a schedule that the predictor chose.

    ``products`` is the data type of its products; a predictor of floats alone does not know others.
    """
    rating = None if predictor is None else predictor.of_kind(products)
    if rating is None or isinstance(rating, Predefined):
        return UNKNOWN
    is_known = rating.conditions.get("products", FLOATS) == products
    return _OWN_SPREAD if is_known and is_trained_on(rating, target) else _FOREIGN_SPREAD
