"""Libraries whose weights the C compiler links as bytes."""

import numpy as np

from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.tvm import relax
from fewtune.tvm_compat.packing import packed_as_bytes
from tests import tuned_tiny
from tests.made.libraries import COLUMNS, ROWS, TABLE, module


def test_weights_are_linked_without_llvm(tmp_path):
    folder = tmp_path / 'a "b" \\ ü'
    folder.mkdir()
    path = tmp_path / "made.so"

    def packed(built, is_system_lib, prefix, _folder):
        return packed_as_bytes(built, is_system_lib, prefix, str(folder))

    relax.build(module(), tuned_tiny.target()).export_library(str(path), fpack_imports=packed)
    x, ids = np.ones((ROWS, COLUMNS), "float32"), np.array([0, 9, 3])
    twice, rows, same, table = CompiledModel(path, tuned_tiny.target()).outputs([x, ids])
    assert np.array_equal(twice, 2 * x)
    assert np.array_equal(rows, TABLE[ids])
    assert np.array_equal(same, x)
    assert np.array_equal(table, TABLE)
