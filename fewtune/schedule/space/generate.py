"""MetaSchedule's design spaces of a task, also where one of TVM's rules raises."""

from __future__ import annotations

from typing import Any

from fewtune.runtime.target import has_own_device
from fewtune.runtime.tvm import ms, tvm

# Only the order of draws depends on it; the spaces and their extents do not.
_SEED = 1


def generated(
    module: tvm.IRModule, target: tvm.target.Target, threads: int = 1
) -> tuple[Any, list[tvm.s_tir.Schedule]]:
    """Generate the design spaces of a task by MetaSchedule's rules.

    TVM moves the block after a product into the product's tiles, and raises if that block reads
    another one: a bias of a quantised layer that is computed and permuted in the kernel, and so was
    not inlined. For a CPU, the spaces are then generated with all blocks inlined.

    Parameters
    ----------
    module : IRModule
        With one kernel, named ``main``.
    target : Target
    threads : int
        Threads of the context, for the extraction of features.

    Returns
    -------
    context : TuneContext
        With the rules and postprocessors of these spaces.
    schedules : list of Schedule
        One for each space.

    Raises
    ------
    Exception
        Whatever TVM raises, if no space can be generated.
    """

    def context(generator: Any) -> Any:
        return ms.TuneContext(
            mod=module,
            target=target,
            space_generator=generator,
            search_strategy="replay-trace",
            task_name="main",
            rand_state=_SEED,
            num_threads=threads,
        )

    made = context("post-order-apply")
    try:
        return made, list(made.generate_design_space())
    except Exception:
        if has_own_device(target):
            raise
        rules = [_inlines_all(each) for each in made.space_generator.sch_rules]
        made = context(ms.space_generator.PostOrderApply(sch_rules=rules))
        return made, list(made.generate_design_space())


def _inlines_all(rule: Any) -> Any:
    """A CPU's rule for inlining without conditions on the order of axes; other rules as given."""
    if type(rule).__name__ != "AutoInline":
        return rule
    return ms.schedule_rule.AutoInline(
        into_producer=False,
        into_consumer=True,
        inline_const_tensor=True,
        disallow_if_then_else=True,
        require_injective=False,
        require_ordered=False,
        disallow_op=["tirx.exp"],
    )
