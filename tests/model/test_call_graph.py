"""A model's skeleton: with kernels and weights at its sites, it computes the model's outputs."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

from fewtune.artifacts import ImportReport, Skeleton
from fewtune.model.call_graph import build_skeleton, make_skeleton, site_function
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.tvm import build, relax, tvm
from fewtune.task.extract import kernels
from fewtune.verify.values import random_inputs, tensor_specs
from tests import tiny_models, tuned_tiny
from tests.made.compiled import compiled, lowered


def made() -> Skeleton:
    inputs = ImportReport.read(tuned_tiny.imported()).inputs
    return make_skeleton(tuned_tiny.lowered(), inputs)


def calls() -> list[tuple[str, list[relax.Expr]]]:
    """Kernel and arguments of the model's calls, in their order."""
    found = []
    for block in tuned_tiny.lowered()["main"].body.blocks:
        for binding in block.bindings:
            if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_tir":
                callee, arguments = binding.value.args[:2]
                found.append((callee.name_hint, list(arguments.fields)))
    return found


def test_it_holds_no_weights_and_is_the_same_each_time():
    skeleton = made()
    whole = tvm.ir.save_json(tuned_tiny.lowered())
    assert len(skeleton.module) < len(whole)
    assert "GenericConst" in whole
    assert "GenericConst" not in skeleton.module
    assert Skeleton.model_validate_json(skeleton.model_dump_json()) == skeleton
    assert made() == skeleton


def test_a_kernel_may_have_several_outputs():
    node = helper.make_node("Split", ["x"], ["y", "z"], axis=1)
    model = tiny_models.make_model([node], {"x": [2, 6]}, {"y": [2, 3], "z": [2, 3]}, opset=11)
    inputs, _ = tensor_specs(model)
    skeleton = make_skeleton(lowered(model, "NCHW"), inputs)
    assert [site.arguments for site in skeleton.sites] == [1]
    build_skeleton(skeleton, tuned_tiny.target())


@pytest.mark.slow
def test_with_kernels_and_weights_at_its_sites_it_computes_the_models_outputs():
    skeleton, lowered, target = made(), tuned_tiny.lowered(), tuned_tiny.target()
    given = iter(calls())
    for place, site in enumerate(skeleton.sites):
        name, arguments = next(given)
        while kernels(lowered)[name] != site.workload:
            name, arguments = next(given)
        module = tvm.IRModule({"main": lowered[name].with_attr("global_symbol", "main")})
        weights = {p: arguments[p].value for p in site.constants}
        tvm.register_global_func(
            site_function(place),
            _calling(build(module, target)["main"], site.arguments, weights),
            override=True,
        )
    inputs = random_inputs(skeleton.inputs, 3)
    ordered = [inputs[spec.name] for spec in skeleton.inputs]
    actual = CompiledModel(build_skeleton(skeleton, target), target).outputs(ordered)
    expected = compiled(lowered).outputs(ordered)
    assert np.ptp(expected[0]) > 0
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def _calling(function: Any, count: int, weights: dict[int, Any]) -> Any:
    def called(*given: Any) -> None:
        rest = iter(given)
        arguments = [weights[p] if p in weights else next(rest) for p in range(count)]
        function(*arguments, *rest)

    return called


@pytest.mark.parametrize("letter", ["a", "d"])
def test_a_kernel_that_is_scheduled_already_stays(letter):
    lowered = tuned_tiny.lowered()
    task = tuned_tiny.convolutions()[letter]
    module = tvm.IRModule(dict(lowered.functions_items()), attrs=lowered.attrs)
    variable = lowered.get_global_var(task.info.name)
    module.update_func(variable, lowered[variable].with_attr("tirx.is_scheduled", True))
    skeleton = make_skeleton(module, ImportReport.read(tuned_tiny.imported()).inputs)
    assert len(skeleton.sites) == len(made().sites) - 1
    kept = tvm.ir.load_json(skeleton.module)
    assert [v.name_hint for v in kept.get_global_vars()] == sorted(["main", task.info.name])
