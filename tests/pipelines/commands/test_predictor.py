"""Training the predictor from tuning logs: what is learnt, what is held out, and how good it is."""

import json

import pytest

from fewtune.pipelines import cli
from fewtune.predictor.pretrained import Pretrained
from fewtune.search.warm_start import Tuned, learnable_of
from fewtune.stages.paths import Places
from fewtune.task.extract import write_tasks
from tests import tuned_tiny

MODEL = "tiny"


@pytest.fixture()
def places(tmp_path):
    """A project in which the tiny model was imported and tuned."""
    places = Places(tmp_path)
    places.fingerprint.mkdir(parents=True)
    tuned_tiny.fingerprint().write(places.fingerprint)
    tasks, target = tuned_tiny.tasks(), tuned_tiny.fingerprint().target
    directory = places.tasks(MODEL)
    directory.mkdir(parents=True)
    write_tasks(tasks, MODEL, target, directory)
    tuned = places.tuned(MODEL, "full")
    tuned.parent.mkdir(parents=True)
    tuned.symlink_to(tuned_tiny.tuned())
    return places


@pytest.mark.slow
def test_a_predictor_is_trained_on_a_tuned_model(places, monkeypatch, capsys):
    output = places.out / "predictor"
    monkeypatch.chdir(places.root)
    command = ["predictor", "train", MODEL, "--output", str(output)]
    assert cli.main(command) == 0
    conditions = json.loads(output.with_name("predictor.json").read_text())
    assert conditions["models"] == [MODEL]
    assert conditions["tasks"] == len(
        learnable_of(Tuned(places.tasks(MODEL), tuned_tiny.tuned()), tuned_tiny.fingerprint())
    )
    assert Pretrained.read(output).conditions == conditions
    assert f"{conditions['trials']} trials of" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_that_was_not_tuned_is_refused_in_one_line(places, monkeypatch, capsys):
    monkeypatch.chdir(places.root)
    assert cli.main(["predictor", "train", "other", "--output", "predictors/mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fewtune: ")
    assert not (places.root / "predictors").exists()


def test_predictors_are_listed_and_described(capsys):
    assert cli.main(["predictor", "list"]) == 0
    assert "znver4" in capsys.readouterr().out
    assert cli.main(["predictor", "list", "--json"]) == 0
    assert {each["lanes"] for each in json.loads(capsys.readouterr().out)} == {8, 16}
    assert cli.main(["predictor", "info", "epyc_zen4"]) == 0
    assert json.loads(capsys.readouterr().out)["lanes"] == 16
    assert cli.main(["predictor", "info", "nobody"]) == 2
    assert "there is no predictor nobody: give epyc" in capsys.readouterr().err
