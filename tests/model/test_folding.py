"""Constants are folded as by optimised code, and what else is built stays optimised."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from fewtune.model import lower as lowering
from fewtune.model.folding import unoptimised_folding
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.tvm import tvm
from tests.tiny_models import tiny_convolutional_model
from tests.tuned_tiny import target


def test_folded_constants_are_the_same_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    model = simplify(bind_shapes(tiny_convolutional_model(), {}, {}))
    quick = lowering.lower(model, target(), "NHWC")
    monkeypatch.setattr(lowering, "unoptimised_folding", nullcontext)
    assert tvm.ir.save_json(quick) == tvm.ir.save_json(lowering.lower(model, target(), "NHWC"))


def test_after_a_fault_too_tvm_builds_as_before() -> None:
    build = tvm.get_global_func("tirx.build")
    with pytest.raises(ZeroDivisionError), unoptimised_folding():
        assert not tvm.get_global_func("tirx.build").same_as(build)
        raise ZeroDivisionError
    assert tvm.get_global_func("tirx.build").same_as(build)
