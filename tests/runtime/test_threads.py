"""A library's own threads: how many there are, who may call, forks, waits at each step."""

import os

import numpy as np
import pytest
from tvm.script import tirx as T  # noqa: N812

from fewtune.model.converters.recurrent import Recurrence, kernel
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import export_library, load_library, with_own_threads
from fewtune.runtime.tvm import compiled, tvm
from tests.made.libraries import own_threads
from tests.made.recurrent import TARGET

GRU = Recurrence("GRU", 30, 1, 1, 216)
ROWS = 64


@T.prim_func(s_tir=True)
def doubled(given: T.Buffer((64, 512), "float32"), result: T.Buffer((64, 512), "float32")):
    for row in T.parallel(64):
        for i in T.serial(512):
            with T.sblock("doubled"):
                r, c = T.axis.remap("SS", [row, i])
                result[r, c] = given[r, c] * T.float32(2)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("threads") / "model.so"
    functions = {"doubled": doubled, "steps": kernel(GRU, CpuTraits.of(TARGET))}
    named = {name: each.with_attr("global_symbol", name) for name, each in functions.items()}
    export_library(compiled(tvm.IRModule(named), TARGET), path, with_own_threads(2))
    return path


@pytest.fixture
def loaded(library):
    found = load_library(library)
    found["fewtune_set_threads"](2)
    yield found
    found["fewtune_set_threads"](1)


def doubles(loaded, number=1.0):
    given = tvm.runtime.tensor(np.full((ROWS, 512), number, "float32"))
    result = tvm.runtime.tensor(np.zeros((ROWS, 512), "float32"))
    loaded["doubled"](given, result)
    return bool((result.numpy() == 2 * number).all())


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_library_has_as_many_threads_as_asked_for_and_binds_none(loaded, threads):
    loaded["fewtune_set_threads"](1)
    others = own_threads()
    loaded["fewtune_set_threads"](threads)
    assert doubles(loaded)
    own = own_threads() - others
    assert len(own) == threads - 1
    assert {frozenset(os.sched_getaffinity(each)) for each in own} <= {
        frozenset(os.sched_getaffinity(0))
    }


def test_threads_that_wait_for_each_other_give_what_one_gives(loaded):
    gates = 3 * GRU.hidden
    lanes = CpuTraits.of(TARGET).lanes("float32")
    shapes = [
        (GRU.steps, gates), (1, GRU.hidden // lanes, gates, lanes), (1, GRU.hidden),
        (1, 1, GRU.hidden), (1, 1, GRU.hidden), (1, 1, GRU.hidden), (GRU.steps, 1, 1, GRU.hidden),
    ]  # fmt: skip
    draw = np.random.default_rng(0)
    tensors = [
        tvm.runtime.tensor(0.1 * draw.standard_normal(shape, dtype="float32")) for shape in shapes
    ]

    def states():
        loaded["steps"](*tensors)
        return tensors[-1].numpy()

    loaded["fewtune_set_threads"](1)
    alone = states()
    for threads in (2, 3):
        loaded["fewtune_set_threads"](threads)
        for _ in range(20):
            np.testing.assert_array_equal(states(), alone)
