"""Key material as users of Kafka have it: PEM, PKCS12 and JKS, with the tools that make them."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.runtime.disk import RealDisk
from ottla.runtime.runtime import Runtime
from ottla.security.tls import jks
from ottla.security.tls.authority import IssuedCertificate
from ottla.security.tls.ciphers import openssl_name
from ottla.security.tls.context import TlsMaterial, client_context, server_context
from ottla.security.tls.errors import TlsError
from ottla.security.tls.material import load_identity, load_trusted
from ottla.security.tls.settings import StoreSettings, TlsSettings, client_tls_settings, tls_settings
from tests.support import certificates

PASSWORD = "changeit"
KEY_PASSWORD = "another one"
KEYTOOL = shutil.which("keytool")


def truststore(path: Path, password: str | None = PASSWORD) -> StoreSettings:
    return StoreSettings("truststore", location=str(path), password=password)


def keystore(path: str, **more: str) -> StoreSettings:
    return StoreSettings("keystore", location=path, **more)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PKCS12 store of ours, and what keytool makes of it."""
    if KEYTOOL is None:
        pytest.skip("there is no keytool")
    directory = tmp_path_factory.mktemp("stores")
    (directory / "own.p12").write_bytes(certificates.server_certificate().pkcs12(PASSWORD))
    certificates.write_ca(directory)
    common = ["-noprompt", "-storepass", PASSWORD]
    to_jks = ["-deststoretype", "JKS", "-deststorepass", PASSWORD, "-srcstorepass", PASSWORD]
    change_key = ["-keypasswd", "-keystore", "own.jks", "-alias", "key"]
    import_ca = ["-importcert", "-alias", "ca", "-file", "ca.crt", "-keystore"]
    java = ["-J-XX:TieredStopAtLevel=1"]
    for arguments in (
        ["-importkeystore", "-srckeystore", "own.p12", "-destkeystore", "own.jks", *to_jks, "-noprompt"],
        [*change_key, "-keypass", PASSWORD, "-new", KEY_PASSWORD, "-storepass", PASSWORD],
        [*import_ca, "trust.jks", "-storetype", "JKS", *common],
        [*import_ca, "trust.p12", *common],
    ):
        command = [KEYTOOL, *java, *arguments]
        subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    return directory


@pytest.mark.slow
def test_stores_of_keytool_are_read(stores: Path) -> None:
    disk = RealDisk()
    expected = certificates.server_certificate()
    for name, settings in (
        ("own.p12", {"password": PASSWORD}),
        ("own.jks", {"password": PASSWORD, "key_password": KEY_PASSWORD}),
    ):
        found = load_identity(disk, keystore(str(stores / name), **settings))
        assert found is not None, name
        assert found.certificate == expected.certificate, name
        assert found.chain[1] == certificates.authority().certificate, name
        assert PASSWORD not in repr(keystore(str(stores / name), **settings))
    for name in ("trust.jks", "trust.p12"):
        trusted = load_trusted(
            disk, StoreSettings("truststore", location=str(stores / name), password=PASSWORD)
        )
        assert trusted == [certificates.authority().certificate], name
    # As in Java, the certificates of a JKS store can be read without its password.
    assert load_trusted(disk, truststore(stores / "trust.jks", None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("own.p12", {"password": "secret1"}, "password of the store is wrong"),
        ("own.p12", {}, r"set ssl\.keystore\.password"),
        ("own.jks", {"password": "secret1"}, "password of the store is wrong"),
        ("own.jks", {"password": PASSWORD}, r"is ssl\.key\.password right\?"),
        ("trust.jks", {"password": PASSWORD}, "no private key"),
        ("own.jks", {"password": PASSWORD, "type": "PEM"}, "it looks like JKS, and ssl.keystore.type is PEM"),
    ],
)
def test_a_store_that_cannot_be_opened_is_named_without_its_password(
    stores: Path, name: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(TlsError, match=message) as raised:
        load_identity(RealDisk(), keystore(str(stores / name), **settings))
    assert "secret1" not in str(raised.value)
    assert name in str(raised.value)


@pytest.mark.slow
def test_a_damaged_jks_store_is_refused_at_every_byte(stores: Path) -> None:
    data = (stores / "own.jks").read_bytes()
    for end in range(0, len(data), 97):
        with pytest.raises(TlsError):
            jks.read(data[:end], PASSWORD, "own.jks")
        with pytest.raises(TlsError):
            jks.read(data[:end], None, "own.jks")


@pytest.mark.slow
def test_a_trust_store_does_not_trust_the_chain_of_a_key(stores: Path) -> None:
    with pytest.raises(TlsError, match="no trusted certificates"):
        load_trusted(
            RealDisk(), StoreSettings("truststore", location=str(stores / "own.p12"), password=PASSWORD)
        )


class TestPem:
    def test_a_file_with_key_and_chain(self, tmp_path: Path) -> None:
        path = certificates.write_pem(tmp_path, "own", certificates.server_certificate())
        found = load_identity(RealDisk(), keystore(path))
        assert found is not None
        assert found.certificate == certificates.server_certificate().certificate

    @pytest.mark.parametrize(
        "change", [str, lambda text: " ".join(text.split("\n"))], ids=["lines", "one line"]
    )
    def test_texts_in_settings(self, change: Callable[[str], str]) -> None:
        issued = certificates.server_certificate()
        settings = tls_settings(
            {
                "ssl.keystore.key": change(issued.key_pem(KEY_PASSWORD)),
                "ssl.key.password": KEY_PASSWORD,
                "ssl.keystore.certificate.chain": change(issued.chain_pem()),
                "ssl.truststore.certificates": change(certificates.authority().certificate_pem()),
            }.get,
            is_set=lambda _: False,
        )
        material = TlsMaterial.load(RealDisk(), settings)
        assert material.identity is not None
        assert material.trusted == [certificates.authority().certificate]
        server_context(settings, material)
        for secret in (KEY_PASSWORD, "PRIVATE KEY"):
            assert secret not in repr(settings)

    def test_an_encrypted_key_needs_its_password(self, tmp_path: Path) -> None:
        path = certificates.write_pem(tmp_path, "own", certificates.server_certificate(), KEY_PASSWORD)
        assert load_identity(RealDisk(), keystore(path, key_password=KEY_PASSWORD)) is not None
        with pytest.raises(TlsError, match=r"encrypted; set ssl\.key\.password"):
            load_identity(RealDisk(), keystore(path))
        with pytest.raises(TlsError, match="cannot be decrypted") as raised:
            load_identity(RealDisk(), keystore(path, key_password="secret2"))
        assert "secret2" not in str(raised.value)

    def test_a_key_that_is_not_that_of_the_certificate_is_refused(self) -> None:
        store = StoreSettings(
            "keystore",
            key=certificates.client_certificate().key_pem(),
            certificates=certificates.server_certificate().chain_pem(),
        )
        with pytest.raises(TlsError, match="not that of the first certificate"):
            load_identity(RealDisk(), store)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ssl.enabled.protocols": "TLSv1.4"}, "TLSv1.4 is not known"),
        ({"ssl.protocol": "SSLv3"}, "SSLv3 is not known"),
        ({"ssl.keystore.type": "BKS"}, "BKS is not supported"),
        ({"ssl.engine.factory.class": "com.corp.Factory"}, "names a Java class"),
        ({"ssl.endpoint.identification.algorithm": "LDAPS"}, "is not known"),
        ({"ssl.keystore.location": "/x", "ssl.keystore.key": "y"}, "give one of them"),
        ({"ssl.truststore.type": "PEM", "ssl.truststore.password": "secret3"}, "cannot be specified"),
        ({"ssl.ca.location": "/x", "ssl.truststore.location": "/y"}, "mean the same"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(TlsError, match=message) as raised:
        client_tls_settings(values)
    assert "secret3" not in str(raised.value)


def test_protocols_and_cipher_suites_are_those_of_the_settings() -> None:
    def context(**values: str) -> ssl.SSLContext:
        settings = client_tls_settings({name.replace("_", "."): value for name, value in values.items()})
        return client_context(settings, TlsMaterial(None, None))

    assert context().minimum_version is ssl.TLSVersion.TLSv1_2
    assert context(ssl_protocol="TLSv1.2").maximum_version is ssl.TLSVersion.TLSv1_2
    assert context(ssl_enabled_protocols="TLSv1.3").minimum_version is ssl.TLSVersion.TLSv1_3
    one = context(ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")
    assert one.maximum_version is ssl.TLSVersion.TLSv1_2
    names = {each["name"] for each in one.get_ciphers() if each["protocol"] == "TLSv1.2"}
    assert names == {"ECDHE-ECDSA-AES256-GCM-SHA384"}
    with pytest.raises(TlsError, match="TLS_RSA_WITH_NULL_SHA is not known"):
        context(ssl_cipher_suites="TLS_RSA_WITH_NULL_SHA")
    assert openssl_name("TLS_DHE_RSA_WITH_AES_128_CBC_SHA256") == "DHE-RSA-AES128-SHA256"
    assert context(ssl_endpoint_identification_algorithm="").check_hostname is False
    assert context().check_hostname is True


def test_a_listener_needs_a_certificate() -> None:
    store = StoreSettings("keystore")
    with pytest.raises(TlsError, match=r"set ssl\.keystore\.location"):
        server_context(TlsSettings(store, StoreSettings("truststore")), TlsMaterial(None, None))


def test_a_client_reads_changed_files_for_its_next_connection(tmp_path: Path) -> None:
    from ottla.security.clients.client_security import ClientSecurity
    from ottla.security.clients.settings import SecuritySettings

    path = Path(certificates.write_pem(tmp_path, "alice", certificates.client_certificate()))
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.location": certificates.write_ca(tmp_path),
        "ssl.certificate.location": str(path),
        "ssl.key.location": str(path),
    }
    client = ClientSecurity(Runtime.real(pool_workers=1), SecuritySettings.of(settings))
    first = client.tls()
    assert first is not None
    assert client.tls() is first
    certificates.write_pem(tmp_path, "alice", certificates.client_certificate("CN=alice,O=Renewed"))
    os.utime(path, ns=(1, 1))
    second = client.tls()
    assert second is not first
    path.write_text("half of it")
    os.utime(path, ns=(2_000_000, 2_000_000))
    assert client.tls() is second


def test_the_certificate_of_a_user_is_not_one_of_a_server() -> None:
    from cryptography.x509 import ExtendedKeyUsage
    from cryptography.x509.oid import ExtendedKeyUsageOID

    def usages(issued: IssuedCertificate) -> set[object]:
        return set(issued.certificate.extensions.get_extension_for_class(ExtendedKeyUsage).value)

    assert usages(certificates.client_certificate()) == {ExtendedKeyUsageOID.CLIENT_AUTH}
    both = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert usages(certificates.server_certificate()) == both
