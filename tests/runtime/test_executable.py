"""What is done to a module before it is compiled."""

import json

from fewtune.compile.device_code import gpu_target
from fewtune.runtime.executable import runnable
from fewtune.runtime.target import host_target
from fewtune.runtime.tvm import compiled, te, tvm


def plain() -> tvm.IRModule:
    rows = te.placeholder((64, 64), name="rows")
    doubled = te.compute((64, 64), lambda i, j: rows[i, j] * 2, name="doubled")
    return tvm.IRModule({"main": te.create_prim_func([rows, doubled])})


def test_on_a_gpu_each_kernel_gets_a_schedule_if_only_by_rule():
    module, gpu = plain(), tvm.target.Target(json.loads(gpu_target("sm_90")))
    assert (runnable(module, gpu)["main"].attrs or {}).get("tirx.is_scheduled")
    assert runnable(module, host_target(1)) is module


def test_kernels_are_compiled_with_their_target_at_hand(monkeypatch):
    # For CUDA, TVM asks the target at hand which architecture it compiles for.
    asked = []

    def build(_module: tvm.IRModule, target: tvm.target.Target, **_: object) -> None:
        asked.append((str(target), str(tvm.target.Target.current())))

    monkeypatch.setattr(tvm.driver, "build", build)
    compiled(plain(), host_target(1))
    assert asked == [(str(host_target(1)),) * 2]
