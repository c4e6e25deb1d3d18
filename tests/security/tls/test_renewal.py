"""Certificates that are renewed while a node runs: by a changed file, and by a change of settings."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.admin.configs import ResourceType
from ottla.client.blocking import Admin, Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.disk import File, RealDisk
from ottla.security.tls.authority import CertificateAuthority
from ottla.security.tls.expiry import DAY_MS, ExpiryWarnings, describe
from ottla.security.tls.settings import client_tls_settings
from ottla.security.tls.ssl_factory import RenewalRules, SslFactory
from ottla.testing.local_node import LocalNode
from tests.support import certificates
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("renewal")


@pytest.fixture(scope="module")
def node(directory: Path) -> Iterator[LocalNode]:
    settings = certificates.server_settings(directory)
    certificates.write_pem(directory, "first", certificates.server_certificate())
    with LocalNode(
        {**settings, "listener.name.ssl.ssl.keystore.location": str(directory / "first.pem")}
    ) as node:
        yield node


def client(node: LocalNode, directory: Path) -> dict[str, str]:
    return {
        "bootstrap.servers": node.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.ca.location": str(directory / "ca.crt"),
    }


def serial(node: LocalNode) -> int:
    """The serial number of the certificate that the node shows to a new connection."""
    from cryptography.x509 import load_pem_x509_certificate

    pem = ssl.get_server_certificate(("127.0.0.1", node.port))
    return load_pem_x509_certificate(pem.encode()).serial_number


def renew(path: Path, name: str = "CN=localhost,O=Ottla", by: CertificateAuthority | None = None) -> int:
    """Put a new certificate in the place of a file, as a tool of operators does."""
    issued = (by or certificates.authority()).issue(
        name, certificates.now_ms(), hosts=("localhost", "127.0.0.1", "::1")
    )
    written = certificates.write_pem(path.parent, f"{path.stem}-new", issued)
    os.replace(written, path)
    return issued.certificate.serial_number


class RenewingDisk(RealDisk):
    """A disk on which a file is renewed, once, while it is being read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.renewed: int | None = None

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True
    ) -> File:
        file = super().open(path, create=create, exclusive=exclusive, writable=writable)
        if path == str(self._path) and self.renewed is None:
            self.renewed = renew(self._path)
            os.utime(self._path, (1e9, 1e9))
        return file


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = Path(certificates.write_pem(tmp_path, "node", certificates.server_certificate()))
    settings = client_tls_settings({"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)})
    factory = SslFactory.load(RealDisk(), "SSL", settings, listens=True, is_inter_broker=False)
    renew(path)
    disk = RenewingDisk(path)
    factory.adopt(factory.renewed(disk, settings, RenewalRules()))
    assert disk.renewed is not None
    assert factory.is_outdated(disk, settings)
    factory.adopt(factory.renewed(disk, settings, RenewalRules()))
    assert factory.material.identity is not None
    assert factory.material.identity.certificate.serial_number == disk.renewed
    assert not factory.is_outdated(disk, settings)


@pytest.mark.slow
def test_a_changed_file_is_used_for_new_connections_and_no_request_fails(
    node: LocalNode, directory: Path
) -> None:
    stop = threading.Event()
    sent: list[int] = []
    failed: list[BaseException] = []

    def load() -> None:
        try:
            while not stop.is_set():
                with Producer(client(node, directory), linger_ms=0) as producer:
                    sent.extend(producer.send("orders", b"x").offset for _ in range(20))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        wait_until(lambda: bool(sent) or bool(failed), "nothing was sent")
        for _ in range(2):
            expected = renew(directory / "first.pem")
            wait_until(lambda: serial(node) == expected, "the new certificate is not shown")  # noqa: B023
        before = len(sent)
        wait_until(lambda: len(sent) > before + 40 or bool(failed), "no more was sent")
    finally:
        stop.set()
        thread.join()
    assert not failed, failed
    assert sent == list(range(len(sent)))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_file_that_cannot_be_used_leaves_the_old_certificate(
    node: LocalNode, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used = serial(node)
    good = (directory / "first.pem").read_text()
    with caplog.at_level(logging.ERROR, "ottla.node.network.node_security"):
        for text, why in (
            ("secret nonsense", "there is no private key"),
            (good.replace("BEGIN CERTIFICATE", "BEGIN PUBLIC"), "there is no certificate"),
        ):
            (directory / "first.pem").write_text(text)
            wait_until(lambda: why in caplog.text, f"not logged: {why}")  # noqa: B023
        renew(directory / "first.pem", by=CertificateAuthority.create("CN=other", certificates.now_ms()))
        wait_until(lambda: "could not connect" in caplog.text, "it was not refused")
    assert serial(node) == used
    assert "secret" not in caplog.text
    expected = renew(directory / "first.pem")
    wait_until(lambda: serial(node) == expected, "the new certificate is not shown")


def test_settings_are_checked_and_then_used(node: LocalNode, directory: Path) -> None:
    name = "listener.name.ssl.ssl.keystore.location"
    other = directory / "other-name.pem"
    renew(other, "CN=someone else")
    second = directory / "second.pem"
    expected = renew(second)
    with Admin(client(node, directory)) as admin:
        broker = str(next(iter(admin.cluster.describe().brokers)).node_id)
        wrong = ((other, "DistinguishedName does not match"), (directory / "none", "cannot be read"))
        for path, why in wrong:
            with pytest.raises(KafkaError, match=why):
                admin.configs.alter(ResourceType.BROKER, broker, set={name: str(path)})
        admin.configs.alter(ResourceType.BROKER, broker, set={name: str(second)})
        wait_until(lambda: serial(node) == expected, "the new certificate is not shown")


@pytest.mark.parametrize("kind", ["PKCS12", "PEM"])
def test_a_wrong_password_of_a_store_is_refused_before_it_is_stored(kind: str, tmp_path: Path) -> None:
    """Also where the password of the key would open the store, and where its type is not given."""
    settings = certificates.server_settings(tmp_path)
    del settings["ssl.keystore.type"]
    if kind == "PKCS12":
        store = tmp_path / "own.p12"
        store.write_bytes(certificates.server_certificate().pkcs12("right"))
        settings |= {
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": "right",
            "ssl.key.password": "right",
        }
    name = "listener.name.ssl.ssl.keystore.password"
    with LocalNode(settings) as node, Admin(client(node, tmp_path)) as admin:
        broker = str(next(iter(admin.cluster.describe().brokers)).node_id)
        with pytest.raises(KafkaError, match="dynamic config update of SSLFactory failed") as refused:
            admin.configs.alter(ResourceType.BROKER, broker, set={name: "SEKRET"})
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert "SEKRET" not in str(refused.value)
        assert name not in admin.configs.describe(ResourceType.BROKER, broker)


@pytest.mark.parametrize(
    ("days", "word"), [(31, None), (29, "expires on"), (0.5, "expires on"), (-1, "has expired on")]
)
def test_the_end_of_a_certificate_is_warned_of_in_time_and_once(days: float, word: str | None) -> None:
    issued = certificates.authority().issue("CN=x", certificates.now_ms(), days=days)
    warnings, now_ms = ExpiryWarnings(), certificates.now_ms()
    line = warnings.warning("listener SSL", describe(issued.certificate), now_ms)
    assert (line is None) == (word is None)
    if line is not None and word is not None:
        assert word in line
        assert warnings.warning("listener SSL", describe(issued.certificate), now_ms) is None
        assert (
            warnings.warning("listener SSL", describe(issued.certificate), now_ms + 30 * DAY_MS) is not None
        )
