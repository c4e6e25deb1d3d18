"""The legacy mode: metadata in ZooKeeper, with Kafka's names of before 4.0."""

from __future__ import annotations

from typing import Final

from ottla.node.config.tables.config_def import (
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
    key,
    table,
)

METADATA_STORE: Final = "metadata.store"
QUORUM: Final = "quorum"
ZOOKEEPER_STORE: Final = "zookeeper"

# fmt: off
ZOOKEEPER: Final[dict[str, ConfigKey]] = table(
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
    key("zookeeper.ssl.client.enable", BOOLEAN, False, MEDIUM,
        "Legacy: whether to connect to ZooKeeper by TLS.", internal=True),
    key("zookeeper.ssl.truststore.location", STRING, None, MEDIUM,
        "Legacy: a PEM file with the certificates that ZooKeeper's are checked against.", internal=True),
    key("zookeeper.ssl.keystore.location", STRING, None, MEDIUM,
        "Legacy: a PEM file with the certificate and the key that ZooKeeper is shown.", internal=True),
    key("zookeeper.ssl.keystore.password", PASSWORD, None, MEDIUM,
        "Legacy: the password of the key in zookeeper.ssl.keystore.location.", internal=True),
)
# fmt: on
