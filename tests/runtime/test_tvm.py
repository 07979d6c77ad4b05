"""Modules read as TVM wrote them, by this version or another."""

import json

import pytest

from fewtune.runtime.tvm import read_module, te, tvm


def written() -> str:
    rows = te.placeholder((4, 8), name="rows")
    total = te.compute((4, 8), lambda i, j: rows[i, j] + 1.0, name="total")
    return tvm.ir.save_json(tvm.IRModule({"main": te.create_prim_func([rows, total])}))


@pytest.mark.parametrize("version", [tvm.__version__, "0.26.0"])
def test_a_module_is_read_as_tvm_reads_it(version):
    graph = json.loads(written())
    assert graph["metadata"] == {"tvm_version": tvm.__version__}
    graph["metadata"]["tvm_version"] = version
    text = json.dumps(graph)
    tvm.ir.assert_structural_equal(read_module(text), tvm.ir.load_json(text))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"metadata": []}', written()[:-20]])
def test_what_is_no_module_is_refused(text):
    with pytest.raises((ValueError, TypeError, KeyError, RuntimeError)):
        read_module(text)
