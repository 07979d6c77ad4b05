"""Samples of practice: kept in a file, and learnt from again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewtune.errors import InputError
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.pretrained import (
    Pretrained,
    TaskSamples,
    read_samples,
    require_alike,
    write_samples,
)

CONDITIONS: dict[str, Any] = {
    "device": "a CPU",
    "target": {"kind": "llvm"},
    "tvm": "0.27",
    "threads": 2,
    "lanes": 8,
    "models": ["practice_1"],
}


def sampled() -> list[TaskSamples]:
    random = np.random.default_rng(0)
    return [
        TaskSamples(
            random.random((count, len(NAMES)), dtype="float32"),
            1e-3 + random.random(count),
            f"conv2d {count}",
        )
        for count in (5, 1, 12)
    ]


def test_what_is_kept_teaches_the_same(tmp_path):
    given = sampled()
    write_samples(tmp_path / "own.npz", given, CONDITIONS)
    found, conditions = read_samples(tmp_path / "own.npz")
    assert [each.name for each in found] == [each.name for each in given]
    assert conditions == {**CONDITIONS, "features": list(NAMES)}
    for read, was in zip(found, given, strict=True):
        np.testing.assert_array_equal(read.features, was.features)
        np.testing.assert_array_equal(read.times_s, was.times_s)
    first, second = (Pretrained.train(some, CONDITIONS) for some in (given, found))
    features = given[2].features
    np.testing.assert_array_equal(first.expected(features), second.expected(features))


def test_what_cannot_be_learnt_from_is_refused(tmp_path):
    path = tmp_path / "own.npz"
    with pytest.raises(InputError, match=r"cannot read the samples .*own\.npz"):
        read_samples(path)
    write_samples(path, sampled(), CONDITIONS)
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:700] + b"\0" * 700 + whole[1400:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="cannot read the samples"):
            read_samples(path)
    np.savez(path, conditions=np.array({"a": 1}, dtype=object))
    with pytest.raises(InputError, match="cannot read the samples"):
        read_samples(path)
    stored = {
        "conditions": np.array('{"features": ["another"]}'),
        "shapes": np.array(["conv2d"]),
        "counts": np.array([2]),
        "features": np.zeros((2, len(NAMES)), "float32"),
        "times_s": np.ones(2),
    }
    np.savez(path, **stored)
    with pytest.raises(InputError, match="other features"):
        read_samples(path)


@pytest.mark.parametrize(("key", "value"), [("lanes", 16), ("threads", 4), ("device", "another")])
def test_only_samples_of_one_machine_are_mixed(key, value):
    require_alike(Path("own.npz"), CONDITIONS, dict(CONDITIONS))
    with pytest.raises(InputError, match=f"have {key} .*{CONDITIONS[key]}"):
        require_alike(Path("own.npz"), CONDITIONS, {**CONDITIONS, key: value})
