"""The process that the tests run in, as the project's own processes are; their files, and order."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from fewtune.machine.device_lock import LOCK_FOLDER
from fewtune.predictor import LEARNT_FOLDER
from fewtune.process import warm
from fewtune.process.child_python import CHILD_PYTHON
from fewtune.process.contexts import without_gc

# Before NumPy is loaded. Tuning runs with this too (fewtune.tuning.job): products of
# small matrices take fifty times as long where OpenBLAS's threads wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before TVM is loaded. Its threads spin for a tenth of a second after each call of a kernel, on
# cores that other tests want; a deployed model is faster that way, and the tests take a third more.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
# What one test tunes must not change what another one predicts.
os.environ[LEARNT_FOLDER] = ""
# A shell that starts the tests in the background has them, and all that they start, ignore
# interrupts: those that send some would wait until they give up.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SLOW_FILE = "\npytestmark = pytest.mark.slow\n"
# What takes longest, first: of two processes, none is left with a long one.
_LONGEST = ("test_maltreated.py", "test_own_repository.py", "test_api.py", "test_flow.py")
# Folders and files whose tests have work done in processes of their own.
_WARM = {
    *("bank", "benchmark", "benchmarks", "commands", "compile", "measure", "model", "model_check"),
    *("prediction", "predictor", "sharing", "storage", "tuning", "workers"),
    *("test_api.py", "test_cli.py", "test_worker.py"),
}


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled kernels in a folder of this run, which its processes share."""
    if not hasattr(config, "workerinput"):
        # Matplotlib's own cache, of fonts, takes seconds to make.
        os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
        cache = tempfile.TemporaryDirectory(prefix="fewtune-cache-")
        os.environ["XDG_CACHE_HOME"] = cache.name
        config.add_cleanup(cache.cleanup)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files of slow tests alone unread in `make test-fast`: they import Prefect and Dask."""
    is_fast = config.option.markexpr == "not slow" and collection_path.suffix == ".py"
    return True if is_fast and _SLOW_FILE in collection_path.read_text() else None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import all tests, and what they import, without scans for garbage: there is none."""
    with without_gc(for_good=True):
        return (yield)


@pytest.fixture(scope="session")
def _warm_python():
    """The program that has one warm process fork what it starts."""
    from fewtune.api import APART

    with warm._started(APART, Path(__file__).parents[1]):
        yield os.environ.pop(CHILD_PYTHON)


@pytest.fixture(scope="module", autouse=True)
def _warm(request):
    """Fork what these tests start, as a run does: loading TVM takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        if {request.path.name, request.path.parent.name} & _WARM:
            patch.setenv(CHILD_PYTHON, request.getfixturevalue("_warm_python"))
        yield


@pytest.fixture
def cold(monkeypatch):
    """Start Python, and all that processes need, anew."""
    monkeypatch.delenv(CHILD_PYTHON, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _own_device(tmp_path_factory):
    """A device lock for each process: no test judges a duration, so none waits to measure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOCK_FOLDER, str(tmp_path_factory.mktemp("locks")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, then those with slow tests.

    `make test` keeps this order (``--no-loadscope-reorder``). Otherwise the files with the fewest
    tests come last, and these are the longest.
    """
    places = {name: place for place, name in enumerate(_LONGEST)}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (places.get(item.path.name, len(places)), item.path not in slow))
