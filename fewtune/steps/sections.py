"""Options of every step: from the arguments of `fewtune.tune`, and from its ``options``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fewtune.bank.options import BankOptions
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.compile.options import CompileOptions
from fewtune.errors import InputError
from fewtune.model.import_options import ImportSection
from fewtune.options import PREDICT, ShareOptions, TuneOptions
from fewtune.prediction.options import PredictOptions
from fewtune.selection.options import SelectOptions

ONESHOT = "oneshot"
STRATEGIES: dict[str, dict[str, Any]] = {
    "selective": {},
    "full": {"method": "all"},
    ONESHOT: {"method": PREDICT},
}
MODES = ("measure", PREDICT)
_SECTIONS: dict[str, type[BaseModel]] = {
    "import_model": ImportSection,
    "select_tasks": SelectOptions,
    "build_bank": BankOptions,
    "predict": PredictOptions,
    "tune": TuneOptions,
    "share_schedules": ShareOptions,
    "compile": CompileOptions,
    "benchmark": BenchmarkOptions,
}


def sections(
    options: Mapping[str, Mapping[str, Any]],
    strategy: str,
    trials: int | None,
    budget_s: float | None,
    seed: int,
) -> dict[str, Any]:
    """Every stage's options: those of the arguments, overridden by the given ones."""
    unknown = sorted(options.keys() - _SECTIONS.keys())
    if unknown:
        raise InputError(f"options has no section {unknown[0]!r}: give {', '.join(_SECTIONS)}")
    seeded = {"predict", "tune", "share_schedules", "benchmark", "compile", "import_model"}
    said: dict[str, dict[str, Any]] = {
        name: {"seed": seed} if name in seeded and "seed" in kind.model_fields else {}
        for name, kind in _SECTIONS.items()
    }
    said["select_tasks"] |= STRATEGIES[strategy]
    said["tune"] |= {} if trials is None else {"trials_per_task": trials}
    for name in ("tune", "share_schedules"):
        said[name] |= {} if budget_s is None else {"budget_s": budget_s}
    found: dict[str, Any] = {}
    for name, kind in _SECTIONS.items():
        try:
            found[name] = kind.model_validate({**said[name], **options.get(name, {})})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join([name, *(str(step) for step in first["loc"])])
            raise InputError(f"option {key}: {first['msg']}") from None
    return found
