"""Models by name: files, models of the zoo, and those of ``wild.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.wild import fetch, read_list
from benchmarks.zoo.registry import written
from fewtune.pipelines.arguments import parser
from fewtune.pipelines.commands.given import given_inputs


def model_of(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A model's file, which is made or downloaded, and what is given of its inputs.

    Parameters
    ----------
    name : str
        Path of an ``.onnx`` file, a name of ``wild.toml``, or a name of the zoo (``NAME-int8``: in
        eight bits).
    folder : Path
        Where files are made.
    """
    wild = read_list()
    if name in wild:
        file, words = fetch(name, wild[name], folder), wild[name].add
    else:
        file, words = Path(name) if name.endswith(".onnx") else written(name, folder), []
    return file.resolve(), given_inputs(parser().parse_args(["add", str(file), *words]))
