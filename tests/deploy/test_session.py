"""A session computes what the library computes, and refuses what does not fit."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fewtune.deploy import runtime, session
from fewtune.deploy.session import InferenceSession, SessionOptions
from fewtune.errors import InputError, MachineError
from tests.made import libraries
from tests.made.libraries import own_threads

PROJECT = Path(__file__).parent.parent.parent
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(libraries.ROWS, libraries.COLUMNS)).astype("float32")
FEED = {"x": X, "ids": np.array([0, 9, 4])}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return libraries.library(tmp_path_factory.mktemp("session") / "model.so")


@pytest.fixture(scope="module")
def made(library):
    return InferenceSession(library, threads=2)


def test_it_computes_what_the_library_computes(made):
    twice, rows, same, table = made.run(None, FEED)
    np.testing.assert_array_equal(twice, 2 * X)
    np.testing.assert_array_equal(rows, libraries.TABLE[[0, 9, 4]])
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(table, libraries.TABLE)


def test_it_has_onnxruntimes_names(library):
    options = SessionOptions()
    options.intra_op_num_threads = 1
    made = InferenceSession(str(library), options, providers=["CPUExecutionProvider"])
    told = [(each.name, each.type, each.shape) for each in made.get_inputs()]
    shape = [libraries.ROWS, libraries.COLUMNS]
    assert told == [("x", "tensor(float)", shape), ("ids", "tensor(int64)", [3])]
    assert [each.name for each in made.get_outputs()] == ["twice", "rows", "same", "table"]
    assert made.get_providers() == ["CPUExecutionProvider"]
    rows, twice = made.run(["rows", "twice"], FEED)
    assert (rows.shape, twice.shape) == ((3, 2), X.shape)


def test_outputs_are_the_callers_own(made):
    first = made.run(None, FEED)
    kept = [each.copy() for each in first]
    for each in first:
        assert not np.shares_memory(each, X)
    first[3][:] = 7
    again = made.run(None, {"x": X + 1, "ids": np.array([1, 1, 1])})
    np.testing.assert_array_equal(again[3], libraries.TABLE)
    for before, now in zip(kept[:3], first[:3], strict=True):
        np.testing.assert_array_equal(before, now)


def test_memory_is_shared_where_that_is_asked_for(made):
    aligned = np.empty(X.size + 16, "float32")
    begin = (-aligned.ctypes.data % 64) // 4
    aligned = aligned[begin : begin + X.size].reshape(X.shape)
    aligned[:] = X
    twice, rows, same, _ = made.run_dlpack(None, {"x": aligned, "ids": FEED["ids"]})
    del made
    later = np.from_dlpack(twice)
    assert np.shares_memory(later, twice)
    np.testing.assert_array_equal(twice, 2 * X)
    np.testing.assert_array_equal(rows, libraries.TABLE[[0, 9, 4]])
    # Its memory is the input's, which may change.
    aligned[:] = 0
    np.testing.assert_array_equal(same, X)


def test_what_dlpack_knows_is_taken_and_written(made):
    class Other:
        """A tensor of another library."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    twice, rows = np.empty_like(X), np.empty((2, 3), "float32").T
    made.run_with({"twice": Other(twice), "rows": rows}, {"x": Other(X), "ids": FEED["ids"]})
    np.testing.assert_array_equal(twice, 2 * X)
    np.testing.assert_array_equal(rows, libraries.TABLE[[0, 9, 4]])


def test_arrays_that_lie_otherwise_are_taken(made):
    for x in (X[::-1], np.asfortranarray(X), X.repeat(2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(made.run(["twice"], {**FEED, "x": x})[0], 2 * x)
    locked = X.copy()
    locked.flags.writeable = False
    np.testing.assert_array_equal(made.run(["twice"], {**FEED, "x": locked})[0], 2 * X)


@pytest.mark.parametrize(
    ("names", "feed", "complaint"),
    [
        (None, {"x": X}, r"inputs \['x'\] were given, and the model takes \['ids', 'x'\]"),
        (["none"], FEED, "no output 'none': it has twice, rows, same, table"),
        (None, {**FEED, "x": X.astype("float64")}, r"takes float32, .* float64 .* astype"),
        (None, {**FEED, "x": X.astype(">f4")}, "takes float32, and an array of >f4"),
        (None, {**FEED, "ids": np.array([0, 1, 2], "int32")}, "takes int64"),
        (None, {**FEED, "x": X[:3]}, r"'x' has shape \(3, 40\), and .* \(64, 40\)"),
        (None, {**FEED, "ids": np.array([0, 1, 10])}, "values from 0 to 10: .* -10 to 9"),
        (None, {**FEED, "ids": np.array([0, -11, 1])}, "values from -11 to 1"),
        (None, {**FEED, "ids": [0, 1, 2.5]}, "takes an array of int64"),
        (None, {**FEED, "ids": ["a", "b", "c"]}, "takes an array of int64"),
    ],
)
def test_what_does_not_fit_is_refused(made, names, feed, complaint):
    with pytest.raises(InputError, match=complaint):
        made.run(names, feed)


def test_outputs_that_do_not_fit_are_refused(made):
    locked = np.empty_like(X)
    locked.flags.writeable = False
    for place in (X[:2], X.astype("float64"), locked):
        with pytest.raises(InputError, match="output 'twice'"):
            made.run_with({"twice": place}, FEED)
    with pytest.raises(InputError, match="no output 'none'"):
        made.run_with({"none": X}, FEED)


def test_lists_and_numbers_are_converted(made):
    (rows,) = made.run(["rows"], {"x": X.tolist(), "ids": [1, 2, -1]})
    np.testing.assert_array_equal(rows[:2], libraries.TABLE[[1, 2]])


def test_threads_are_chosen_at_load(library):
    usable = len(os.sched_getaffinity(0))
    with pytest.raises(MachineError, match=f"may use {usable} cores"):
        InferenceSession(library, threads=usable + 1)
    for threads in range(1, usable + 1):
        before = own_threads()
        alone = InferenceSession(library, threads=threads)
        np.testing.assert_array_equal(alone.run(["twice"], FEED)[0], 2 * X)
        assert len(own_threads() - before) == threads - 1


def test_a_library_for_more_threads_runs_on_those_there_are(tmp_path):
    library = libraries.library(tmp_path / "model.so", threads=512)
    np.testing.assert_array_equal(InferenceSession(library).run(["twice"], FEED)[0], 2 * X)


def test_another_tvm_and_a_missing_function_are_said(tmp_path):
    library = libraries.library(tmp_path / "model.so", versions={"tvm": "0.1"})
    with pytest.raises(InputError, match=r"made by TVM 0\.1, and this is 0\.27.*compile"):
        InferenceSession(library)
    function = libraries.note().functions[0]
    changed = session.Function("main", "absent", function.inputs, function.outputs)
    library = libraries.library(tmp_path / "other.so", functions=(changed,))
    with pytest.raises(InputError, match="no function 'absent'"):
        InferenceSession(library)


def test_what_tvm_cannot_load_is_said(tmp_path):
    path = tmp_path / "model.so"
    content = b"no library at all"
    told = libraries.note(sha256=hashlib.sha256(content).hexdigest())
    path.write_bytes(content + libraries.tail(told))
    with pytest.raises(InputError, match="TVM cannot load .*: compile it again"):
        InferenceSession(path)


def unlinked(path: Path) -> None:
    path.unlink()


def moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("old"))
    path.parent.mkdir()


@pytest.mark.parametrize("replace", [unlinked, moved])
def test_a_library_is_loaded_as_it_is_on_disk_now(tmp_path, replace):
    path = tmp_path / "compile" / "model.so"
    path.parent.mkdir()
    first = InferenceSession(libraries.library(path))
    first.run(None, FEED)
    replace(path)
    libraries.library(path, model="again")
    again = InferenceSession(path)
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split()[4] for line in maps if "model.so" in line}
    assert len(mapped) > 1
    np.testing.assert_array_equal(again.run(["twice"], FEED)[0], 2 * X)


def test_eight_threads_get_their_own_outputs(made):
    def many(number):
        x, ids = X + number, np.full(3, number)
        for _ in range(40):
            twice, rows, *_ = made.run(None, {"x": x, "ids": ids})
            if not ((twice == 2 * x).all() and (rows == libraries.TABLE[ids]).all()):
                return False
        return True

    made.run(None, FEED)
    before = own_threads()
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(many, range(8)))
    assert own_threads() == before


def test_a_signals_handler_is_told_that_a_call_is_going_on(made, monkeypatch):
    bound = next(iter(made._bound.values()))
    run = bound.run

    def interrupted(arrays):
        with pytest.raises(InputError, match="by a signal's handler .* a session of its own"):
            made.run(None, FEED)
        return run(arrays)

    monkeypatch.setattr(bound, "run", interrupted)
    np.testing.assert_array_equal(made.run(["twice"], FEED)[0], 2 * X)


def test_a_failure_of_tvm_is_a_sentence(made, monkeypatch):
    bound = next(iter(made._bound.values()))
    monkeypatch.setattr(bound._slots[0].fields, "ndim", 1)
    with pytest.raises(MachineError, match=r"model\.so failed while it ran: [^\n]+$"):
        made.run(None, FEED)


def _in_child(made):
    found = [made.run(["twice"], {**FEED, "x": X + n})[0] for n in range(3)]
    is_right = all((each == 2 * (X + n)).all() for n, each in enumerate(found))
    # At once: Prefect's services, which another test started in this process, fail at Python's end
    # in a child.
    os._exit(0 if is_right else 3)


def test_a_forked_child_runs_while_the_parents_threads_do(made):
    fork = multiprocessing.get_context("fork")
    made.run(None, FEED)
    going = threading.Event()

    def busy():
        while not going.is_set():
            made.run(None, FEED)

    other = threading.Thread(target=busy)
    other.start()
    try:
        for _ in range(3):
            child = fork.Process(target=_in_child, args=(made,))
            child.start()
            child.join(60)
            assert child.exitcode == 0
    finally:
        going.set()
        other.join()
    np.testing.assert_array_equal(made.run(["twice"], FEED)[0], 2 * X)


# Python that finds NumPy, the given modules and nothing else.
BARE = """
import os, sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p] + {places!r}
import numpy as np
import fewtune
{before}
made = fewtune.InferenceSession({library!r})
x = np.ones(({rows}, {columns}), "float32")
run = lambda: made.run(["twice"], dict(x=x, ids=np.zeros(3, "int64")))[0]
assert (run() == 2).all()
assert (fewtune.load({library!r})(x=x, ids=[0, 1, 2])["rows"].shape) == (3, 2)
{after}
assert (run() == 2).all()
child = os.fork()
if not child:
    assert (run() == 2).all()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(sorted({{m.split(".")[0] for m in sys.modules}} & {{"tvm", "tvm_ffi", "pydantic", "onnx"}}))
"""
TVM = "import tvm\nassert (tvm.runtime.tensor(np.ones(2, 'float32')).numpy() == 1).all()"


@pytest.mark.parametrize(
    ("before", "after", "loaded"),
    [("", "", "[]"), (TVM, "", "['tvm', 'tvm_ffi']"), ("", TVM, "['tvm', 'tvm_ffi']")],
    ids=["alone", "after TVM", "before TVM"],
)
def test_a_process_needs_numpy_and_tvms_runtime(library, tmp_path, before, after, loaded):
    site = Path(np.__file__).parent.parent
    places = [str(PROJECT), str(tmp_path)]
    if not (before or after):
        for name in ("numpy", "numpy.libs", "tvm", "tvm_ffi"):
            (tmp_path / name).symlink_to(site / name)
    else:
        places.append(str(site))
    code = BARE.format(
        places=places,
        before=before,
        after=after,
        library=str(library),
        rows=libraries.ROWS,
        columns=libraries.COLUMNS,
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == loaded, done.stderr


def test_without_tvms_runtime_a_sentence_says_so(monkeypatch):
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="TVM's runtime is not installed"):
        runtime.Runtime()
