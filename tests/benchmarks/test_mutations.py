"""Whatever is changed in a bank, a journal, a predictor or a library: it is read or refused."""

import random
from contextlib import suppress
from itertools import islice

import pytest

from benchmarks.helpers.forked import write_then
from benchmarks.helpers.mutations import NAMES, mutations
from fewtune.errors import FewtuneError
from tests import tuned_tiny

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "count"), [(0, 4), (1, 20), (2, 4), (3, 20)], ids=list(NAMES))
def test_a_mutated_file_is_read_or_refused(kind, count, tmp_path):
    log, library = tuned_tiny.tuned(), tuned_tiny.compiled() / "model.so"
    journal = min(tuned_tiny.scratch().rglob("*.jsonl"))
    kinds = mutations(log, journal, library, tuned_tiny.fingerprint(), random.Random(0))
    refused = 0
    for each in islice(kinds[kind], count):
        with suppress(FewtuneError):
            refused += 1
            write_then(tmp_path / NAMES[each.kind], each.content, each.read)()
            refused -= 1
    assert refused > count // 4
