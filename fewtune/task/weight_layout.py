"""Weights in the layout that their kernel's schedule reads them in.

A weight is constant, so its layout is the compiler's to choose: MetaSchedule's ``RewriteLayout``
permutes it to the order of the schedule's loops, and each register tile then streams through
memory instead of stepping over it. `mark` says which arguments are free; `fold` permutes the
constants once, while the model is compiled.
"""

from __future__ import annotations

from fewtune.runtime.tvm import relax, tvm
from fewtune.task.calls import call_counts, kernel_calls

FREE = "layout_free_buffers"
_ORDERED_AXES = 2
# What TVM's pass appends to the name of a kernel whose weights it permutes outside of it.
PREPACKED = "_prepacked"


def mark(lowered: tvm.IRModule) -> tvm.IRModule:
    """Mark the arguments of kernels that are weights wherever the kernel is called.

    TVM's own pass (``AttachAttrLayoutFreeBuffers``) marks every constant. Here only those of two
    axes or more: of a bias there is but one order.

    Parameters
    ----------
    lowered : IRModule
        Fused kernels; ``main`` calls them with constants.

    Returns
    -------
    marked : IRModule
        Kernels carry ``layout_free_buffers``, the numbers of those arguments.
    """
    free: dict[str, set[int]] = {}
    for name, arguments in kernel_calls(lowered):
        constant = {place for place, given in enumerate(arguments) if _is_weight(given)}
        free[name] = free.get(name, constant) & constant
    marked = tvm.IRModule(dict(lowered.functions_items()), attrs=lowered.attrs)
    for name, places in free.items():
        function = lowered[name]
        if places and isinstance(function, tvm.tirx.PrimFunc):
            marked.update_func(
                lowered.get_global_var(name), function.with_attr(FREE, sorted(places))
            )
    return marked


def fold(scheduled: tvm.IRModule) -> tvm.IRModule:
    """Permute the weights of a scheduled model and leave the kernels without the permuting.

    Parameters
    ----------
    scheduled : IRModule
        Some of its kernels begin with the block that ``RewriteLayout`` puts there.

    Returns
    -------
    folded : IRModule
        The same model; its constants lie as its kernels read them.
    """
    passes = [
        relax.transform.SplitLayoutRewritePreproc(),
        relax.transform.FoldConstant(),
    ]
    folded = tvm.transform.Sequential(passes)(scheduled)
    # What permuted the weights, and kernels as they were before it, stay behind uncalled.
    needed = {"main", *call_counts(folded)}
    # Splitting a kernel loses the mark, which says what may be prefetched.
    marks = {
        variable.name_hint + PREPACKED: function.attrs[FREE]
        for variable, function in scheduled.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) and FREE in (function.attrs or {})
    }
    functions = {}
    for variable, function in folded.functions_items():
        name = variable.name_hint
        if name in needed:
            functions[variable] = (
                function.with_attr(FREE, marks[name]) if name in marks else function
            )
    return tvm.IRModule(functions, attrs=folded.attrs)


def _is_weight(value: relax.Expr) -> bool:
    if not isinstance(value, tvm.ir.expr.GenericConst):
        return False
    return sum(extent > 1 for extent in value.value.shape) >= _ORDERED_AXES
