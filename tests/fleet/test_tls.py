"""A fleet on loopback that talks by TLS: who has no certificate of its own is not answered."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fewtune.errors import MachineError
from fewtune.fleet.cluster import fleet_fingerprint
from fewtune.fleet.runner import on_fleet
from fewtune.machine.fingerprint import FingerprintOptions
from fewtune.options import TuneOptions
from fewtune.tuning.tune import run_session
from tests import tuned_tiny
from tests.fleet.fleet_cluster import cluster

pytestmark = pytest.mark.slow

OPTIONS = TuneOptions(trials_per_task=2, batch_size=2, least_gain=0.0)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate that signs itself: authority, server and client in one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fleet")])
    today = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    own_key, own = folder / "key.pem", folder / "certificate.pem"
    own_key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    own.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return own_key, own


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


def settings(own: Path | None, key: Path | None) -> dask.config.set:
    """The settings that docs/devices.md gives by the environment."""
    paths = {"ca-file": own, "client.cert": own, "client.key": key}
    return dask.config.set(
        {f"distributed.comm.tls.{name}": path and str(path) for name, path in paths.items()}
    )


@pytest.fixture(scope="module")
def at(files: tuple[Path, Path]) -> Iterator[str]:
    key, own = (str(each) for each in files)
    options = ["--tls-ca-file", own, "--tls-cert", own, "--tls-key", key]
    with settings(files[1], files[0]), cluster(1, options) as address:
        yield address


def test_a_network_is_tuned_by_tls(at: str, tmp_path: Path) -> None:
    assert at.startswith("tls://")
    own = fleet_fingerprint(FingerprintOptions(device=at))
    task = tuned_tiny.convolutions()["a"]
    journals = tmp_path / "journals"
    journals.mkdir()
    run_session([task], [task.info.name], own, OPTIONS, journals, run=on_fleet)
    (path,) = journals.glob("*.jsonl")
    assert path.read_text().count('"kind":"batch"') == 1


def test_a_client_without_a_certificate_is_told(at: str) -> None:
    with (
        settings(None, None),
        pytest.raises(MachineError, match="is reached by TLS, and no certificate is set"),
    ):
        fleet_fingerprint(FingerprintOptions(device=at))
