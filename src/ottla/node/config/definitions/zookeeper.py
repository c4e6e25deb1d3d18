"""The legacy mode: metadata in ZooKeeper, with Kafka's names of before 4.0."""

from __future__ import annotations

from typing import Final

from ottla.node.config.definitions.config_def import (
    BOOLEAN,
    HIGH,
    INT,
    LOW,
    MEDIUM,
    PASSWORD,
    STRING,
    ConfigKey,
    InRange,
    ValidString,
    config_def,
    key,
)

METADATA_STORE: Final = "metadata.store"
QUORUM: Final = "quorum"
ZOOKEEPER_STORE: Final = "zookeeper"

# fmt: off
ZOOKEEPER: Final[dict[str, ConfigKey]] = config_def(
    key(METADATA_STORE, STRING, QUORUM, LOW,
        "Where the cluster keeps its metadata: quorum, or (legacy) zookeeper, as Kafka did before 4.0.",
        ValidString((QUORUM, ZOOKEEPER_STORE)), internal=True),
    key("zookeeper.connect", STRING, "", HIGH,
        "Legacy: the ZooKeeper servers, as host:port,host:port/chroot. For metadata.store=zookeeper.",
        internal=True),
    key("zookeeper.session.timeout.ms", INT, 18_000, HIGH,
        "Legacy: after this time without word of a broker ZooKeeper ends its session, and others take over.",
        InRange(1), internal=True),
    key("zookeeper.connection.timeout.ms", INT, None, HIGH,
        "Legacy: how long a start waits for ZooKeeper; zookeeper.session.timeout.ms when unset.",
        InRange(1), internal=True),
    key("zookeeper.set.acl", BOOLEAN, False, HIGH,
        "Legacy: whether only the login of the brokers may change the znodes that they create, and read "
        "those with passwords.", internal=True),
    key("zookeeper.login.scheme", STRING, None, MEDIUM,
        "Legacy: how to log in at ZooKeeper: digest (its own), sasl-digest (DIGEST-MD5) or kerberos.",
        internal=True),
    key("zookeeper.login.user", STRING, None, MEDIUM,
        "Legacy: the user that logs in at ZooKeeper.", internal=True),
    key("zookeeper.login.password", PASSWORD, None, MEDIUM,
        "Legacy: the password of zookeeper.login.user.", internal=True),
    key("zookeeper.jaas.file", STRING, None, MEDIUM,
        "Legacy: a JAAS file with the login at ZooKeeper, as Java's java.security.auth.login.config.",
        internal=True),
    key("zookeeper.sasl.clientconfig", STRING, "Client", LOW,
        "Legacy: the section of zookeeper.jaas.file that is for ZooKeeper.", internal=True),
    key("zookeeper.clientCnxnSocket", STRING, None, MEDIUM,
        "Legacy: Kafka's class for connections to ZooKeeper; for TLS it is that of Netty. It chooses nothing "
        "here.", internal=True),
    key("zookeeper.ssl.client.enable", BOOLEAN, False, MEDIUM,
        "Legacy: whether to connect to ZooKeeper by TLS.", internal=True),
    key("zookeeper.ssl.truststore.location", STRING, None, MEDIUM,
        "Legacy: the certificates that ZooKeeper's is checked against, in PEM, JKS or PKCS12; those of the "
        "system when unset.", internal=True),
    key("zookeeper.ssl.truststore.password", PASSWORD, None, MEDIUM,
        "Legacy: the password of zookeeper.ssl.truststore.location.", internal=True),
    key("zookeeper.ssl.truststore.type", STRING, None, MEDIUM,
        "Legacy: PEM, JKS or PKCS12; found out when unset.", internal=True),
    key("zookeeper.ssl.keystore.location", STRING, None, MEDIUM,
        "Legacy: the certificate and the key that ZooKeeper is shown, in PEM, JKS or PKCS12.", internal=True),
    key("zookeeper.ssl.keystore.password", PASSWORD, None, MEDIUM,
        "Legacy: the password of zookeeper.ssl.keystore.location, and of its key.", internal=True),
    key("zookeeper.ssl.keystore.type", STRING, None, MEDIUM,
        "Legacy: PEM, JKS or PKCS12; found out when unset.", internal=True),
    key("zookeeper.ssl.protocol", STRING, None, LOW,
        "Legacy: the newest version of TLS with ZooKeeper.", internal=True),
    key("zookeeper.ssl.enabled.protocols", STRING, None, LOW,
        "Legacy: the versions of TLS with ZooKeeper, comma separated.", internal=True),
    key("zookeeper.ssl.cipher.suites", STRING, None, LOW,
        "Legacy: the cipher suites of TLS with ZooKeeper, comma separated.", internal=True),
    key("zookeeper.ssl.endpoint.identification.algorithm", STRING, "HTTPS", LOW,
        "Legacy: HTTPS, or nothing to trust every host name of ZooKeeper.", internal=True),
    key("zookeeper.ssl.crl.enable", BOOLEAN, False, LOW, "Legacy: not supported.", internal=True),
    key("zookeeper.ssl.ocsp.enable", BOOLEAN, False, LOW, "Legacy: not supported.", internal=True),
)
# fmt: on
