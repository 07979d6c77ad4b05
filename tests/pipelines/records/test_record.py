"""Results in a SQLite MLflow: recorded whole, once each, and compared."""

import hashlib
import re
from datetime import UTC, datetime

import pytest
from mlflow.entities import LoggedModelOutput

from fewtune.errors import InputError, MachineError
from fewtune.pipelines.records import record
from fewtune.pipelines.records.compare import runs_named, runs_table, said_of
from fewtune.pipelines.records.registry import machine_of
from fewtune.pipelines.records.tracking import KEY, Store
from tests.made import results as made
from tests.made.checkout import FULL, MODEL, SELECTIVE, Checkout

# MLflow takes seconds to load.
pytestmark = pytest.mark.slow


def test_a_result_is_recorded_with_all_that_belongs_to_it(checkout):
    assert "is recorded" in checkout.measured(SELECTIVE)
    store = Store(checkout.root)
    (run,) = store.find({})
    assert run.info.run_name == "net-selective"
    assert run.info.status == "FINISHED"
    assert run.data.metrics["latency_ms"] == 50.0
    assert run.data.metrics["tuning_s"] == 250.0
    assert run.data.params["tune.trials_per_task"] == "64"
    # Of its own strategy, and under a name that both strategies share.
    assert run.data.params["select_tasks.method"] == "cliques"
    # What was left to its default belongs to it, too.
    assert run.data.params["tune.batch_size"] == "16"
    assert run.data.params["select_tasks.min_similarity"] == "0.5"
    assert run.data.params["machine.device"] == "Test CPU"
    assert run.data.params["machine.versions.apache-tvm"] == "0.27.0"
    tags = run.data.tags
    assert (tags["model"], tags["strategy"], tags["target"]) == (MODEL, "selective", "llvm znver5")
    # Of the code that measured, which may not be what is checked out now.
    assert (tags["git_commit"], tags["git_changed"]) == ("0123abcdef", "true")
    assert tags["mlflow.source.git.commit"] == "0123abcdef"
    assert tags["mlflow.source.name"] == "dvc repro benchmark@net-selective"
    assert tags["machine"] == "Test CPU, 2 threads"
    # The tuning's time, not the recording's.
    assert run.info.end_time == 1000 * int(datetime(2026, 11, 21, 6, 30, tzinfo=UTC).timestamp())
    assert run.info.end_time - run.info.start_time == 250_000
    # A table's columns, with units; the rest is among the artifacts.
    assert len(run.data.metrics) <= 15
    assert run.data.metrics["times_onnxruntime"] == 0.9
    benchmark = checkout.places.benchmarked(MODEL, "selective") / "benchmark.json"
    assert hashlib.md5(benchmark.read_bytes()).hexdigest() in tags["dvc_hash"]
    points = store.client.get_metric_history(run.info.run_id, record.CURVE)
    assert [(point.step, point.value) for point in points] == [(1, 400.0), (30, 60.0)]
    assert points[1].timestamp - points[0].timestamp == 28100
    folders = {item.path for item in store.client.list_artifacts(run.info.run_id)}
    assert folders >= {"benchmark", "share", "compile", "logs", record.PAGE}
    assert run.data.tags["mlflow.note.content"].startswith("[Plots](#/experiments/")
    files = {item.path for item in store.client.list_artifacts(run.info.run_id, "benchmark")}
    assert "benchmark/report.md" in files
    assert "in MLflow already" in checkout.record(SELECTIVE)
    assert len(store.find({})) == 1


def test_an_interrupted_record_leaves_nothing(checkout, monkeypatch):
    checkout.write(SELECTIVE)
    with monkeypatch.context() as patch:
        patch.setattr(record, "_curve", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            checkout.record(SELECTIVE)
    store = Store(checkout.root)
    assert store.find({}) == []
    # What a killed process leaves has no key, and goes with the next recording.
    assert store.client.search_logged_models([store.experiment_id]) == []
    left = store.client.create_run(store.experiment_id, tags={"fewtune.recording": "k"})
    half = store.client.create_logged_model(store.experiment_id, "half")
    store.client.log_outputs(left.info.run_id, [LoggedModelOutput(half.model_id, step=0)])
    with store.recording("k", "again", (0, 1)):
        pass
    assert store.client.search_logged_models([store.experiment_id]) == []
    assert [run.info.run_name for run in store.find({})] == ["again"]
    assert left.info.run_id not in {run.info.run_id for run in store.find({})}


def test_a_comparison_is_added_to_the_selective_run_once(checkout):
    checkout.write(SELECTIVE)
    checkout.write(FULL, latency_ms=40.0, tuning_s=made.FULL_TUNING_S)
    checkout.record(SELECTIVE)
    checkout.record(FULL)
    assert "no comparison" in record.record_comparison(checkout.root, MODEL)
    checkout.compare()
    for _ in range(2):
        record.record_comparison(checkout.root, MODEL)
    store = Store(checkout.root)
    (run,) = store.find({"strategy": "selective"})
    assert run.data.metrics["used_time_pct"] == 25.0
    history = store.client.get_metric_history(run.info.run_id, "achieved_perf_pct")
    assert [point.value for point in history] == [80.0]
    files = {item.path for item in store.client.list_artifacts(run.info.run_id, "compare")}
    assert "compare/report.md" in files


def test_results_are_put_side_by_side(checkout):
    checkout.measured(SELECTIVE)
    with pytest.raises(InputError, match="only one result of net .* --strategy full"):
        runs_named(checkout.root, [MODEL])
    for name in ("nett", "0123456789ab", "'; drop"):
        with pytest.raises(InputError, match="is not recorded in MLflow"):
            runs_named(checkout.root, [name])
    checkout.measured(FULL, latency_ms=40.0, tuning_s=made.FULL_TUNING_S)
    runs = runs_named(checkout.root, [MODEL])
    table, lines = runs_table(runs), said_of(runs)
    assert [heading.split(" ")[0] for heading in table.headings] == [
        "",
        *map(str, (SELECTIVE, FULL)),
    ]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["latency ms"] == ["50.0", "40.0"]
    assert rows["machine"] == ["Test CPU", "Test CPU"]
    assert rows["trials a task"] == ["64", "64"]
    assert lines == [
        "net: selective took 25.0 % of full tuning's time for 80.0 % of its performance"
    ]
    by_id = [run.info.run_id for run in reversed(Store(checkout.root).find({}))]
    assert runs_table(runs_named(checkout.root, [by_id[0][:8], "net-full"])).rows == table.rows


def test_other_machines_are_warned_about(checkout):
    checkout.measured(SELECTIVE)
    checkout.measured(FULL, tuning_s=made.FULL_TUNING_S, device="Other CPU")
    assert said_of(runs_named(checkout.root, [MODEL])) == [
        "warning: measured on different machines or versions, not comparable: device differ"
    ]


def test_what_dvc_did_not_make_is_not_recorded(checkout):
    with pytest.raises(InputError, match="no result to record"):
        checkout.record(SELECTIVE)
    checkout.write(SELECTIVE)
    (checkout.root / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    with pytest.raises(InputError, match="is not in dvc.lock"):
        checkout.record(SELECTIVE)
    assert all(KEY in run.data.tags for run in Store(checkout.root).find({}))


def test_a_store_that_cannot_be_used_is_one_line(checkout, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://me:secret@somewhere")
    with pytest.raises(MachineError, match="MLflow at nonsense://.*@somewhere cannot") as told:
        Store(checkout.root)
    assert "secret" not in str(told.value)


def versions(checkout: Checkout) -> dict[str, str]:
    """Each alias with the latency of the version that it stands for."""
    client = Store(checkout.root).client
    aliases = client.get_registered_model(MODEL).aliases
    return {
        alias: client.get_model_version(MODEL, version).tags["latency_ms"]
        for alias, version in aliases.items()
    }


def test_a_result_is_a_version_of_its_model(checkout):
    assert "version 1 of net, its champion now" in checkout.measured(SELECTIVE)
    client = Store(checkout.root).client
    version = client.get_model_version(MODEL, "1")
    fingerprint = made.fingerprint()
    assert version.tags["fingerprint"] == fingerprint.identity()
    assert version.tags["strategy"] == "selective"
    assert re.match(r"[\d.]+ ms, [\d.]+ x onnxruntime; selective tuning, ", version.description)
    (run,) = Store(checkout.root).find({})
    assert version.run_id == run.info.run_id
    (output,) = run.outputs.model_outputs
    kept = {item.path for item in client.list_logged_model_artifacts(output.model_id, "data/data")}
    assert kept == {"data/data/model.so"}


def test_the_champion_is_faster_by_more_than_the_noise(checkout):
    mine = f"champion-{machine_of(made.fingerprint())}"
    # Made latencies spread by ten per cent to either side: two of them differ from 14 per cent on.
    for latency_ms, fastest in ((50.0, "50"), (47.0, "50"), (40.0, "40"), (60.0, "40")):
        checkout.measured(SELECTIVE, latency_ms=latency_ms)
        assert versions(checkout) == {"champion": fastest, mine: fastest}
    assert "for this machine and threads now (champion: 3)" in checkout.measured(
        SELECTIVE, latency_ms=10.0, device="Other CPU"
    )
    other = f"champion-{machine_of(made.fingerprint('Other CPU'))}"
    # Another machine's library is no better library for this one.
    assert versions(checkout) == {"champion": "40", mine: "40", other: "10"}
