"""What is printed of results says where they are, and whether MLflow has them."""

import pytest

from fewtune.pipelines.checkout.results import read_results
from fewtune.pipelines.commands.show import show_results
from fewtune.pipelines.records.recorded import remember
from tests.made.checkout import FULL, SELECTIVE, Checkout
from tests.made.command import python


def shown(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> str:
    show_results(read_results(checkout.root, print), checkout.root)
    return capsys.readouterr().out


@pytest.mark.slow
def test_what_mlflow_lacks_is_not_called_recorded(checkout, capsys, monkeypatch):
    for result in (SELECTIVE, FULL):
        checkout.write(result)
    text = shown(checkout, capsys)
    assert "To record in MLflow (net-selective, net-full):  fewtune record" in text
    assert "Recorded" not in text
    remember(checkout.root, SELECTIVE)
    text = shown(checkout, capsys)
    assert "Recorded results in MLflow:  fewtune ui" in text
    assert "To record in MLflow (net-full):  fewtune record" in text
    remember(checkout.root, FULL)
    assert "fewtune record" not in shown(checkout, capsys)
    # Another store has neither.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "Recorded" not in shown(checkout, capsys)


def test_a_command_that_has_a_model_checked_loads_little_itself():
    # It waits for the process that checks: what it loads before that is on top.
    asked = (
        "import sys, fewtune.pipelines.commands.models;"
        "print([m for m in ('tvm', 'onnx', 'numpy', 'networkx', 'dvc') if m in sys.modules])"
    )
    assert python(asked).stdout == "[]\n"
