"""A small library with its note: its kernel runs on all threads, its outputs are of every kind."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from fewtune.deploy.note import Function, Note, Tensor, tail
from fewtune.runtime.executable import export_library, with_own_threads
from fewtune.runtime.target import architecture
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.util.files import file_sha256
from tests import tuned_tiny

ROWS, COLUMNS = 64, 40
TABLE = np.arange(20, dtype="float32").reshape(10, 2)


def module() -> tvm.IRModule:
    """What is doubled, rows of a table, an input as it is, a constant."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, COLUMNS), "float32"))
    ids = relax.Var("ids", relax.TensorType((3,), "int64"))
    with builder.function("main", [x, ids]):
        with builder.dataflow():
            table = relax.const(TABLE)
            twice = builder.emit_te(
                lambda x: te.compute(x.shape, lambda i, j: x[i, j] * 2, name="twice"), x
            )
            rows = builder.emit_te(
                lambda table, ids: te.compute((3, 2), lambda i, j: table[ids[i], j], name="rows"),
                table,
                ids,
            )
            given = builder.emit_output(relax.Tuple([twice, rows, x, table]))
        builder.emit_func_output(given)
    made = builder.get()
    for name, function in made.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc):
            schedule = tvm.s_tir.Schedule(function)
            block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
            schedule.parallel(schedule.get_loops(block)[0])
            made.update_func(name, schedule.mod["main"])
    return made


def note(**changes: object) -> Note:
    """The note of the library, or a changed one."""
    outputs = (
        Tensor("twice", "float32", (ROWS, COLUMNS)),
        Tensor("rows", "float32", (3, 2)),
        Tensor("same", "float32", (ROWS, COLUMNS)),
        Tensor("table", "float32", TABLE.shape),
    )
    inputs = (Tensor("x", "float32", (ROWS, COLUMNS)), Tensor("ids", "int64", (3,)))
    made = Note(
        sha256="",
        model="made",
        model_sha256="0" * 64,
        functions=(Function("main", "main", inputs, outputs),),
        limits={"ids": (-10, 9)},
        target=tuned_tiny.fingerprint().target,
        architecture=architecture(tuned_tiny.target()),
        extensions=(),
        threads=2,
        versions={"fewtune": "0", "tvm": tvm.__version__},
        verified={"allowances": 0.5},
    )
    return replace(made, **changes)


@cache
def bare() -> Path:
    """The library without a note."""
    path = tuned_tiny.scratch() / "bare.so"
    built = relax.build(module(), tuned_tiny.target())
    export_library(built, path, with_own_threads(2))
    return path


def own_threads() -> set[int]:
    """The ids of this process's threads that are a library's."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        # Others may end meanwhile.
        with suppress(OSError):
            if (task / "comm").read_text() == "fewtune\n":
                found.add(int(task.name))
    return found


def library(path: Path, **changes: object) -> Path:
    """The library with its note, or a changed one, at a path."""
    path.parent.mkdir(exist_ok=True)
    described = note(**{"sha256": file_sha256(bare()), **changes})
    path.write_bytes(bare().read_bytes() + tail(described))
    return path
