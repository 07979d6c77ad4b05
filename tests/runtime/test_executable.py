"""What is done to a module before it is compiled."""

from fewtune.runtime.target import host_target
from fewtune.runtime.tvm import compiled, te, tvm


def plain() -> tvm.IRModule:
    rows = te.placeholder((64, 64), name="rows")
    doubled = te.compute((64, 64), lambda i, j: rows[i, j] * 2, name="doubled")
    return tvm.IRModule({"main": te.create_prim_func([rows, doubled])})


def test_kernels_are_compiled_with_their_target_at_hand(monkeypatch):
    # For CUDA, TVM asks the target at hand which architecture it compiles for.
    asked = []

    def build(_module: tvm.IRModule, target: tvm.target.Target, **_: object) -> None:
        asked.append((str(target), str(tvm.target.Target.current())))

    monkeypatch.setattr(tvm.driver, "build", build)
    compiled(plain(), host_target(1))
    assert asked == [(str(host_target(1)),) * 2]
