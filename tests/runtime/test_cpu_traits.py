"""What is known of a CPU's vectors and registers, held to the code that LLVM emits."""

import re

import pytest

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.target import architecture, resolve_target
from fewtune.runtime.tvm import compiled, tvm
from fewtune.schedule.defaults import default_schedule
from tests.made.products import convolution, matrix_product

pytestmark = pytest.mark.slow

NEON = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 4}
# A vector's multiply-add, and one that is stored on the stack or loaded from there.
_ADD = re.compile(r"\bfmla\s+v\d+\.4s")
_SPILL = re.compile(r"\b(?:str|ldr|stp|ldp|stur|ldur)\s+q\d.*\[sp")


def innermost_loops(assembly: str) -> list[list[str]]:
    """The lines from each label to the first branch back to it, where no other label is between."""
    lines, loops = assembly.splitlines(), []
    begins: tuple[str, int] | None = None
    for place, line in enumerate(lines):
        label = re.match(r"(\.L\w+):", line)
        branch = re.search(r"\b(?:b|b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+,.*,)\s*(\.L\w+)\s*$", line)
        if label:
            begins = label[1], place
        elif branch and begins is not None and branch[1] == begins[0]:
            loops.append(lines[begins[1] : place])
    return loops


def test_neon_has_four_lanes_and_room_for_operands_beside_the_accumulators():
    traits = CpuTraits.of(resolve_target(tvm_json(NEON), 4, elsewhere=True))
    assert (traits.lanes("float32"), traits.threads) == (4, 4)
    assert traits.registers < 32
    assert traits.registers + traits.operands < 32


def tvm_json(config: dict) -> str:
    return str(tvm.target.Target(config))


@pytest.mark.parametrize("mcpu", ["neoverse-n1", "generic"])
@pytest.mark.parametrize(
    "module",
    [
        matrix_product(196, 256, 256),
        matrix_product(64, 1000, 512),
        convolution(16, 64, 96, tail="none", pad=False),
    ],
    ids=["product", "classifier", "convolution"],
)
def test_default_schedules_fill_neon_and_keep_sums_in_registers(module, mcpu):
    target = resolve_target(tvm_json({**NEON, "mcpu": mcpu}), 4, elsewhere=True)
    schedule = default_schedule(module, target)
    assert schedule is not None
    assembly = compiled(schedule.mod, target=target).inspect_source("s")
    loops = [loop for loop in innermost_loops(assembly) if any(map(_ADD.search, loop))]
    assert loops, "nothing is summed up in vectors"
    for loop in loops:
        assert sum(bool(_ADD.search(line)) for line in loop) >= 8
        assert not [line for line in loop if _SPILL.search(line)]


def test_a_triple_tells_the_architecture():
    assert architecture(tvm.target.Target(NEON)) == "aarch64"
    intel = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    assert architecture(intel) == "x86_64"
