"""What a stock database comes to: applied as it is, the rest unscheduled, figures merged."""

import json
from types import SimpleNamespace

import pytest
from tvm.s_tir import Schedule

from benchmarks.stock import stock_model
from fewtune.compile.compile import LIBRARY, verify
from fewtune.errors import InputError
from fewtune.storage.database import RECORDS, best_trials, read_database, write_database
from fewtune.task.extract import kernels
from fewtune.trial.outcome import Outcome
from fewtune.trial.trial import Trial
from tests import tuned_tiny
from tests.made import results as made_results
from tests.model.passes.test_winograd import convolution_model
from tests.model.test_import_model import imported

TUNED = {
    "elapsed_s": 500.0,
    "trials": 40,
    "failed": 0,
    "build_timeouts": 0,
    "tasks": 5,
    "trials_per_task": 8,
}


@pytest.mark.slow
def test_kernels_without_a_record_run_unscheduled_and_right(tmp_path):
    """A record of convolution ``b`` only, and one of ``a`` that failed, as stock writes them."""
    found = tuned_tiny.convolutions()
    record = best_trials(read_database(tuned_tiny.tuned()), found["b"].mod, 1)[0]
    trial = Trial.from_record(record)
    # Stock gives 1e10 s to a candidate that could not be built or run.
    failed = Trial.of(Schedule(found["a"].mod), Outcome([1e10], None))
    write_database(
        tmp_path,
        {letter: found[letter].mod for letter in "ab"},
        {"b": [trial], "a": [failed]},
        tuned_tiny.target(),
    )
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 2
    rest = stock_model.build_stock(
        tuned_tiny.lowered(),
        tuned_tiny.tasks(),
        tmp_path,
        tuned_tiny.target(),
        tmp_path / LIBRARY,
    )
    every = kernels(tuned_tiny.lowered())
    assert {every[name] for name in set(every) - set(rest)} == {found["b"].info.workload}
    found = verify(tmp_path / LIBRARY, tuned_tiny.imported(), tuned_tiny.target())
    assert found.allowances <= 1


@pytest.mark.slow
def test_stock_gets_the_import_without_transforms(tmp_path):
    assert kernels(
        stock_model.plain_lowered(tuned_tiny.imported(), tuned_tiny.target())
    ) == kernels(tuned_tiny.lowered())
    model = convolution_model((28, 28), channels=64, filters=64)
    assert imported(model, tmp_path).winograd == 1
    plain = stock_model.plain_lowered(tmp_path / "import", tuned_tiny.target())
    assert any("conv2d" in name for name in kernels(plain))
    assert not any("winograd" in name for name in kernels(plain))


def test_only_a_finished_run_of_the_same_tasks_is_measured_again(tmp_path):
    task = SimpleNamespace(info=SimpleNamespace(workload="abc"))
    other = SimpleNamespace(info=SimpleNamespace(workload="def"))
    fingerprint = made_results.fingerprint()
    with pytest.raises(InputError, match="no finished run"):
        stock_model.read_tuned([task], fingerprint, 8, tmp_path)
    tuned = {**TUNED, "workloads": ["abc"], "machine": fingerprint.identity()}
    (tmp_path / "result.json").write_text(json.dumps(tuned))
    assert stock_model.read_tuned([task], fingerprint, 8, tmp_path) == tuned
    with pytest.raises(InputError, match="other workloads"):
        stock_model.read_tuned([other], fingerprint, 8, tmp_path)
    with pytest.raises(InputError, match="other trials_per_task"):
        stock_model.read_tuned([task], fingerprint, 16, tmp_path)
    with pytest.raises(InputError, match="other machine"):
        stock_model.read_tuned([task], made_results.fingerprint("Other CPU"), 8, tmp_path)
