"""Devices: which one a fingerprint is of, what it can do, and what never mixes."""

import json

import pytest

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError, MachineError
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.board import Board
from fewtune.measure.device import Here, device_of
from fewtune.storage.database import log_info
from tests import tuned_tiny

ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": 4}


def board() -> Fingerprint:
    fields = tuned_tiny.fingerprint().model_dump()
    return Fingerprint(
        **{**fields, "device": "pi", "target": json.dumps(ARM), "at": "rpc://tracker:9190/pi"}
    )


def test_a_fingerprint_does_not_depend_on_the_way_to_its_device():
    own = tuned_tiny.fingerprint()
    assert Fingerprint.model_validate(own.model_dump(mode="json")) == own
    # What a figure depends on is the device, not the way to it.
    assert own.identity() == own.model_copy(update={"at": "tcp://elsewhere:8786"}).identity()


def test_each_kind_says_what_it_cannot_do():
    here, there = device_of(tuned_tiny.fingerprint()), device_of(board())
    assert isinstance(here, Here)
    assert here.can.shared_cores
    assert isinstance(there, Board)
    assert not there.can.shared_cores


def test_logs_of_a_board_are_of_another_class_and_lock():
    own, other = tuned_tiny.fingerprint(), board()
    assert log_info(own) != log_info(other)
    assert (device_of(own).lock, device_of(other).lock) == ("cpu", "rpc-tracker-9190-pi")


@pytest.mark.parametrize("device", ["rpc://host/key", "rpc://host:9190", "rpc://host:99999/key"])
def test_an_address_of_another_form_is_refused(device):
    with pytest.raises(InputError, match="rpc://HOST:9190/KEY"):
        detect_fingerprint(FingerprintOptions(device=device, target=json.dumps(ARM)))


def test_a_board_needs_a_target_and_a_linker():
    with pytest.raises(InputError, match="as JSON"):
        detect_fingerprint(FingerprintOptions(device="rpc://host:9190/key"))
    options = FingerprintOptions(
        device="rpc://host:9190/key", target=json.dumps(ARM), cross_compiler="no-such-compiler"
    )
    with pytest.raises(MachineError, match="no-such-compiler"):
        detect_fingerprint(options)


def test_another_architecture_without_a_device_is_refused_at_once():
    with pytest.raises(MachineError, match="aarch64 .* --device rpc://HOST:9190/KEY"):
        detect_fingerprint(FingerprintOptions(target=json.dumps(ARM)))


def test_an_unknown_kind_of_device_is_refused():
    with pytest.raises(InputError, match="give here"):
        detect_fingerprint(FingerprintOptions(device="usb:0"))
