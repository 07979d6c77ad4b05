"""Latest results beside those before them, from a SQLite MLflow, and the page of the fleet."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from fewtune.artifacts import BenchmarkReport
from fewtune.errors import RegressionError
from fewtune.pipelines.cli import main
from fewtune.pipelines.records.compare import runs_named, said_of
from fewtune.pipelines.records.tracking import Store
from fewtune.pipelines.records.watch import raise_if_slower, watch, watch_table
from fewtune.report.change import Latency, changed
from tests.made import results as made
from tests.made.checkout import FULL, MODEL, SELECTIVE, Checkout

# MLflow takes seconds to load.
pytestmark = pytest.mark.slow


def rewrite(checkout: Checkout, change: Callable[[dict], None]) -> None:
    """Change the selective benchmark on disk as if it had been measured so."""
    directory = checkout.places.benchmarked(MODEL, "selective")
    content = BenchmarkReport.read(directory).model_dump()
    change(content)
    BenchmarkReport.model_validate(content).write(directory)
    checkout.lock()


def slower(kernel_ms: float, **versions: str) -> Callable[[dict], None]:
    def change(content: dict) -> None:
        content["kernels"][1]["latency_ms"] = kernel_ms
        content["conditions"]["fingerprint"]["versions"].update(versions)
        content["conditions"]["date"] = "2026-11-22T06:30Z"

    return change


def test_a_slower_result_names_kernel_version_and_stage(checkout):
    checkout.measured(SELECTIVE)
    checkout.write(SELECTIVE, latency_ms=75.0)
    rewrite(checkout, slower(2.5, numpy="9.9"))
    checkout.record(SELECTIVE)
    checkout.measured(FULL)
    full, selective = watch(checkout.root)
    assert not full.line()
    with pytest.raises(RegressionError) as raised:
        raise_if_slower([full, selective])
    assert str(raised.value) == (
        "net-selective is 50.0 % slower (50.0 to 75.0 ms, noise 14.1 %); "
        "changed: numpy none to 9.9; slower: conv2d_1 1.25 to 2.50 ms"
    )


def steady(content: dict) -> None:
    """A result whose own rounds hardly differ."""
    tuned = content["variants"]["tuned"]
    tuned["p10_ms"], tuned["p90_ms"] = 0.995 * tuned["median_ms"], 1.005 * tuned["median_ms"]


def record_steady(checkout: Checkout, latency_ms: float, **versions: str) -> None:
    checkout.write(SELECTIVE, latency_ms=latency_ms)
    rewrite(checkout, steady)
    rewrite(checkout, slower(1.25, **versions))
    checkout.record(SELECTIVE)


def test_runs_that_lie_apart_are_noise_though_each_is_steady(checkout):
    for latency_ms in (50.0, 53.0, 49.5):
        record_steady(checkout, latency_ms)
    record_steady(checkout, 53.5)
    (found,) = watch(checkout.root)
    assert found.change is not None
    assert found.change.between == pytest.approx(0.085, abs=0.01)
    assert found.change.verdict == "same"
    record_steady(checkout, 80.0)
    (found,) = watch(checkout.root)
    assert "4 earlier runs apart by 9.2 %" in found.line()


def test_a_disturbed_result_is_no_regression_and_nothing_to_compare_with(checkout):
    checkout.write(SELECTIVE)
    checkout.record(SELECTIVE)
    busy = "other processes and the host took 1.9 of 2 cores in 30 of 30 rounds"
    checkout.write(SELECTIVE, latency_ms=90.0)
    rewrite(checkout, lambda content: content.update(disturbed=busy))
    assert "disturbed: it becomes no champion" in checkout.record(SELECTIVE)
    (line,) = said_of(runs_named(checkout.root, [MODEL]))
    assert line.endswith(busy)
    (found,) = watch(checkout.root)
    assert found.change is None
    assert watch_table([found]).rows[0][6] == "disturbed"
    raise_if_slower([found])
    checkout.write(SELECTIVE, latency_ms=52.0)
    checkout.record(SELECTIVE)
    (found,) = watch(checkout.root)
    assert found.change.ratio == pytest.approx(1.04)


def test_results_of_other_machines_are_not_compared(checkout):
    checkout.measured(SELECTIVE)
    checkout.measured(SELECTIVE, latency_ms=90.0, device="Other CPU")
    found = watch(checkout.root, fleet=True)
    assert [each.change for each in found] == [None, None]
    named = [row[7] for row in watch_table(found).rows]
    assert sorted(named) == ["Other CPU, 2 threads", "Test CPU, 2 threads"]
    made.fingerprint().write(checkout.places.fingerprint)
    (mine,) = watch(checkout.root)
    assert mine.machine == "Test CPU, 2 threads"


def test_the_command_ends_with_six_and_writes_the_page(checkout, monkeypatch, capsys):
    monkeypatch.chdir(checkout.root)
    (checkout.root / "dvc.yaml").write_text("stages: {}  # fewtune.stages\n")
    checkout.measured(SELECTIVE)
    assert main(["watch", "--page", "page"]) == 0
    checkout.measured(SELECTIVE, latency_ms=75.0)
    capsys.readouterr()
    assert main(["watch", MODEL, "--page", "page"]) == 6
    said = capsys.readouterr()
    assert "SLOWER" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    assert main(["watch", "--json", "--page", "page"]) == 6
    (told,) = json.loads(capsys.readouterr().out)
    ids = [run.info.run_id for run in Store(checkout.root).results()]
    assert main(["compare", *ids, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["figures"]["latency_ms"] for run in runs] == [75.0, 50.0]
    assert (told["verdict"], told["before_latency_ms"], told["change_pct"]) == (
        "SLOWER",
        50.0,
        50.0,
    )
    assert said.err.startswith("fewtune: net-selective is 50.0 % slower")
    page = (checkout.root / "page" / "fleet.md").read_text()
    assert "net-selective is 50.0 % slower" in page
    assert "| Test CPU, 2 threads |" in page
    assert (checkout.root / "page" / "fleet.png").is_file()


@pytest.mark.parametrize(
    ("now_ms", "reference_ms", "verdict"),
    [(56.0, 45.0, "same"), (75.0, 45.0, "slower"), (75.0, 67.5, "machine"), (25.0, None, "faster")],
)
def test_noise_and_a_slower_machine_are_no_regression(now_ms, reference_ms, verdict):
    before, now = (Latency(ms, 0.9 * ms, 1.1 * ms, 45.0, "1.31.1") for ms in (50.0, now_ms))
    assert changed(before, replace(now, reference_ms=reference_ms)).verdict == verdict
