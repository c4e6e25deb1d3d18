"""Make a certificate authority and the certificates that it issues: for `ottla secure init`, and for tests.

Keys are ECDSA over P-256, which every client of Kafka can verify and which is several times cheaper to sign
with than RSA.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
# Clocks of machines differ; a certificate is valid from a little before it was made.
_LEEWAY: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A private key, its certificate, and the certificates of those who issued it."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    chain: tuple[x509.Certificate, ...]

    @property
    def certificate(self) -> x509.Certificate:
        return self.chain[0]

    def key_pem(self, password: str | None = None) -> str:
        """The key as PKCS8, encrypted if there is a password."""
        protection: KeySerializationEncryption = NoEncryption()
        if password is not None:
            protection = BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection).decode()

    def chain_pem(self) -> str:
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in self.chain)

    def pkcs12(self, password: str, name: str = "key") -> bytes:
        """The key and the chain as a key store."""
        return pkcs12.serialize_key_and_certificates(
            name.encode(),
            self.key,
            self.certificate,
            self.chain[1:],
            BestAvailableEncryption(password.encode()),
        )


class CertificateAuthority:
    """`now_ms` is the time of the wall clock when a certificate is made."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key: Final = key
        self.certificate: Final = certificate

    @classmethod
    def create(cls, name: str, now_ms: int, *, days: int = CA_DAYS) -> CertificateAuthority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        builder = _builder(subject, subject, key, _time(now_ms) - _LEEWAY, timedelta(days=days) + _LEEWAY)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, key_pem: bytes, certificate_pem: bytes) -> CertificateAuthority:
        key = load_pem_private_key(key_pem, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the authority is not one that `ottla secure init` has made")
        return cls(key, x509.load_pem_x509_certificate(certificate_pem))

    def key_pem(self) -> str:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(
        self,
        name: str,
        now_ms: int,
        *,
        hosts: Iterable[str] = (),
        days: float = CERTIFICATE_DAYS,
        starts_in_days: float = 0,
    ) -> IssuedCertificate:
        """Issue a certificate. `name` is its common name, or a whole name as `CN=orders,O=Example`; `hosts`
        are the names and addresses by which a server is reached. Without any it is for a user, and no server.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        begin = (
            _time(now_ms) + timedelta(days=starts_in_days) - (_LEEWAY if not starts_in_days else timedelta())
        )
        end = _time(now_ms) + timedelta(days=starts_in_days + days)
        builder = _builder(_name(name), self.certificate.subject, key, min(begin, end - _LEEWAY), end=end)
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        # A node is a client of the others.
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if names:
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return IssuedCertificate(key, (certificate, self.certificate))


def _time(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms // 1000, UTC)


def _name(text: str) -> x509.Name:
    if "=" in text:
        try:
            return x509.Name.from_rfc4514_string(text)
        except ValueError:
            raise ValueError("it is no name such as CN=alice,OU=Orders,O=Example") from None
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: datetime,
    lasts: timedelta | None = None,
    *,
    end: datetime | None = None,
) -> x509.CertificateBuilder:
    if end is None:
        assert lasts is not None
        end = begin + lasts
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
