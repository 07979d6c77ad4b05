"""Results of other models under one name, of other settings, and of recordings that were killed."""

import pytest

from fewtune.pipelines.records.conditions import is_same_model
from fewtune.pipelines.records.tracking import Store
from fewtune.pipelines.records.watch import watch
from tests.made.checkout import MODEL, SELECTIVE, Checkout

# MLflow takes seconds to load.
pytestmark = pytest.mark.slow

FILE = {"model.source": "model.onnx", "model.source_sha256": "a"}
SEEDED = {"model.source": "light:squeezenet seed 0", "model.source_sha256": "a"}


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (FILE, FILE, True),
        (FILE, {**FILE, "model.source_sha256": "b"}, False),
        # Earlier versions recorded no binding.
        (FILE, {**FILE, "model.binding": "1"}, True),
        ({**FILE, "model.binding": "2"}, {**FILE, "model.binding": "1"}, False),
        ({}, FILE, True),
        # A seeded model is written by the installed ONNX.
        (SEEDED, {**SEEDED, "model.source_sha256": "b"}, True),
        (SEEDED, {**SEEDED, "model.source": "light:squeezenet seed 1"}, False),
        (SEEDED, FILE, False),
    ],
)
def test_a_model_is_its_file_or_seed_with_what_is_bound(before, now, same):
    assert is_same_model(before, now) is same
    assert is_same_model(now, before) is same


def aliases(checkout: Checkout) -> set[str]:
    """The versions that the aliases stand for."""
    found: dict[str, object] = Store(checkout.root).client.get_registered_model(MODEL).aliases
    return {str(version) for version in found.values()}


@pytest.mark.parametrize("change", [{"source_sha256": "1" * 64}, {"binding": "other"}])
def test_another_model_of_the_name_is_champion_though_slower(checkout, change):
    checkout.write(SELECTIVE)
    checkout.change_model(SELECTIVE, binding="first")
    checkout.record(SELECTIVE)
    checkout.write(SELECTIVE, latency_ms=90.0)
    checkout.change_model(SELECTIVE, **{"binding": "first", **change})
    assert "its champion now" in checkout.record(SELECTIVE)
    assert aliases(checkout) == {"2"}
    (found,) = watch(checkout.root)
    assert found.change is None
    assert not found.line()


def test_other_settings_are_named_and_are_no_noise(checkout):
    for latency_ms, trials in ((50.0, 64), (99.0, 1), (50.5, 64), (98.0, 1), (51.0, 64), (98.5, 1)):
        checkout.settings = {"trials_per_task": trials}
        checkout.measured(SELECTIVE, latency_ms=latency_ms)
    (found,) = watch(checkout.root)
    assert len(found.earlier) == 3
    assert found.change is not None
    assert found.change.between == pytest.approx(0.013, abs=0.001)
    assert found.line().endswith("changed: tune.trials_per_task 64 to 1")


def test_a_killed_recording_leaves_no_version(checkout):
    checkout.measured(SELECTIVE)
    store = Store(checkout.root)
    with store.recording("k", "killed", (0, 1)) as run_id:
        (version,) = store.client.search_model_versions(f"name = '{MODEL}'")
        store.client.create_model_version(MODEL, version.source, run_id)
    # As if the process had been killed before the key was written.
    store.client.delete_tag(run_id, "fewtune.result")
    with store.recording("k", "again", (0, 1)):
        pass
    (left,) = store.client.search_model_versions(f"name = '{MODEL}'")
    assert left.version == version.version
    assert aliases(checkout) == {"1"}
