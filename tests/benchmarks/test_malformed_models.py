"""Malformed models through the check: a sample of each kind, in forks of a process of its own."""

import json
import subprocess
import sys

import pytest

from benchmarks.malformed_models import Case, cases, judged

SAMPLE = [
    "empty_file",
    "cut_at_50",
    "a_pipe",
    "no_opset",
    "cycle",
    "input_twice",
    "opset_999",
    "mutual_recursion",
    "endless_loop",
    "huge_pad",
    "unknown_type",
    "strings",
    "nan_weight",
    "zero_stride",
    "data_short",
    "data_link",
    "data_nul",
]


@pytest.mark.slow
def test_a_sample_ends_with_a_sentence_and_a_documented_code():
    command = [sys.executable, "-m", "benchmarks.malformed_models", "--warm", "--case", *SAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == {"models": len(SAMPLE), "as they should": len(SAMPLE), "faults": 0}, (
        done.stdout
    )


def test_every_malformed_model_has_a_name_of_its_own():
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) >= 60
    assert set(SAMPLE) <= set(names)


@pytest.mark.parametrize(
    ("code", "output", "errors", "fault"),
    [
        (2, '{"ok": false, "reason": "no such file"}', "", ""),
        (0, '{"ok": true, "reason": null}', "", "was accepted"),
        (-11, "", "", "ended by signal 11"),
        (1, "", "Traceback", "ended with 1, which is not documented"),
        (2, '{"ok": false, "reason": "x"}', "Traceback (most", "printed a traceback"),
        (2, "", "", "printed no JSON"),
        (2, '{"ok": false, "reason": " "}', "", "gave no reason of one line"),
        (2, '{"ok": true, "reason": null}', "", "ended with 2, but says ok: True"),
    ],
)
def test_an_ending_is_judged(code, output, errors, fault):
    case = Case("any", lambda folder: folder)
    assert judged(case, code, output, errors).fault == fault
