"""What a report says of predicted schedules."""

from fewtune.prediction.worth import UNKNOWN, prediction_of, spread_of
from fewtune.predictor import FLOATS
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.predictor import Predictor, consensus_for
from fewtune.runtime.tvm import tvm

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "znver5", "num-cores": 2, "keys": ["cpu"]})


def test_a_known_cpu_needs_no_warning():
    found = prediction_of(consensus_for("auto", TARGET), TARGET)
    assert (found.predictor, found.warning) == ("znver5", "")


def test_without_a_predictor_or_by_the_analytic_model_it_says_so():
    assert "chosen by rule" in prediction_of(None, TARGET).warning
    analytic = prediction_of(Predictor(Predefined.of(TARGET)), TARGET)
    assert "analytic model" in analytic.warning


def test_measuring_may_save_more_the_less_the_predictor_knows_the_cpu():
    other = tvm.target.Target({**dict(TARGET.attrs), "kind": "llvm", "mcpu": "cascadelake"})
    analytic = Predictor(Predefined.of(TARGET))
    spreads = [spread_of(consensus_for("auto", each), each, FLOATS) for each in (TARGET, other)]
    spreads += [spread_of(analytic, TARGET, FLOATS)]
    assert spreads == sorted(spreads)
    assert spreads[0] < spreads[-1]
    assert spread_of(None, TARGET, FLOATS) == UNKNOWN
    # Nothing was learnt of products of bytes on this one.
    zen4 = tvm.target.Target({**dict(TARGET.attrs), "kind": "llvm", "mcpu": "znver4"})
    known = consensus_for("auto", zen4)
    assert spread_of(known, zen4, "int32") > spread_of(known, zen4, FLOATS)
