"""A result as an MLflow model: a library that any MLflow client can load and serve."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fewtune.artifacts import CompileReport, Fingerprint, ImportReport, TensorSpec
from fewtune.deploy.bundle import bundle
from fewtune.deploy.note import read_note
from fewtune.errors import InputError
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.pipelines.records import tuned_library
from fewtune.stages.paths import Places

# isort: split
import mlflow.pyfunc
import numpy as np
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, Schema
from mlflow.types import TensorSpec as SchemaTensor

# Largest file of an input example: it is text, and a server's page shows it.
_LARGEST_EXAMPLE = 1_000_000
_PACKAGES = ("numpy", "mlflow")


def save_model(
    root: Path,
    result: Result,
    fingerprint: Fingerprint,
    folder: Path,
    ids: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write a result to ``folder`` in MLflow's format, with signature and input example.

    Parameters
    ----------
    root : Path
        The checkout.
    result : Result
        With its library on disk.
    fingerprint : Fingerprint
        The machine that it was made for.
    folder : Path
        Is made.
    ids : mapping of str
        ``run_id`` and ``model_id`` of its record.

    Raises
    ------
    InputError
        If the library, or the description of its inputs, is not on disk.
    """
    places, versions = Places(root), fingerprint.versions
    compiled = places.compiled(result.model, result.strategy)
    library = compiled / CompileReport.read(compiled).library
    if not library.is_file():
        raise InputError(f"{library} is missing: `dvc checkout` brings it back")
    imported = ImportReport.read(places.imported(result.model))
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        if read_note(library).runs_here:
            bundle(library, data)
        else:
            data.mkdir()
            shutil.copy(library, data / tuned_library.LIBRARY)
        every = imported.all_functions()
        mlflow.pyfunc.save_model(
            path=str(folder),
            loader_module=tuned_library.__name__.split(".")[-1],
            data_path=str(data),
            code_paths=[str(Path(tuned_library.__file__))],
            signature=ModelSignature(
                _schema([each.inputs for each in every]), _schema([each.outputs for each in every])
            ),
            input_example=_example(imported.inputs),
            # Of the versions that it was built with.
            pip_requirements=[f"{it}=={versions.get(it) or version(it)}" for it in _PACKAGES],
            mlflow_model=Model(
                metadata={"fingerprint": fingerprint.identity(), "strategy": result.strategy},
                **ids,
            ),
        )


def _schema(shapes: list[list[TensorSpec]]) -> Schema:
    """The tensors of every shape: -1 along the axes that differ."""
    found: list[ColSpec | SchemaTensor] = []
    for same in zip(*shapes, strict=True):
        sizes = zip(*(tensor.shape for tensor in same), strict=True)
        shape = tuple(each[0] if len(set(each)) == 1 else -1 for each in sizes)
        found.append(SchemaTensor(np.dtype(same[0].dtype), shape, same[0].name or None))
    return Schema(found)


def _example(inputs: list[TensorSpec]) -> dict[str, np.ndarray] | None:
    """Zeros as inputs, since a zero index or length is valid; None if they would be too large."""
    if sum(int(np.prod(tensor.shape)) for tensor in inputs) > _LARGEST_EXAMPLE:
        return None
    return {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in inputs}
