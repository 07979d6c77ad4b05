"""One list of steps: the API runs it, and `dvc.yaml` says the same."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fewtune.api import sections
from fewtune.steps.steps import STEPS

STAGES = YAML(typ="safe").load(Path(__file__).parents[2].joinpath("dvc.yaml").read_text())["stages"]
# It joins two results.
ONLY_IN_DVC = {"compare"}
# What a model has of its own, which `fewtune.tune` gets as options.
SETTINGS = "out/settings/"


def outputs(stage: str) -> list[str]:
    written = [*STAGES[stage]["outs"], *STAGES[stage].get("plots", [])]
    return [name for each in written for name in (each if isinstance(each, dict) else [each])]


def makers(path: str) -> set[str]:
    """The stages that make a file, or the folder around it."""
    return {
        stage
        for stage in STAGES
        if any(path == made or path.startswith(f"{made}/") for made in outputs(stage))
    }


def test_every_stage_of_one_result_is_a_step():
    assert {step.stage for step in STEPS} == STAGES.keys() - ONLY_IN_DVC


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stage)
def test_a_step_reads_what_its_stage_reads(step):
    read = set().union(
        *(makers(path) for path in STAGES[step.stage]["deps"] if SETTINGS not in path)
    )
    assert read == set(step.needs)


def test_each_step_comes_after_those_that_it_needs():
    done: set[str] = set()
    for step in STEPS:
        assert done.issuperset(step.needs)
        done.add(step.stage)


def test_options_are_of_steps():
    known = sections({}, "selective", None, None, 0).keys()
    assert known == {step.stage for step in STEPS} - {"fingerprint", "extract_tasks"}
