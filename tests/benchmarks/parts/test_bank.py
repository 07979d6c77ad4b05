"""The bank's benchmark: the logs that make a bank, and reports on several models."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts import bank
from fewtune.errors import InputError
from fewtune.util.files import canonical_json
from stages.paths import Places
from tests.made import results as made


def row(variant: str, used: float, achieved: float) -> dict[str, object]:
    return {
        "variant": variant,
        "banked": 12,
        "known": 5,
        "representatives": 1,
        "tuning_s": 3.21,
        "trials": 40,
        "max_relative_error": 1e-6,
        "used_time_pct": used,
        "latency_ms": 4.5,
        "achieved_perf_pct": achieved,
        "achieved_perf_p10_pct": achieved - 1,
        "achieved_perf_p90_pct": achieved + 1,
        "speedup_over_onnxruntime": 1.125,
    }


def test_a_bank_is_made_of_all_other_models(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for model in ("net", "other", "third"):
        places.shared(model, "full").mkdir(parents=True)
        (places.shared(model, "full") / "log.json").touch()
    places.shared("half", "selective").mkdir(parents=True)
    assert bank.donors(places, "net") == {
        "other": places.shared("other", "full"),
        "third": places.shared("third", "full"),
    }
    assert bank.donors(places, "net", ["third"]) == {"third": places.shared("third", "full")}
    with pytest.raises(InputError, match="half was not tuned in full"):
        bank.donors(places, "net", ["third", "half"])
    with pytest.raises(InputError, match="no other model than net"):
        bank.donors(Places(tmp_path / "empty"), "net")


def test_results_of_several_models_make_one_table(tmp_path: Path) -> None:
    for model in ("net", "other"):
        result = {
            "model": model,
            "bank_of": ["third"],
            "onnxruntime_latency_ms": 5.0,
            "rows": [row("bank", 4.0, 99.0), row("full", 100.0, 100.0)],
            "conditions": made.conditions().model_dump(mode="json"),
        }
        (tmp_path / f"{model}.json").write_text(canonical_json(result))
    text = bank.markdown(tmp_path)
    lines = [line for line in text.splitlines() if line.startswith("| net")]
    assert len(lines) == 2
    assert "| bank | 12 | 5 | 1 | 3.21 | 4.0 | 4.50 | 99.0 | 98.0 - 100.0 | 1.12 | 40 |" in lines[0]
    assert "other: bank of the full logs of third; measured on Test CPU" in text
