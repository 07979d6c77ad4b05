"""What a stock database comes to: applied as it is, the rest unscheduled, figures merged."""

import pytest
from tvm.s_tir import Schedule

from benchmarks.stock import stock_model
from fewtune.compile.compile import LIBRARY, verify
from fewtune.runtime.executable import CompiledModel
from fewtune.storage.database import RECORDS, best_trials, read_database, write_database
from fewtune.task.extract import kernels
from fewtune.trial.outcome import Outcome
from fewtune.trial.trial import Trial, trace_key
from tests import tuned_tiny


@pytest.mark.slow
def test_kernels_without_a_record_run_unscheduled_and_right(tmp_path):
    """A record of convolution ``b`` only, and one of ``a`` that failed, as stock writes them."""
    found = tuned_tiny.convolutions()
    record = best_trials(read_database(tuned_tiny.tuned()), found["b"].mod, 1)[0]
    trial = Trial.from_record(record)
    # Stock gives 1e10 s to a candidate that could not be built or run.
    failed = Trial.measured(trace_key(Schedule(found["a"].mod).trace), Outcome([1e10], None))
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
    found = verify(CompiledModel(tmp_path / LIBRARY, tuned_tiny.target()), tuned_tiny.imported())
    assert found.allowances <= 1
