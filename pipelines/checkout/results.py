"""The results that are on disk, read through their artifacts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from fewtune.artifacts import BenchmarkReport, Comparison, Metrics
from fewtune.errors import InputError
from fewtune.report.tables import Result, belongs
from stages.params import COMPARED, LISTS, read_yaml
from stages.paths import Places


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


def read_results(
    root: Path, complain: Callable[[str], None], models: Collection[str] | None = None
) -> list[Result]:
    """Every result on disk, in the order of params.yaml, then by name.

    A result that another version of this software wrote, and this one cannot read, is left out.

    Parameters
    ----------
    root : Path
    complain : callable
        Gets a line about each that is left out.
    models : collection of str, optional
        Only those.
    """
    places = Places(root)
    names, strategies = listed(root)
    names += [name for name in places.registered() if name not in names]
    found = []
    for model in names:
        if models is not None and model not in models:
            continue
        results: dict[str, Result] = {}
        for strategy in strategies:
            try:
                result = read_result(root, model, strategy)
            except InputError as error:
                what = f"{model} --strategy {strategy}"
                complain(_left_out(f"{model} {strategy}", error, what))
                continue
            if result is not None:
                results[strategy] = result
        try:
            comparison = _comparison_of(root, model, results)
        except InputError as error:
            complain(_left_out(f"the comparison of {model}", error, f"{model} --all"))
            comparison = None
        if COMPARED[0] in results:
            selective = results[COMPARED[0]]
            results[COMPARED[0]] = replace(selective, comparison=comparison)
        found += results.values()
    return found


def _left_out(what: str, error: InputError, arguments: str) -> str:
    return f"{what} is left out: {error}: `fewtune run {arguments} --force`"


def read_result(root: Path, model: str, strategy: str) -> Result | None:
    """One result without its comparison; None if there is none on disk.

    Raises
    ------
    InputError
        If an artifact is not what this version writes.
    """
    directory = Places(root).benchmarked(model, strategy)
    if not (directory / BenchmarkReport.file_name).is_file():
        return None
    return Result(BenchmarkReport.read(directory), Metrics.read(directory))


def read_comparison(root: Path, model: str) -> Comparison | None:
    """The comparison of a model's strategies, if it was made of the results now on disk.

    Raises
    ------
    InputError
        As `read_result`.
    """
    results = {strategy: read_result(root, model, strategy) for strategy in COMPARED}
    return _comparison_of(root, model, results)


def _comparison_of(
    root: Path, model: str, results: Mapping[str, Result | None]
) -> Comparison | None:
    """The comparison that was made of these results, by strategy; None if there is none."""
    directory = Places(root).compared(model)
    if not (directory / Comparison.file_name).is_file():
        return None
    comparison = Comparison.read(directory)
    selective, full = (results.get(strategy) for strategy in COMPARED)
    return comparison if belongs(comparison, selective, full) else None
