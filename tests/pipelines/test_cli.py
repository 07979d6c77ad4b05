"""The command line: help, exit codes, and one clear line for what cannot be used."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fewtune.errors import InputError, JournalError
from fewtune.pipelines.arguments import _COMMANDS
from fewtune.pipelines.checkout.parameters import MODELS, change_parameters, parse_setting
from fewtune.pipelines.cli import main
from fewtune.pipelines.commands.services import read_deployments
from fewtune.pipelines.commands.show import remark
from fewtune.pipelines.runs.outcome import Outcome
from fewtune.process.ending import VERBOSE, ending_early, exit_code, is_asked_to_end, listen
from fewtune.stages.params import BY_MODEL, RUN_SETTINGS, load_all
from fewtune.stages.paths import Places
from tests import tiny_models
from tests.made import results as made
from tests.made.checkout import refused

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
COMMANDS = tuple(function.__name__ for each in _COMMANDS.values() for function in each)


def test_help_comes_at_once():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fewtune.pipelines.cli", "--help"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not loaded & {"prefect", "mlflow", "dvc", "tvm", "onnx", "numpy", "pydantic"}
    for command in COMMANDS:
        assert f"\n    {command} " in done.stdout
    assert "exit codes:" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_examples(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:\n  " in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments", [[], ["tune"], ["run", "--trials", "many"], ["run", "--all", "--strategy", "full"]]
)
def test_what_cannot_be_parsed_is_2(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "arguments", [["report"], ["run"], ["add", "light:squeezenet"], ["compare", "a"], ["ui"]]
)
def test_outside_a_project_is_said(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "is not inside a fewtune project" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "squeeznet"], "'squeeznet' is no registered model .* did you mean squeezenet?"),
        (["run", "squeezenet", "--name", "mine"], "a name, shapes, .* belong to one .onnx file"),
        (["run", "resnet50"], "register it with `fewtune add light:resnet50`"),
        (["run", "missing.onnx"], "no such file: missing.onnx"),
        (["run", "--strategy", "ful"], "strategy 'ful' is not listed .* did you mean full?"),
        (["run", "--set", "tune.seed"], "'tune.seed' sets nothing: give KEY.PATH=VALUE"),
        (["run", "--set", "tuna.seed=1"], "tuna is no section"),
        (["run", "--dimension", "n=1", "--dimension", "n=2"], "'n' is given twice"),
        (["add", "light:resnet51"], "no light model is called 'resnet51'"),
        (["add", "light:resnet50", "--name", "../x"], "model name '../x' is not plain"),
        (["report"], "no result is on disk: make it with `fewtune run`"),
        (
            ["report", "squeezenet"],
            "no result of squeezenet is on disk: make it with `fewtune run ",
        ),
        (["compare", "squeezenet"], "nothing is recorded in MLflow yet"),
        (["bank", "import", "bank.f", "--name", "../x"], "'../x' is not plain"),
        (["bank", "import", "bank.f"], "there is no file bank.f"),
        (["ui", "--port", "0"], "port 0 is none"),
        (["run", "--target", "quantum"], "target 'quantum' is not one that TVM knows"),
    ],
)
def test_bad_input_is_one_line(project, arguments, expected, capsys):
    before = (project / "params.yaml").read_bytes()
    assert re.search(expected, refused(capsys, *arguments))
    assert (project / "params.yaml").read_bytes() == before
    assert Places(project).registered() == ["squeezenet"]


def test_a_port_that_is_taken_is_the_machines_fault(project, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} cannot be used" in refused(capsys, "ui", "--port", port, code=3)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (JournalError("damaged"), 5),
        (KeyboardInterrupt(), 130),
        (PermissionError(13, "Permission denied", "/readonly/params.yaml"), 3),
    ],
)
def test_every_ending_has_its_code(raised, code, monkeypatch, capsys):
    def fail(_: object) -> int:
        raise raised

    monkeypatch.setattr("fewtune.pipelines.commands.results.report", fail)
    refused(capsys, "report", code=code)


def test_what_the_library_alone_lacks_is_said(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "dvc", None)
    said = refused(capsys, "init", code=3)
    assert said == "dvc is missing: pip install 'fewtune[pipeline]'"


def _loading_fails(_: object) -> int:
    raise ImportError("initialization failed")


@pytest.mark.parametrize("goes_on", [_loading_fails, lambda _: 2])
def test_an_interrupt_is_told_whatever_a_library_makes_of_it(goes_on, monkeypatch, capsys):
    def interrupted(options: object) -> int:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return goes_on(options)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("fewtune.pipelines.commands.results.report", interrupted)
    try:
        assert refused(capsys, "report", code=130) == "interrupted; the same command goes on"
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_first_interrupt_asks_a_stage_that_measures_to_end(tmp_path, capsys):
    def measuring() -> int:
        listen()
        signal.raise_signal(signal.SIGINT)
        return 0 if is_asked_to_end() else 1

    with ending_early(tmp_path / "end"):
        assert exit_code(measuring) == 0
    assert "ending with the best so far" in capsys.readouterr().err


def test_add_registers_and_lists_the_model(project, capsys):
    (project / "below").mkdir()
    again = ("add", "light:squeezenet", "--name", "mine", "--no-check")
    assert main([*again, "--seed", "3"]) == 0
    assert "params.yaml: models + mine" in capsys.readouterr().out
    assert Places(project).registration("mine").read_text() == "light: squeezenet\nseed: 3\n"
    text = (project / "params.yaml").read_text()
    assert "\n- squeezenet\n- mine\n" in text
    assert "# registered under models/" in text
    assert main([*again, "--seed", "3"]) == 0
    assert "another model is registered" in refused(capsys, *again)


def test_add_checks_a_file(project, tmp_path):
    given = tiny_models.write_model(tiny_models.tiny_convolutional_model(), tmp_path)
    assert main(["add", str(given), "--name", "mine"]) == 0
    assert Places(project).registered() == ["mine", "squeezenet"]


def test_report_shows_what_is_on_disk(project, capsys):
    places = Places(project)
    made.write_result(places.benchmarked("squeezenet", "selective"), "squeezenet", "selective")
    assert main(["report", "--kernels"]) == 0
    shown = capsys.readouterr().out
    assert "squeezenet selective 50.0 10 0.90 - 250" in " ".join(shown.split())
    assert "Measured on Test CPU" in shown
    assert "out/squeezenet/selective/compile/model.so" in shown
    assert "conv2d_1" in shown
    assert main(["report", "--markdown"]) == 0
    assert "| squeezenet | selective | 50.0 | 10 | 0.90 |" in capsys.readouterr().out
    assert main(["report", "squeezenet", "--html", "--output", "page.html"]) == 0
    assert capsys.readouterr().out == "page.html\n"
    assert "<table" in (project / "page.html").read_text()
    assert main(["report", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["model"], result["latency_ms"]) == ("squeezenet", 50.0)
    assert result["library"].endswith("out/squeezenet/selective/compile/model.so")
    assert [row["task"] for row in result["kernels"]] == ["pool", "conv2d_1"]


def test_overrides_change_their_lines_only(project):
    path = project / "params.yaml"
    before = path.read_text().splitlines()
    values = {
        "tune.trials_per_task": 48,
        "tune.budget_s": 60,
        "tune.seed": 0,
        "fingerprint.target": "cuda",
    }
    lines = change_parameters(path, values)
    assert lines == [
        "params.yaml: tune.trials_per_task 32 -> 48",
        "params.yaml: tune.budget_s null -> 60",
        "params.yaml: fingerprint.target auto -> cuda",
    ]
    after = path.read_text().splitlines()
    assert len(after) == len(before)
    changed = [
        new.split("#")[0].strip() for old, new in zip(before, after, strict=True) if old != new
    ]
    assert changed == ["target: cuda", "trials_per_task: 48", "budget_s: 60"]
    assert YAML(typ="safe").load(path.read_text())["tune"]["trials_per_task"] == 48
    assert change_parameters(path, {"tune.trials_per_task": 48}) == []


def test_settings_of_one_model_are_written_beside_those_of_all(project):
    path = project / "params.yaml"
    before = path.read_text()
    lines = change_parameters(path, {}, {MODELS: ["squeezenet"]}, {"tune.trials_per_task": 64})
    assert lines == ["params.yaml: tune.trials_per_task 64 for squeezenet"]
    own = "by_model:\n  squeezenet:\n    tune:\n      trials_per_task: 64\n"
    assert path.read_text() == before + own


@pytest.mark.parametrize("save", [False, True])
def test_trials_hold_for_a_run_unless_they_are_saved(project, save, monkeypatch, capsys):
    before = (project / "params.yaml").read_text()
    seen = []

    def run(*_: object, **__: object) -> Outcome:
        seen.append(load_all(project / "params.yaml")[BY_MODEL]["squeezenet"])
        return Outcome()

    monkeypatch.setattr("fewtune.pipelines.runs.run_plan.run_all", run)
    assert main(["run", "squeezenet", "--trials", "8", *(["--save"] if save else [])]) == 0
    assert seen == [{"tune": {"trials_per_task": 8}}]
    assert ((project / "params.yaml").read_text() != before) is save
    assert RUN_SETTINGS not in os.environ


def test_a_command_tells_less_or_more(project, monkeypatch, capsys):
    def run(*_: object, **__: object) -> Outcome:
        print("verbose" if VERBOSE in os.environ else "progress")
        remark("waiting")
        return Outcome()

    monkeypatch.setattr("fewtune.pipelines.runs.run_plan.run_all", run)
    for options, out, err in (
        ([], "progress\n", "waiting\n"),
        (["--quiet"], "", ""),
        (["--verbose"], "verbose\n", "waiting\n"),
    ):
        assert main(["run", "squeezenet", *options]) == 0
        assert capsys.readouterr() == (out, err)


def test_a_run_lists_what_it_is_asked_for(project, monkeypatch, capsys):
    monkeypatch.setattr("fewtune.pipelines.runs.run_plan.run_all", lambda *_, **__: Outcome())
    for given, *expected in (
        (["--strategy", "full"], ["selective", "full"], []),
        (["--all"], ["selective", "full", "oneshot"], ["squeezenet"]),
    ):
        assert main(["run", "squeezenet", *given]) == 0
        params = load_all(project / "params.yaml")
        assert [params["strategies"], params["compared"]] == expected


def test_settings_are_read_as_yaml():
    assert parse_setting("tune.predictor='never'") == ("tune.predictor", "never")
    assert parse_setting("compile.allowance=1e-3") == ("compile.allowance", 1e-3)
    assert parse_setting("tune.budget_s=null") == ("tune.budget_s", None)
    with pytest.raises(InputError, match="the value is no YAML"):
        parse_setting("tune.seed=[1")


def test_deployments_name_the_flow_and_a_nightly_schedule(project, capsys, monkeypatch):
    found = read_deployments(project)
    assert {each["entrypoint"] for each in found} == {"fewtune.pipelines.flow.selective_tuning"}
    assert [each["schedules"] for each in found if each.get("schedules")] == [
        [{"cron": "0 2 * * *"}]
    ]
    # Set, it also keeps this process's environment from being changed.
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert "is no cron expression" in refused(capsys, "serve", "--cron", "nightly")
    (project / "prefect.yaml").write_text("deployments: []\n")
    assert "give a list of deployments" in refused(capsys, "serve")
