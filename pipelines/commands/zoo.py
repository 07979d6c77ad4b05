"""The zoo as a table, and its models as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fewtune.errors import MachineError
from fewtune.onnx_graph.external_data import save
from fewtune.util.table import Table, number
from fewtune.zoo.quantise import SUFFIX, quantise
from fewtune.zoo.registry import ZOO, verify
from fewtune.zoo.seeded import SeededOrigin, seeded_model

_HEADINGS = (
    "name",
    "input",
    "parameters M",
    "expected M",
    "multiply-adds G",
    "expected G",
    "source",
)


def zoo_table() -> Table:
    """Every model with the counts of its graph, the published counts, and their source.

    Raises
    ------
    VerificationError
        If the two disagree.
    """
    rows = []
    for name, entry in ZOO.items():
        found = verify(name)
        shape = next(iter(found.inputs.values()))
        times = f"{len(found.inputs)} of " if len(found.inputs) > 1 else ""
        rows.append(
            (
                name,
                times + "x".join(map(str, shape)),
                f"{found.parameters / 1e6:.3f}",
                f"{entry.parameters / 1e6:.3f}",
                number(found.multiply_adds / 1e9),
                number(entry.expected_multiply_adds / 1e9),
                entry.source,
            )
        )
    return Table(_HEADINGS, rows, left=frozenset({0, 1, len(_HEADINGS) - 1}))


def write_models(
    names: Sequence[str], seed: int, directory: Path, quantised: bool = False
) -> Iterator[Path]:
    """Write models of the zoo as ``.onnx`` files.

    Parameters
    ----------
    names : sequence of str
    seed : int
    directory : Path
    quantised : bool
        In eight bits (`fewtune.zoo.quantise`), as ``NAME-int8.onnx``.

    Yields
    ------
    path : Path
        Each file written.

    Raises
    ------
    MachineError
        If one cannot be written.
    """
    for name in names:
        path = directory / f"{name}{SUFFIX if quantised else ''}.onnx"
        model = seeded_model(SeededOrigin("zoo", name), seed)
        try:
            save(quantise(model, seed) if quantised else model, path)
        except OSError as error:
            raise MachineError(f"{path} could not be written: {error}") from None
        yield path
