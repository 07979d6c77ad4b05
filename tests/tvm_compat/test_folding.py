"""Constants are folded as by optimized code, and what else is built stays optimized."""

from contextlib import nullcontext
from typing import Any

from fewtune.model import lower as lowering
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.tvm import relax, tvm
from fewtune.tvm_compat import folding
from fewtune.tvm_compat.folding import unoptimized_folding
from tests.tiny_models import tiny_convolutional_model
from tests.tuned_tiny import target


def test_folded_constants_are_the_same_to_the_byte(monkeypatch):
    model = simplify(bind_shapes(tiny_convolutional_model(), {}, {}))
    quick = lowering.lower(model, target(), "NHWC")
    monkeypatch.setattr(folding, "unoptimized_folding", nullcontext)
    assert tvm.ir.save_json(quick) == tvm.ir.save_json(lowering.lower(model, target(), "NHWC"))


def test_kernels_that_fold_constants_are_not_optimized(monkeypatch):
    seen = []
    build = tvm.get_global_func("tirx.build")

    def recorded(module: tvm.IRModule, target: tvm.target.Target) -> Any:
        seen.append(str(target))
        return build(module, target)

    monkeypatch.setattr(tvm, "get_global_func", lambda _: recorded)
    function = relax.BlockBuilder()
    with function.function("main", []):
        added = relax.op.add(relax.const(1.0), relax.const(2.0))
        function.emit_func_output(function.emit(added))
    with unoptimized_folding():
        relax.transform.FoldConstant()(relax.transform.LegalizeOps()(function.get()))
    assert seen
    assert [each for each in seen if '"opt-level":0' not in each] == []


def test_only_calls_of_constants_are_legalized_to_be_folded(monkeypatch):
    seen = []
    monkeypatch.setattr(folding, "legalizers", lambda: {"relax.add": recorded})
    usual = tvm.ir.Op.get("relax.add").get_attr("FLegalize")

    def recorded(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        seen.append(call)
        return usual(builder, call)

    given = relax.Var("given", relax.TensorType([2], "float32"))
    function = relax.BlockBuilder()
    with function.function("main", [given]):
        with function.dataflow():
            known = function.emit(relax.op.add(relax.const(1.0), relax.const(2.0)))
            output = function.emit_output(relax.op.add(given, known))
        function.emit_func_output(output)
    folding.fold(function.get())
    tvm.ir.Op.get("relax.add").reset_attr("FLegalize")
    tvm.ir.Op.get("relax.add").set_attr("FLegalize", usual)
    assert len(seen) == 1
