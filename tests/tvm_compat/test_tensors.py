"""Tensors that share memory."""

import numpy as np

from fewtune.runtime.tvm import flat, tvm
from fewtune.tvm_compat.values import view_of


def test_a_view_shares_memory():
    tensor = tvm.runtime.tensor(np.arange(12, dtype="float32").reshape(3, 4))
    np.from_dlpack(flat(tensor))[5] = -1
    assert view_of(tensor, (2, 6)).numpy().tolist() == [[0, 1, 2, 3, 4, -1], [*range(6, 12)]]
    words = view_of(flat(tensor), (12,), "int32")
    assert words.numpy()[5] == np.float32(-1).view(np.int32)
