"""Every key of every section with every kind of wrong value: one sentence, and no file changes."""

import hashlib
import shutil
from pathlib import Path

import pytest

from fewtune.errors import InputError
from fewtune.pipelines.checkout.parameters import change_parameters, parse_setting
from fewtune.stages.params import (
    LISTS,
    PER_STRATEGY,
    SECTIONS,
    check_all,
    load_all,
    merged,
    nested,
    options_class,
)
from fewtune.stages.params import read_yaml as read

PROJECT = Path(__file__).parents[2]
PLACES = {name: f"{name}.full" if name in PER_STRATEGY else name for name in SECTIONS}
KEYS = [f"{PLACES[name]}.{key}" for name in SECTIONS for key in options_class(name).model_fields]
# One of each kind: their values are also written into the file.
WRITTEN = ["tune.seed", "tune.budget_s", "tune.start_from", "select_tasks.full.method", "tune"]
WRONG = [
    "{}",
    "[]",
    "null",
    "-1",
    ".nan",
    "-.inf",
    "9" * 400,
    "9" * 5000,
    "true",
    "''",
    "../../../../etc",
    "/etc",
    "logs/../../etc",
    '"a\\0b"',
    '"\\e[2J"',
    "2026-11-29",
    "&a [*a]",
    "? [b]",
    "[" * 500,
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("refused")
    shutil.copy(PROJECT / "params.yaml", root)
    for name in ("logs", "bank", "predictors", "models/squeezenet"):
        (root / name).mkdir(parents=True)
    (root / "models" / "squeezenet" / "model.yaml").write_text("light: squeezenet\n")
    return root


def digests(root: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("key", [*WRITTEN, *LISTS, "unknown", "tune.no"])
def test_a_value_is_taken_or_refused_in_a_sentence_with_every_file_as_it_was(root, key):
    before = digests(root)
    kept = (root / "params.yaml").read_bytes()
    for wrong in WRONG:
        try:
            change_parameters(root / "params.yaml", dict([parse_setting(f"{key}={wrong}")]))
        except InputError as refused:
            assert digests(root) == before
            assert str(refused).count("\n") == 0
        else:
            # A later run reads what was written.
            load_all(root / "params.yaml")
            (root / "params.yaml").write_bytes(kept)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG, ids=lambda text: text[:9])
def test_a_value_of_any_key_is_taken_or_refused_in_a_sentence(root, wrong):
    content = read(root / "params.yaml")
    for key in [*KEYS, *PLACES.values()]:
        try:
            value = dict([parse_setting(f"{key}={wrong}")])
            check_all(merged(content, nested(value)), root / "params.yaml")
        except InputError as refused:
            assert str(refused).count("\n") == 0


@pytest.mark.parametrize("section", sorted(set(SECTIONS) - PER_STRATEGY))
def test_keys_left_out_take_their_defaults(root, section):
    content = {**read(root / "params.yaml"), section: {}}
    found = check_all(content, root / "params.yaml")
    assert found[section] == options_class(section)()


@pytest.mark.parametrize(
    ("setting", "folder"),
    [
        ("tune.start_from=../../../../etc", "logs"),
        ("tune.start_from=logs/link", "logs"),
        ("tune.start_from=out", "logs"),
        ("build_bank.selective.logs=/etc", "bank"),
        ("tune.predictor=predictors/link/it", "predictors"),
    ],
)
def test_no_path_leaves_its_folder(root, setting, folder):
    for name in ("logs", "predictors"):
        link = root / name / "link"
        if not link.is_symlink():
            link.symlink_to("/etc" if name == "logs" else PROJECT / "predictors")
    with pytest.raises(InputError, match=f"give {folder}, or a path below it|there is no"):
        change_parameters(root / "params.yaml", dict([parse_setting(setting)]))
