"""Several predictors asked at once: shares, risks, and which of those that come with it fit."""

import numpy as np
import pytest

from fewtune.predictor import AUTO, shipped
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.predictor import Consensus, consensus_for, predictor_for
from fewtune.predictor.pretrained import Pretrained
from fewtune.runtime.tvm import tvm


class Fixed(Pretrained):
    """Says the same of every point."""

    def __init__(self, speed: float) -> None:
        super().__init__(None, {"lanes": 16, "threads": 2})
        self._speed = speed

    def expected(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self._speed)


def test_the_nearest_has_half_of_the_say_and_the_others_share_the_rest():
    told = Consensus(Fixed(-0.4), [Fixed(-0.1), Fixed(-0.3)])
    assert told.expected(np.zeros((2, len(NAMES)))) == pytest.approx([-0.3, -0.3])
    assert (told.lanes, told.threads) == (16, 2)


@pytest.mark.parametrize("risk", ["many", "is_odd_vector"])
def test_a_tile_that_may_spill_or_be_taken_apart_rates_lower(risk):
    features = np.zeros((2, len(NAMES)))
    features[1, NAMES.index(risk)] = 1.0
    sound, risky = Consensus(Fixed(-0.2), []).expected(features)
    assert sound == pytest.approx(-0.2)
    assert risky < sound


def test_all_predictors_for_such_vectors_and_threads_are_asked():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
    fitting = [path for path in shipped() if Pretrained.read(path).lanes == 16]
    features = np.random.default_rng(0).random((5, len(NAMES)))
    found = consensus_for(AUTO, target)
    nearest = predictor_for(AUTO, target)
    assert found is not None and nearest is not None and len(fitting) > 1
    assert found.pretrained.conditions == nearest.pretrained.conditions
    assert not np.allclose(
        found.pretrained.expected(features), nearest.pretrained.expected(features)
    )
