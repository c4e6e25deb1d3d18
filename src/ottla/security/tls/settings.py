"""The settings of TLS, as Kafka's `ssl.*`, for a listener or for connections to one.

Names and defaults are those of Kafka's Java client. `CLIENT_NAMES` are those of librdkafka, which the Python
clients accept too; `of_librdkafka` has what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.security.tls.errors import TlsError

KNOWN_PROTOCOLS: Final = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
DEFAULT_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
CLIENT_AUTH: Final = ("none", "requested", "required")
STORE_TYPES: Final = ("JKS", "PKCS12", "PEM")
PEM_HAS_NO_PASSWORD: Final = (
    "ssl.{store}.password cannot be specified for a store of type PEM; an encrypted key has its password in "
    "ssl.key.password"
)

# Settings of Kafka's Java client that choose parts of Java; they have no meaning here and do no harm.
JAVA_ONLY: Final = frozenset(
    (
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    )
)
JAVA_NAMES: Final = frozenset(
    (
        *JAVA_ONLY,
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.engine.factory.class",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.protocol",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    )
)
LIBRDKAFKA_NAMES: Final = frozenset(
    (
        "enable.ssl.certificate.verification",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.crl.location",
        "ssl.key.location",
        "ssl.key.pem",
    )
)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """A key store or a trust store: a file, or the PEM text itself. An empty `type` is found out."""

    name: str
    type: str = ""
    location: str | None = None
    password: str | None = field(default=None, repr=False)
    certificates: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    # librdkafka has a file for the key alone, beside that of the certificates.
    key_location: str | None = None

    @property
    def is_given(self) -> bool:
        return any(each is not None for each in (self.location, self.certificates, self.key))


@dataclass(frozen=True, slots=True)
class TlsSettings:
    keystore: StoreSettings
    truststore: StoreSettings
    enabled_protocols: tuple[str, ...] = DEFAULT_PROTOCOLS
    cipher_suites: tuple[str, ...] = ()
    client_auth: str = "none"
    verifies_host_name: bool = True
    verifies_certificate: bool = True
    crl_location: str | None = None
    principal_mapping_rules: str = "DEFAULT"


def tls_settings(get: Callable[[str], object], *, is_set: Callable[[str], bool]) -> TlsSettings:
    """Read the settings by the names of Kafka's Java client: `get` has the value of a name, its default if it
    was not set. TlsError for values that cannot be used.
    """
    if _text(get("ssl.engine.factory.class")):
        raise TlsError(
            "ssl.engine.factory.class is not supported: it names a Java class; use ssl.keystore.* and "
            "ssl.truststore.*"
        )
    protocols = _names(get("ssl.enabled.protocols")) or DEFAULT_PROTOCOLS
    for protocol in protocols:
        if protocol not in KNOWN_PROTOCOLS:
            raise TlsError(
                f"ssl.enabled.protocols: {protocol} is not known; use some of {', '.join(KNOWN_PROTOCOLS)}"
            )
    newest = _text(get("ssl.protocol")) or "TLSv1.3"
    if newest in KNOWN_PROTOCOLS:
        # As in Java, a context of an older protocol does not offer the newer ones.
        at_most = KNOWN_PROTOCOLS.index(newest)
        protocols = tuple(each for each in protocols if KNOWN_PROTOCOLS.index(each) <= at_most)
        if not protocols:
            raise TlsError(f"ssl.protocol={newest} is older than all of ssl.enabled.protocols")
    elif newest != "TLS":
        raise TlsError(f"ssl.protocol: {newest} is not known; use TLSv1.3")
    identification = (_text(get("ssl.endpoint.identification.algorithm")) or "").lower()
    if identification not in ("", "none", "https"):
        raise TlsError(
            f"ssl.endpoint.identification.algorithm: {identification} is not known; use https, or nothing to "
            "trust every host name"
        )
    client_auth = (_text(get("ssl.client.auth")) or "none").lower()
    if client_auth not in CLIENT_AUTH:
        raise TlsError(f"ssl.client.auth: {client_auth} is none of {', '.join(CLIENT_AUTH)}")
    return TlsSettings(
        keystore=_store("keystore", get, is_set),
        truststore=_store("truststore", get, is_set),
        enabled_protocols=protocols,
        cipher_suites=_names(get("ssl.cipher.suites")),
        client_auth=client_auth,
        verifies_host_name=identification == "https",
        principal_mapping_rules=_text(get("ssl.principal.mapping.rules")) or "DEFAULT",
    )


def client_tls_settings(values: Mapping[str, str]) -> TlsSettings:
    """Read the settings of a client, by the names of Kafka's Java client or of librdkafka."""
    java, verifies, crl = _of_librdkafka(values)
    defaults: dict[str, object] = {"ssl.endpoint.identification.algorithm": "https"}
    settings = tls_settings(lambda name: java.get(name, defaults.get(name)), is_set=java.__contains__)
    key_location = values.get("ssl.key.location")
    keystore = settings.keystore
    if key_location is not None:
        keystore = StoreSettings(
            keystore.name,
            "PEM",
            keystore.location,
            certificates=keystore.certificates,
            key=keystore.key,
            key_password=keystore.key_password,
            key_location=key_location,
        )
    return TlsSettings(
        keystore=keystore,
        truststore=settings.truststore,
        enabled_protocols=settings.enabled_protocols,
        cipher_suites=settings.cipher_suites,
        verifies_host_name=settings.verifies_host_name and verifies,
        verifies_certificate=verifies,
        crl_location=crl,
    )


def _of_librdkafka(values: Mapping[str, str]) -> tuple[dict[str, str], bool, str | None]:
    """The settings by Java's names, whether certificates are verified, and the file of a CRL."""
    java = {name: value for name, value in values.items() if name not in LIBRDKAFKA_NAMES}
    for theirs, ours, type in (
        ("ssl.ca.location", "ssl.truststore.location", "ssl.truststore.type"),
        ("ssl.ca.pem", "ssl.truststore.certificates", "ssl.truststore.type"),
        ("ssl.certificate.location", "ssl.keystore.location", "ssl.keystore.type"),
        ("ssl.certificate.pem", "ssl.keystore.certificate.chain", "ssl.keystore.type"),
        ("ssl.key.pem", "ssl.keystore.key", "ssl.keystore.type"),
    ):
        value = values.get(theirs)
        if value is None or (theirs == "ssl.ca.location" and value.strip().lower() == "probe"):
            continue
        if ours in java:
            raise TlsError(f"{theirs} and {ours} mean the same; give one of them")
        java[ours] = value
        java[type] = "PEM"
    text = values.get("enable.ssl.certificate.verification", "true").strip().lower()
    if text not in ("true", "false"):
        raise TlsError(f"enable.ssl.certificate.verification={text} is not true or false")
    return java, text == "true", values.get("ssl.crl.location")


def _store(kind: str, get: Callable[[str], object], is_set: Callable[[str], bool]) -> StoreSettings:
    type_name = f"ssl.{kind}.type"
    type = (_text(get(type_name)) or "").upper() if is_set(type_name) else ""
    if type and type not in STORE_TYPES:
        raise TlsError(f"{type_name}: {type} is not supported; use one of {', '.join(STORE_TYPES)}")
    is_key_store = kind == "keystore"
    store = StoreSettings(
        kind,
        type,
        location=_text(get(f"ssl.{kind}.location")),
        password=_text(get(f"ssl.{kind}.password")),
        certificates=_text(
            get("ssl.keystore.certificate.chain" if is_key_store else "ssl.truststore.certificates")
        ),
        key=_text(get("ssl.keystore.key")) if is_key_store else None,
        key_password=_text(get("ssl.key.password")) if is_key_store else None,
    )
    _check_store(store)
    return store


def _check_store(store: StoreSettings) -> None:
    """As Kafka checks it: PEM text excludes a file, and a PEM file has no password of its own."""
    inline = "ssl.keystore.key and ssl.keystore.certificate.chain"
    if store.name == "truststore":
        inline = "ssl.truststore.certificates"
    if (store.key is not None or store.certificates is not None) and store.location is not None:
        raise TlsError(f"Both ssl.{store.name}.location and {inline} are set; give one of them")
    if store.type not in ("", "PEM") and (store.key is not None or store.certificates is not None):
        raise TlsError(f"ssl.{store.name}.type is {store.type}, and {inline} need PEM")
    if store.type == "PEM" and store.password is not None:
        raise TlsError(PEM_HAS_NO_PASSWORD.format(store=store.name))


def _text(value: object) -> str | None:
    """A setting's text; None if it is not set or empty."""
    return str(value) if value is not None and str(value) != "" else None


def _names(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    parts: Iterable[str] = value.split(",") if isinstance(value, str) else value  # type: ignore[assignment]
    return tuple(part.strip() for part in parts if part.strip())
