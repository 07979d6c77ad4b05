"""The flow under Prefect's test harness: in this process, and by a worker in another clone.

It runs on a small DVC repository with one failing model.
"""

import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from mlflow import MlflowClient

from fewtune.pipelines.checkout import environment  # noqa: F401  (before Prefect)

# isort: split
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_API_URL

from fewtune.pipelines import flow
from fewtune.pipelines.checkout.results import read_results
from fewtune.pipelines.cli import main
from fewtune.pipelines.flow import publish
from fewtune.pipelines.records.tracking import Store
from fewtune.pipelines.runs.outcome import Outcome
from fewtune.pipelines.runs.run_plan import DVC, Steps, run_all
from fewtune.process.child_python import CHILD_PYTHON
from fewtune.process.warm import warm_process
from fewtune.stages.params import PER_STRATEGY, RUN_SETTINGS
from fewtune.stages.paths import Places
from tests import small_pipeline
from tests.made import results as made
from tests.waiting import until

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
GOOD = ["good-selective", "good-full"]


@pytest.fixture(scope="module")
def root(tmp_path_factory, template):
    """The repository, whose steps copy made results into place."""
    root = small_pipeline.make(tmp_path_factory.mktemp("flow"))
    shutil.copy(template, root / "mlflow.db")
    made.lay_ready(root)
    made.lay_libraries(root)
    return root


@pytest.fixture(scope="module")
def harness(root):
    """Prefect's server, and one warm process for all runs."""
    # Its server takes four seconds to load, which each process that collects tests would spend.
    from prefect.testing.utilities import prefect_test_harness

    # Its stages need DVC alone.
    dvc = warm_process(DVC, root)
    with dvc, prefect_test_harness(server_startup_timeout=600):
        yield


def _settled(read: Callable[[], list[Any]]) -> list[Any]:
    """Task runs once the server has them all: it hears of their states a moment later."""
    before: list[Any] = []
    for _ in range(60):
        tasks = read()
        if len(tasks) == len(before) and all(task.state.is_final() for task in tasks):
            return tasks
        before = tasks
        time.sleep(0.5)
    return before


def run(root: Path, *arguments: Any, **options: Any) -> SimpleNamespace:
    """Run the flow in ``root``; gives its state, outcome, task runs and artifacts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root / 'mlflow.db'}")
        state = flow.selective_tuning(*arguments, **options, return_state=True)
        runs = list(Store(root).find({})) if options.get("recording", True) else []
    run_id = state.state_details.flow_run_id
    with get_client(sync_client=True) as client:
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
        tasks = _settled(lambda: client.read_task_runs(flow_run_filter=chosen, limit=200))
        artifacts = client.read_artifacts(flow_run_filter=chosen, limit=200)
    return SimpleNamespace(
        state=state,
        outcome=flow.outcome_of(state),
        tasks={
            task.name: task for task in sorted(tasks, key=lambda task: task.expected_start_time)
        },
        artifacts={(artifact.type, artifact.key): artifact for artifact in artifacts},
        recorded=sorted(run.info.run_name for run in runs),
    )


@pytest.fixture(scope="module")
def first(harness, root):
    return run(root)


def test_each_stage_of_each_model_is_a_task(first):
    names = [name for name in first.tasks if not name.startswith("record ")]
    good = ["prepare@good"]
    for result in GOOD:
        good += [f"search@{result}", f"finish@{result}"]
    bad = [name.replace("good", "bad") for name in [*good, "join@good"]]
    assert sorted(names) == sorted(["look", *good, "join@good", *bad])
    ran = [name for name in names if first.tasks[name].state.name == "Completed"]
    assert ran == ["look", *good, "join@good"]


def test_a_failing_model_does_not_end_the_others_and_the_end_says_why(first, root):
    assert first.tasks["prepare@bad"].state.name == "Failed"
    assert first.tasks["prepare@bad"].run_count == 1, "a fault is not tried again"
    for name in ("search@bad-selective", "finish@bad-full", "join@bad"):
        assert first.tasks[name].state.name == "Skipped"
        assert first.tasks[name].state.message == "prepare@bad failed"
    assert first.state.is_failed()
    assert first.state.message == (
        "bad failed; prepare@bad: operator Foo of bad cannot be imported; skipped for it: "
        "search@bad-selective, finish@bad-selective, search@bad-full, finish@bad-full, join@bad; "
        "up to date: good-selective, good-full"
    )
    assert first.outcome.exit_code == 2
    text = Places(root).log("prepare@bad").read_text()
    assert "fewtune: prepare: operator Foo of bad cannot be imported" in text


def test_results_are_recorded_and_shown(first):
    assert first.recorded == ["good-full", "good-selective"]
    assert "| good | selective |" in first.artifacts["markdown", "results"].data
    assert ("markdown", "result-good-full") in first.artifacts
    record = first.artifacts["markdown", "record-good-full"].data
    assert record.startswith("good-full is recorded in MLflow: run ")


def test_a_second_run_does_nothing_and_records_nothing(first, root):
    again = run(root, ["good"], watch=True)
    assert again.state.is_completed()
    assert again.state.message == "2 results up to date: good-selective, good-full"
    states = {name: task.state.name for name, task in again.tasks.items()}
    assert {states[name] for name in states if "@good-" in name} == {"Cached"}
    assert again.recorded == first.recorded


def test_what_another_version_wrote_costs_itself_only(first, root):
    other = root / "models" / "other"
    other.mkdir(parents=True)
    (other / "model.yaml").write_text("light: squeezenet\n")
    old = root / "out" / "other" / "full" / "benchmark"
    made.write_result(old, "other", "full")
    content = json.loads((old / "benchmark.json").read_text())
    (old / "benchmark.json").write_text(json.dumps({**content, "kernels": 3}))
    # A comparison of it is no second complaint.
    made.comparison("other").write(root / "out" / "other" / "compare")
    lines: list[str] = []
    try:
        found = read_results(root, lines.append)
    finally:
        shutil.rmtree(other)
        shutil.rmtree(root / "out" / "other")
    assert {(each.model, each.strategy) for each in found} >= {("good", "full")}
    (line,) = lines
    assert line.startswith("other full is left out: ")
    assert "kernels" in line
    assert line.endswith("`fewtune run other --strategy full --force`")


def test_a_page_that_is_away_costs_a_line(monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise httpx.ConnectError("All connection attempts failed")

    said: list[str] = []
    logger = SimpleNamespace(warning=lambda form, *values: said.append(form % values))
    monkeypatch.setattr("fewtune.pipelines.flow.create_markdown_artifact", away)
    monkeypatch.setattr("fewtune.pipelines.flow.get_run_logger", lambda: logger)
    publish("results", "text", "All results on disk")
    assert said == ["not shown on Prefect's page: All connection attempts failed"]


def test_a_join_of_an_outdated_result_is_passed_over(first, root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    params = root / "params.yaml"
    kept = params.read_text()
    params.write_text(kept.replace("trials: 4", "trials: 5"))
    try:
        outcome = run_all(["good"], ["selective"], Steps(), recording=False)
    finally:
        params.write_text(kept)
    assert outcome.exit_code == 0
    assert "join@good is skipped: search@good-full is not up to date" in capsys.readouterr().out


def test_commands_run_and_record_what_is_here(first, root, template, tmp_path, monkeypatch, capsys):
    # The small pipeline's params.yaml has none of the project's sections.
    sections = dict.fromkeys(PER_STRATEGY, ["selective", "full"])
    monkeypatch.setattr("fewtune.pipelines.checkout.parameters.check_all", lambda *_: sections)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root / 'mlflow.db'}")
    for model in ("good", "bad"):
        (root / "models" / model).mkdir(parents=True)
        (root / "models" / model / "model.yaml").write_text("light: squeezenet\n")
    (root / "below").mkdir()
    monkeypatch.chdir(root / "below")
    assert main(["run", "good", "bad"]) == 2
    shown = capsys.readouterr()
    assert "good selective 50.0 10 0.90 - 250" in " ".join(shown.out.split())
    assert "../out/good/selective/benchmark/report.md" in shown.out
    assert "fewtune ui" in shown.out
    assert "fewtune: prepare@bad: operator Foo of bad cannot be imported" in shown.err
    assert main(["run", "good", "bad", "--json"]) == 2
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert {each["model"] for each in told["results"]} == {"good"}
    assert [each["what"] for each in told["failures"]] == ["prepare@bad"]
    assert told["exit_code"] == 2
    assert "is up to date" in shown.err
    other = shutil.copy(template, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    assert main(["record"]) == 0
    assert "good-full is recorded in MLflow: run " in capsys.readouterr().out


def test_a_regression_ends_the_watched_flow_as_failed(first, root):
    ready = root / "ready" / "good" / "selective" / "benchmark"
    made.write_result(ready, "good", "selective", latency_ms=90.0)
    watched = run(root, ["good"], ["selective"], force=True, watch=True)
    for name in ("prepare@good", "search@good-selective", "finish@good-selective"):
        assert watched.tasks[name].state.name == "Completed"
    assert watched.state.is_failed()
    assert watched.outcome.exit_code == 6
    assert watched.state.message.startswith("good-selective is 80.0 % slower")
    page = watched.artifacts["markdown", "fleet"].data
    assert "| good | selective | 50.0 | 90.0 | +80.0 |" in page
    picture = watched.artifacts["image", "fleet-picture"].data
    assert picture.startswith("data:image/png;base64,")


def test_a_deployment_gives_settings_of_its_run(monkeypatch):
    seen = []

    def run_all(*_: object) -> Outcome:
        seen.append(json.loads(os.environ[RUN_SETTINGS]))
        return Outcome()

    monkeypatch.setattr(flow, "run_all", run_all)
    flow.selective_tuning.fn(models=["net"], trials=8, settings={"tune.seed": 1})
    assert seen == [{"net": {"tune": {"seed": 1, "trials_per_task": 8}}}]
    assert RUN_SETTINGS not in os.environ


def ask(path: str, content: object = None) -> Any:
    """The answer of Prefect's server; ``content`` is posted."""
    with get_client(sync_client=True) as client:
        return client.request("GET" if content is None else "POST", path, json=content).json()


@pytest.fixture
def known(harness):
    """The environment of those who know the server."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "MLFLOW_", "FEWTUNE_"))
    }
    return kept | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, sys.path)]),
        "PREFECT_API_URL": PREFECT_API_URL.value(),
        "PREFECT_API_AUTH_STRING": os.environ.get("PREFECT_API_AUTH_STRING", ""),
        "DO_NOT_TRACK": "1",
    }


def test_a_worker_runs_the_flow_in_a_clone_of_its_own(known, template, tmp_path):
    """Not in the one from which it was deployed; both know the same servers."""
    first = small_pipeline.make(tmp_path / "first")
    ask("/work_pools/", {"name": "shared", "type": "process"})
    described = (PROJECT / "prefect.yaml").read_text().replace("name: local", "name: shared")
    (first / "prefect.yaml").write_text(described)
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    second = tmp_path / "second"
    for command in (
        ["git", "add", "--all"],
        ["git", *who, "commit", "-qm", "pipeline"],
        ["git", "clone", "-q", ".", str(second)],
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
    ):
        subprocess.run(command, cwd=first, env=known, capture_output=True, check=True)
    # Its steps copy made results into place.
    made.lay_ready(second)
    made.lay_libraries(second)
    tracking = f"sqlite:///{shutil.copy(template, tmp_path / 'mlflow.db')}"
    own = {"FEWTUNE_CHECKOUT": str(second), "MLFLOW_TRACKING_URI": tracking}
    own[CHILD_PYTHON] = os.environ[CHILD_PYTHON]
    log = tmp_path / "worker.log"
    worker = subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", "shared", "--limit", "1"],
        cwd=tmp_path,
        env={**known, **own, "PREFECT_WORKER_QUERY_SECONDS": "1"},
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        deployment = ask("/deployments/name/selective-tuning/on-demand")["id"]
        given = {"parameters": {"models": ["good"], "strategies": ["full"]}}
        run_id = ask(f"/deployments/{deployment}/create_flow_run", given)["id"]
        ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        until(lambda: ask(f"/flow_runs/{run_id}")["state_type"] in ends, 400, pause_s=0.5)
        assert ask(f"/flow_runs/{run_id}")["state_type"] == "COMPLETED", log.read_text()
        tasks = ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}})
        assert "search@good-full" in {each["name"] for each in tasks}
        client = MlflowClient(tracking)
        (experiment,) = [each for each in client.search_experiments() if each.name == "fewtune"]
        recorded = client.search_runs([experiment.experiment_id])
        assert "good-full" in {run.info.run_name for run in recorded}
    finally:
        worker.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def test_a_failed_night_is_posted(harness, monkeypatch):
    example = str(PROJECT / "examples" / "notify_on_regression.py")
    monkeypatch.setattr(sys, "argv", [example, "http://127.0.0.1:9/hook"])
    # Again, it replaces what it made.
    for _ in range(2):
        runpy.run_path(example, run_name="__main__")
    listed = ask("/automations/filter", {})
    assert [each["name"] for each in listed] == ["fewtune-regression"]
