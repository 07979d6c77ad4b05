"""`fewtune ui` as another user finds it, as a client with the secret does, and after its end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from fewtune.pipelines.servers.server import basic
from tests import small_pipeline
from tests.made.command import started
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

MLFLOW = "api/2.0/mlflow"
# Tries each request in a process of another user; prints the status codes.
STRANGER = """
import json, os, sys, urllib.error, urllib.request
def code(address, body, headers):
    request = urllib.request.Request(address, body and body.encode(), headers)
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
asked = json.load(sys.stdin)
code(*asked[0])  # loads modules that the other user may not read
os.setgid(65534), os.setuid(65534)
print(json.dumps([code(*each) for each in asked]))
"""


class Ui:
    """A running `fewtune ui` in a checkout of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.temporary = root.with_name("tmp")
        self.temporary.mkdir(exist_ok=True)
        temporary = {"TMPDIR": str(self.temporary)}
        self.process = started(root, "ui", "--port", str(self.port), **temporary)
        until(lambda: self.process.poll() is not None or self.answers())
        assert self.process.poll() is None, (root / "command.log").read_text()

    @property
    def secret(self) -> str:
        return (self.root / ".fewtune" / "mlflow-auth").read_text().strip()

    def answers(self) -> bool:
        try:
            return self.ask("health")[0] == 200
        except OSError:
            return False

    def ask(self, path: str, content: object = None) -> tuple[int, str]:
        """Status and text of an answer to one who knows the secret."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}",
            None if content is None else json.dumps(content).encode(),
            {"Content-Type": "application/json", "Authorization": basic(self.secret)},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def new_run(self) -> tuple[str, Path]:
        """A run of the project's experiment, and the folder of its artifacts."""
        _, text = self.ask(f"{MLFLOW}/experiments/get-by-name?experiment_name=fewtune")
        experiment = json.loads(text)["experiment"]["experiment_id"]
        _, text = self.ask(f"{MLFLOW}/runs/create", {"experiment_id": experiment})
        info = json.loads(text)["run"]["info"]
        folder = Path(info["artifact_uri"].removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        return info["run_id"], folder


@pytest.fixture(scope="module")
def ui(tmp_path_factory, template):
    """It leaves no server, listener or folder."""
    root = small_pipeline.make(tmp_path_factory.mktemp("ui") / "checkout")
    shutil.copy(template, root / "mlflow.db")
    ui = Ui(root)
    yield ui
    started = psutil.Process(ui.process.pid).children(recursive=True)
    assert list(ui.temporary.iterdir()) != []
    ui.process.send_signal(signal.SIGINT)
    assert ui.process.wait(120) == 130
    _, alive = psutil.wait_procs(started, timeout=120)
    assert alive == []
    assert not ui.answers()
    until(lambda: not list(ui.temporary.iterdir()))


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_another_user_reads_and_writes_nothing(ui, tmp_path):
    run_id, folder = ui.new_run()
    secret = tmp_path / "secret"
    secret.write_text("mine")
    tmp_path.chmod(0o777)
    (folder / "link").symlink_to(secret)
    given = f"run_uuid={run_id}&path=link"
    form = {"Content-Type": "application/json"}
    requests = [
        (f"{MLFLOW}/experiments/create", json.dumps({"name": "e", "artifact_location": "/tmp"})),
        (f"{MLFLOW}/experiments/search?max_results=1", None),
        (f"get-artifact?{given}", None),
        (f"model-versions/get-artifact?name=m&version=1&{given}", None),
        (f"ajax-api/2.0/mlflow/upload-artifact?{given}", "theirs"),
        ("ajax-api/2.0/mlflow/runs/search", "{}"),
        ("api/2.0/mlflow-artifacts/artifacts", None),
        ("version", None),
        ("", None),
    ]
    asked = [(f"http://127.0.0.1:{ui.port}/{path}", body, form) for path, body in requests]
    guess = {**form, "Authorization": basic("fewtune:guess")}
    asked += [(address, body, guess) for address, body, _ in asked]
    told = subprocess.run(
        [sys.executable, "-c", STRANGER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == [401] * len(asked)
    assert secret.read_text() == "mine"
    # Nor can the secret be read in its file.
    assert (ui.root / ".fewtune" / "mlflow-auth").stat().st_mode & 0o077 == 0


def test_artifacts_are_those_of_the_checkout_and_no_links(ui, tmp_path):
    run_id, folder = ui.new_run()
    (folder / "own.txt").write_text("own")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    (folder / "link").symlink_to(outside / "file")
    (folder / "linked").symlink_to(outside)
    artifact = f"run_uuid={run_id}&path="
    assert ui.ask(f"get-artifact?{artifact}own.txt") == (200, "own")
    for path in ("link", "linked/file", "../../../../etc/passwd"):
        status, text = ui.ask(f"get-artifact?{artifact}{path}")
        assert status >= 400
        assert "mine" not in text
    upload = f"ajax-api/2.0/mlflow/upload-artifact?{artifact}"
    assert ui.ask(f"{upload}linked/file", "theirs")[0] >= 400
    ui.ask(f"{upload}link", "theirs")
    assert (outside / "file").read_text() == "mine"
    listed = ui.ask(f"{MLFLOW}/artifacts/list?run_id={run_id}")[1]
    assert "own.txt" in listed
    assert "link" not in listed
    for name, location in (("a", str(outside)), ("b", outside.as_uri()), ("c", "ftp://host/x")):
        given = {"name": name, "artifact_location": location}
        assert ui.ask(f"{MLFLOW}/experiments/create", given)[0] == 400
    inside = {"name": "d", "artifact_location": str(ui.root / "mlartifacts" / "d")}
    assert ui.ask(f"{MLFLOW}/experiments/create", inside)[0] == 200
