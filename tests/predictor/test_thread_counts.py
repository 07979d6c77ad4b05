"""Numbers of threads: features of them, trained on several, extrapolated beyond, and said so."""

from typing import Any

import numpy as np

from fewtune.predictor import shipped
from fewtune.predictor.feature_names import OF_POINTS, with_cores
from fewtune.predictor.predictor import consensus_for, extrapolated, predictor_for
from fewtune.predictor.pretrained import Pretrained, TaskSamples
from fewtune.runtime.tvm import tvm

CPU = {"kind": "llvm", "mcpu": "znver5", "keys": ["cpu"]}
CONDITIONS: dict[str, Any] = {
    "device": "a CPU",
    "target": {**CPU, "num-cores": 2},
    "tvm": "0.27",
    "threads": 2,
    "lanes": 16,
}
BOTH = {**CONDITIONS, "thread_counts": [1, 2]}


def target(threads: int) -> tvm.target.Target:
    return tvm.target.Target({**CPU, "num-cores": threads})


def parted(iterations: list[int], cores: int) -> np.ndarray:
    """Points that differ in the iterations of their parallel loop alone, on so many cores."""
    rows = np.zeros((len(iterations), len(OF_POINTS)), dtype="float32")
    rows[:, OF_POINTS.index("threads")] = np.log2(iterations)
    return with_cores(rows, cores)


def both() -> Pretrained:
    """Taught that on two cores odd numbers of iterations are slow, and on one all are as fast."""
    iterations = [1, 2, 3, 4, 5, 6] * 20
    times_s = {1: [1e-3, 1e-3] * 60, 2: [3e-3, 1e-3] * 60}
    samples = [TaskSamples(parted(iterations, n), np.array(times_s[n])) for n in (1, 2)]
    return Pretrained.train(samples, BOTH)


def test_several_numbers_are_told_apart(tmp_path):
    both().write(tmp_path / "both")
    read = Pretrained.read(tmp_path / "both")
    alone, two = (read.expected(parted([3, 4], cores)) for cores in (1, 2))
    assert two[1] - two[0] > 0.5
    assert abs(alone[1] - alone[0]) < 0.1


def test_beyond_what_was_learnt_is_extrapolated_and_said_so(tmp_path, monkeypatch):
    assert predictor_for("auto", target(4)) is None
    own = tmp_path / "both"
    both().write(own)
    monkeypatch.setattr("fewtune.predictor.predictor.shipped", lambda: [*shipped(), own])
    for threads, told in ((1, ""), (2, ""), (4, "runs of 1 and 2 threads: for 4")):
        found = consensus_for("auto", target(threads))
        assert found is not None
        assert told in extrapolated(found.pretrained, target(threads))
    # Of two, those that know two alone are asked as well.
    assert "for 4 its" in extrapolated(Pretrained.read(shipped()[0]), target(4))
    assert not extrapolated(Pretrained.read(shipped()[0]), target(2))
