"""Banks written by hand: workloads with a design space and nothing to give."""

from fewtune.artifacts import TaskInfo
from fewtune.bank.bank import Bank, BankEntry
from fewtune.schedule.tiling import divisors
from fewtune.similarity.similarity import DesignSpace, Sampling, SpaceTrace

# Traces of differing numbers of instructions may share a form; nothing is similar in them then.
FORM = ("tiled",)


def tiles(*extents: int, choice: tuple[int, ...] = ()) -> DesignSpace:
    """One trace that splits loops of these extents, and chooses among some numbers."""
    samplings = [Sampling("tile", tuple(divisors(extent))) for extent in extents]
    chosen = [Sampling("category", choice)] if choice else []
    return DesignSpace((SpaceTrace(FORM, (*samplings, *chosen)),))


def entry(
    workload: str, space: DesignSpace, operator: str = "conv2d", flops: float = 1.0
) -> BankEntry:
    """A workload of the log ``donor``."""
    return BankEntry(
        workload=workload,
        origins=["donor"],
        operator=operator,
        flops=flops,
        shapes=[[1]],
        fastest_ms=1.0,
        space=space,
        donations=[],
        latencies_ms=[],
    )


def made_bank(*entries: BankEntry) -> Bank:
    """A bank of these workloads."""
    return Bank(sources=[], entries=list(entries))


def task_info(
    name: str, *, workload: str, operator: str = "conv2d", flops: float = 1.0, share: float = 1.0
) -> TaskInfo:
    """What is known of a task, by hand."""
    return TaskInfo(
        name=name, workload=workload, weight=1, anchor=operator, operator=operator,
        shapes=[[1]], dtype="float32", flops=flops, bytes=4, share=share,
    )  # fmt: skip
