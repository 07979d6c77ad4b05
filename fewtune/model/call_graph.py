"""A model without its kernels and weights: which kernel is called where, on which memory.

What a kernel takes in a model depends on what ran before it: which core wrote its data, and what
of it the caches still hold. A skeleton runs with whatever kernels are put into its places, on the
memory that Relax plans for the model itself; it costs no compilation of kernels and no weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from fewtune.artifacts import CallSite, Skeleton, TensorSpec
from fewtune.runtime.executable import IS_SCHEDULED, build_executable
from fewtune.runtime.tvm import read_module, relax, tvm
from fewtune.task.extract import kernels


def site_function(place: int) -> str:
    """Name of the packed function that a skeleton calls at its call number ``place``."""
    return f"fewtune.call_site.{place}"


def make_skeleton(lowered: tvm.IRModule, inputs: Sequence[TensorSpec]) -> Skeleton:
    """Take a lowered model apart into its calls.

    Parameters
    ----------
    lowered : IRModule
        Output of `fewtune.model.import_model.lower`.
    inputs : sequence of TensorSpec
        The model's inputs.

    Returns
    -------
    skeleton : Skeleton
        Every kernel that is no plain reshape, and was not scheduled before, has become a call of a
        packed function, without those arguments that are constant floating-point numbers.
    """
    # Before the calls are replaced: a reshape is known by its kernel, and is not a call.
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
    """Compile a skeleton; a function must be registered for each of its sites before it runs."""
    return build_executable(read_module(skeleton.module), target)


@relax.expr_functor.mutator
class _Replacing(relax.PyExprMutator):
    """Turns calls of kernels into calls of packed functions, and notes them."""

    def __init__(self, module: tvm.IRModule, workloads: dict[str, str]) -> None:
        super().__init__(module)
        self._module = module
        self._workloads = workloads
        self.sites: list[CallSite] = []
        self.kept: list[tvm.ir.GlobalVar] = []

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace one call, unless its kernel is to stay."""
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
            if _is_constant_float(given)
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
        return relax.call_dps_packed(name, relax.Tuple(rest), call.ty_args[0])


def _is_constant_float(value: relax.Expr) -> bool:
    """Whether an argument is a weight, whose numbers are of no account to how long a call takes."""
    is_constant = isinstance(value, tvm.ir.expr.GenericConst)
    return is_constant and str(value.value.dtype) == "float32"
