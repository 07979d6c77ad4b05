"""The one-shot benchmark's table, and what it says where there is nothing to compare with."""

import pytest

from benchmarks.oneshot import models_tuned
from fewtune.errors import InputError
from fewtune.stages.paths import Places


def test_models_with_a_measured_run_are_found(tmp_path):
    with pytest.raises(InputError, match="--strategy full"):
        models_tuned(Places(tmp_path), "full")
    (tmp_path / "out" / "net" / "full" / "compile").mkdir(parents=True)
    (tmp_path / "out" / "net" / "full" / "compile" / "compile.json").write_text("{}")
    assert models_tuned(Places(tmp_path), "full") == ["net"]
