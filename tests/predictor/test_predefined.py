"""The analytic model: what it says of single figures, and of all of the recorded task."""

import math

import numpy as np
from scipy.stats import spearmanr

from fewtune.predictor import PREDEFINED, chosen_digest
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.predictor import predictor_for
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.target import target_from_json
from tests import recorded
from tests.made import predictors as made_predictors

# A product of 512 rows, columns and terms on AVX-512: 6 rows of 4 vectors stand in registers.
GOOD = {
    "reduction": 9, "rows": 9, "groups": 0, "width": 9, "weights_bytes": 20, "data_bytes": 20,
    "results_bytes": 20, "elements": 6, "piece": 0, "vectors": 2, "tile_rows": math.log2(6),
    "accumulators": math.log2(24), "held": math.log2(24), "loads": 10 / 24, "inner_reduction": 2,
    "is_unrolled": 1, "threads": 4, "parted_alike": 1, "tile_weights": 14, "tile_data": 12,
    "cache_weights": 14, "cache_data": 14,
}  # fmt: skip


def speed(**changes: float) -> float:
    row = np.array([[{**GOOD, **changes}.get(name, 0.0) for name in NAMES]])
    traits = CpuTraits(64, 28, 3, 2, in_flight=8)
    return float(Predefined(traits, 2**20).expected(row)[0])


def test_what_slows_a_schedule_is_told():
    assert speed(accumulators=0, held=0) < speed()  # latency shows
    assert speed(accumulators=6, held=6) < speed()  # sums spill
    assert speed(piece=-2) < speed()  # vectors are a quarter full
    assert speed(threads=0) < speed()  # one core idles
    assert speed(is_unrolled=0, held=0) < speed()  # sums leave the registers in every step
    assert speed(cache_weights=26, tile_weights=22) < speed()  # weights come from afar each time
    assert speed(is_ahead=1) < speed()  # padding is a pass of its own


def test_it_ranks_the_recorded_task():
    model = Predefined.of(target_from_json(recorded.TARGET))
    points = recorded.points()
    times_s = np.array([recorded.times_s()[point] for point in points])
    valid = np.isfinite(times_s)
    rated = model.expected(made_predictors.features(points))
    rank, _ = spearmanr(-rated[valid], times_s[valid])
    assert rank >= 0.3


def test_it_stands_where_a_predictor_does_and_is_corrected_by_trials():
    target = target_from_json(recorded.TARGET)
    predictor = predictor_for(PREDEFINED, target)
    assert predictor is not None
    assert chosen_digest(PREDEFINED) not in (None, chosen_digest("auto"))
    points = made_predictors.some_points(64)
    features = made_predictors.features(points)
    before = predictor.expected("task", features)
    predictor.learn("task", features, [recorded.times_s()[point] for point in points])
    after = predictor.expected("task", features)
    times_s = [recorded.times_s()[point] for point in points]
    assert spearmanr(-after, times_s)[0] > spearmanr(-before, times_s)[0]
