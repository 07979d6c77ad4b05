"""The results that are on disk, read through their artifacts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fewtune.artifacts import BenchmarkReport, Comparison, Metrics
from fewtune.report import Result, belongs
from stages.params import COMPARED, LISTS, read_yaml
from stages.places import Places


def listed(root: Path) -> tuple[list[str], list[str]]:
    """Models and strategies of params.yaml, unchecked beyond being lists of texts.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    content = read_yaml(Places(root).params)
    models, strategies = (
        [str(name) for name in content[key]] if isinstance(content.get(key), list) else []
        for key in LISTS
    )
    return models, strategies


def read_results(root: Path, models: Collection[str] | None = None) -> list[Result]:
    """Every result on disk, in the order of params.yaml, then by name.

    Parameters
    ----------
    root : Path
    models : collection of str, optional
        Only those.

    Raises
    ------
    InputError
        If an artifact is not what this version writes.
    """
    places = Places(root)
    names, strategies = listed(root)
    names += [name for name in places.registered() if name not in names]
    found = []
    for model in names:
        if models is not None and model not in models:
            continue
        comparison = read_comparison(root, model)
        for strategy in strategies:
            result = read_result(root, model, strategy)
            if result is not None:
                selective = strategy == COMPARED[0]
                found.append(
                    Result(result.benchmark, result.metrics, comparison if selective else None)
                )
    return found


def read_result(root: Path, model: str, strategy: str) -> Result | None:
    """One result without its comparison; None if there is none on disk."""
    directory = Places(root).benchmarked(model, strategy)
    if not (directory / BenchmarkReport.file_name).is_file():
        return None
    return Result(BenchmarkReport.read(directory), Metrics.read(directory))


def read_comparison(root: Path, model: str) -> Comparison | None:
    """The comparison of a model's strategies, if it was made of the results now on disk."""
    places = Places(root)
    directory = places.compared(model)
    if not (directory / Comparison.file_name).is_file():
        return None
    comparison = Comparison.read(directory)
    selective, full = (_metrics(root, model, strategy) for strategy in COMPARED)
    return comparison if belongs(comparison, selective, full) else None


def _metrics(root: Path, model: str, strategy: str) -> Metrics | None:
    directory = Places(root).benchmarked(model, strategy)
    return Metrics.read(directory) if (directory / Metrics.file_name).is_file() else None
