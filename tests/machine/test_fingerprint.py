"""How many threads run: what is asked for, and what the environment says."""

import pytest

from fewtune.errors import InputError
from fewtune.machine.fingerprint import FingerprintOptions
from fewtune.runtime.tvm import THREADS, set_default_threads, usable_cores
from fewtune.tvm_compat.start import OWN_THREADS


@pytest.fixture
def unset(monkeypatch):
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.delenv(OWN_THREADS, raising=False)


@pytest.mark.parametrize("given", ["0", "-1", "abc", "", "1.5", "100000"])
def test_a_number_of_threads_that_cannot_be_is_refused(given, unset, monkeypatch):
    monkeypatch.setenv(THREADS, given)
    with pytest.raises(InputError, match=f"{THREADS} is '{given}'"):
        FingerprintOptions().thread_count()


def test_a_contradiction_is_refused(unset, monkeypatch):
    monkeypatch.setenv(THREADS, "1")
    with pytest.raises(InputError, match="fingerprint.threads is 2, but TVM_NUM_THREADS is 1"):
        FingerprintOptions(threads=2).thread_count()


def test_what_the_software_sets_is_no_wish_of_the_users(unset):
    set_default_threads()
    assert FingerprintOptions(threads=1).thread_count() == 1
    assert FingerprintOptions().thread_count() == usable_cores()
