"""The results that are on disk, read through their artifacts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fewtune.artifacts import BenchmarkReport, Comparison, Metrics
from fewtune.errors import InputError
from fewtune.report.tables import Result, belongs
from fewtune.stages.params import COMPARED, LISTS, read_yaml
from fewtune.stages.paths import Places


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
        for key in LISTS[:2]
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
        results, comparison = {}, None
        for strategy in strategies:
            with _or_left_out(complain, f"{model} {strategy}", f"{model} --strategy {strategy}"):
                results[strategy] = read_result(root, model, strategy)
        with _or_left_out(complain, f"the comparison of {model}", f"{model} --all"):
            comparison = comparison_of(root, model, results)
        for strategy, result in results.items():
            if result is not None:
                own = comparison if strategy == COMPARED[0] else None
                found.append(replace(result, comparison=own))
    return found


@contextlib.contextmanager
def _or_left_out(complain: Callable[[str], None], what: str, arguments: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        complain(f"{what} is left out: {error}: `fewtune run {arguments} --force`")


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


def comparison_of(
    root: Path, model: str, results: Mapping[str, Result | None]
) -> Comparison | None:
    """The comparison that was made of these results, by strategy; None if there is none."""
    directory = Places(root).compared(model)
    if not (directory / Comparison.file_name).is_file():
        return None
    comparison = Comparison.read(directory)
    selective, full = (results.get(strategy) for strategy in COMPARED)
    return comparison if belongs(comparison, selective, full) else None
