"""A model's skeleton: its kernel calls and its memory, without kernels and weights.

The time of a kernel in a model depends on what ran before it: which core wrote its data, and how
much of the data is still in caches. A skeleton runs any kernels at its call sites, on the memory
that Relax plans for the model. It needs no compilation of kernels, and no weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from fewtune.artifacts import CallSite, Skeleton, TensorSpec
from fewtune.runtime.executable import IS_SCHEDULED, build_executable
from fewtune.runtime.tvm import read_module, relax, tvm
from fewtune.task.extract import kernels
from fewtune.tvm_compat.values import is_constant


def site_function(place: int) -> str:
    """The name of the packed function that a skeleton calls at site number ``place``."""
    return f"fewtune.call_site.{place}"


def make_skeleton(lowered: tvm.IRModule, inputs: Sequence[TensorSpec]) -> Skeleton:
    """Make the skeleton of a lowered model.

    Parameters
    ----------
    lowered : IRModule
        From `fewtune.model.lower.lower`.
    inputs : sequence of TensorSpec
        The model's inputs.

    Returns
    -------
    skeleton : Skeleton
        Calls of kernels have become calls of packed functions, without arguments that are constant
        float32 tensors. Reshapes and kernels that are already scheduled stay.
    """
    # These passes come first: they recognize reshapes by their kernels, and turn them into no call.
    prepared = tvm.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
        ]
    )(lowered)
    replacing = _Replacing(prepared, kernels(lowered))
    main = replacing.visit_expr(prepared["main"])
    module = tvm.IRModule({"main": main})
    for variable in replacing.kept:
        module[variable] = prepared[variable]
    return Skeleton(module=tvm.ir.save_json(module), sites=replacing.sites, inputs=list(inputs))


def build_skeleton(skeleton: Skeleton, target: tvm.target.Target) -> relax.VMExecutable:
    """Compile a skeleton.

    Before it runs, a packed function must be registered for each `site_function`.
    """
    return build_executable(read_module(skeleton.module), target)


@relax.expr_functor.mutator
class _Replacing(relax.PyExprMutator):
    """Replaces calls of kernels by calls of packed functions, and records them."""

    def __init__(self, module: tvm.IRModule, workloads: dict[str, str]) -> None:
        super().__init__(module)
        self._module = module
        self._workloads = workloads
        self.sites: list[CallSite] = []
        self.kept: list[tvm.ir.GlobalVar] = []

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace one call, unless its kernel stays."""
        if getattr(call.op, "name", None) != "relax.call_tir":
            return super().visit_call_(call)
        callee, arguments = call.args[0], list(call.args[1].fields)
        function = self._module[callee]
        if len(call.args) > 2 or (function.attrs and function.attrs.get(IS_SCHEDULED)):
            if callee not in self.kept:
                self.kept.append(callee)
            return super().visit_call_(call)
        constants = {
            place: [int(extent) for extent in given.value.shape]
            for place, given in enumerate(arguments)
            # Its values do not change the time of a call.
            if is_constant(given) and str(given.value.dtype) == "float32"
        }
        rest = [self.visit_expr(a) for place, a in enumerate(arguments) if place not in constants]
        self.sites.append(
            CallSite(
                workload=self._workloads[callee.name_hint],
                arguments=len(arguments),
                constants=constants,
            )
        )
        name = site_function(len(self.sites) - 1)
        given = call.ty_args[0]
        outputs = list(given.fields) if isinstance(given, tvm.ir.TupleType) else given
        return relax.call_dps_packed(name, relax.Tuple(rest), outputs)
