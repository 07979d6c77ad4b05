"""Malformed models through the check: a sample of each kind, in forks of a process of its own."""

import json
import subprocess
import sys

import pytest

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
    command = [sys.executable, "-m", "benchmarks.malformed_models", "--case", *SAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == {"models": len(SAMPLE), "faults": 0}, done.stdout
