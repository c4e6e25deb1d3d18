"""Certificates and settings of a secured node or cluster on this machine, for tests and `ottla cluster up`.

    with LocalNode(security="SSL") as node:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, **node.client_settings})

With TLS a directory gets an authority of its own, a certificate that all nodes share, one of a client, and
`client.properties`. Nodes ask clients and each other for certificates (`ssl.client.auth=required`) unless
another value is given. With SASL there is one user, `client`, who logs in with PLAIN; a single node logs in
as that user too. Listeners also offer SCRAM, for users that a test adds.

The nodes of a cluster with SASL are the user `node`: among brokers with SCRAM, for which the cluster is
formatted with that user, and at controllers with PLAIN, as these must let nodes in before they have read any
metadata. Such a cluster has ACLs too: `node` and `client` are super users, and others may do what ACLs allow.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ottla.protocol.security_protocol import SecurityProtocol

CLIENT_FILE: Final = "client.properties"
SASL_USER: Final = "client"
NODE_USER: Final = "node"
NODE_MECHANISM: Final = "SCRAM-SHA-512"
_PASSWORD_FILE: Final = "password"
_NODE_PASSWORD_FILE: Final = "node-password"
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
DEFAULT_USER: Final = "CN=client,O=Ottla"
_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class LocalSecurity:
    """The security of a node or cluster on this machine: `protocol` is that of all its listeners, `user` the
    subject of the client's certificate. `write` makes the files, once.
    """

    def __init__(
        self,
        protocol: str | SecurityProtocol = SecurityProtocol.SSL,
        *,
        client_auth: str = "required",
        user: str = DEFAULT_USER,
    ) -> None:
        self.protocol: Final = SecurityProtocol[protocol] if isinstance(protocol, str) else protocol
        self._client_auth: Final = client_auth
        self._user: Final = user
        self._directory: Path | None = None

    def __repr__(self) -> str:
        return f"<LocalSecurity {self.protocol.name} in {self._directory}>"

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise RuntimeError("there are no certificates yet: start the node first")
        return self._directory

    def write(self, directory: str | Path) -> None:
        """Make the certificates and `client.properties`, unless they are there."""
        self._directory = Path(directory)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (self._directory / CLIENT_FILE).exists():
            return
        if self.protocol.tls:
            self._write_certificates()
        if self.protocol.sasl:
            write_secret(self._directory / _PASSWORD_FILE, secrets.token_urlsafe())
            write_secret(self._directory / _NODE_PASSWORD_FILE, secrets.token_urlsafe())
        lines = [f"{name}={value}\n" for name, value in self.client_settings.items()]
        write_secret(self._directory / CLIENT_FILE, "".join(lines))

    def _write_certificates(self) -> None:
        from ottla.security.tls.authority import CertificateAuthority

        now_ms = int(time.time() * 1000)
        authority = CertificateAuthority.create("CN=Ottla local CA,O=Ottla", now_ms)
        node = authority.issue("CN=node,O=Ottla", now_ms, hosts=_HOSTS)
        client = authority.issue(self._user, now_ms)
        directory = self.directory
        (directory / "ca.crt").write_text(authority.certificate_pem())
        write_secret(directory / "ca.key", authority.key_pem())
        write_secret(directory / "node.pem", node.key_pem() + node.chain_pem())
        write_secret(directory / "client.pem", client.key_pem() + client.chain_pem())

    @property
    def server_settings(self) -> dict[str, str]:
        """The settings of each node, apart from its listeners."""
        settings: dict[str, str] = {}
        if self.protocol.tls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.directory / "node.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.directory / "ca.crt"),
                "ssl.client.auth": self._client_auth,
            }
        if self.protocol.sasl:
            settings |= {
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "sasl.mechanism.controller.protocol": "PLAIN",
                "plain.sasl.jaas.config": self._jaas(f'user_{SASL_USER}="{self.password}"'),
                "scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
                "scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            }
        return settings

    def cluster_settings(self, listener: str, controller_listener: str) -> dict[str, str]:
        """The settings of each node of a cluster with these two listeners."""
        settings = self.server_settings
        if not self.protocol.sasl:
            return settings
        for name in ("plain", "scram-sha-256", "scram-sha-512"):
            del settings[f"{name}.sasl.jaas.config"]
        own = f'username="{NODE_USER}" password="{self._node_password}"'
        brokers, controllers = (f"listener.name.{name.lower()}." for name in (listener, controller_listener))
        return settings | {
            "sasl.mechanism.inter.broker.protocol": NODE_MECHANISM,
            f"{brokers}plain.sasl.jaas.config": f'{_PLAIN} required user_{SASL_USER}="{self.password}";',
            f"{brokers}scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
            f"{brokers}{NODE_MECHANISM.lower()}.sasl.jaas.config": f"{_SCRAM} required {own};",
            f"{controllers}sasl.enabled.mechanisms": "PLAIN",
            f"{controllers}plain.sasl.jaas.config": (
                f'{_PLAIN} required {own} user_{NODE_USER}="{self._node_password}";'
            ),
            "authorizer.class.name": _AUTHORIZER,
            "super.users": f"User:{NODE_USER};User:{SASL_USER}",
        }

    @property
    def first_users(self) -> list[str]:
        """The users that a cluster is formatted with, as `storage format --add-scram` takes them."""
        if not self.protocol.sasl:
            return []
        return [f"{NODE_MECHANISM}=[name={NODE_USER},password={self._node_password}]"]

    @property
    def _node_password(self) -> str:
        return (self.directory / _NODE_PASSWORD_FILE).read_text()

    @property
    def password(self) -> str:
        """The password of the user `client`."""
        return (self.directory / _PASSWORD_FILE).read_text()

    def _jaas(self, users: str = "") -> str:
        return f'{_PLAIN} required username="{SASL_USER}" password="{self.password}" {users};'

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of clients, by the names of Kafka's Java client, which our own understand too."""
        settings = {"security.protocol": self.protocol.name}
        if self.protocol.tls:
            settings |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.directory / "ca.crt"),
            }
            if self._client_auth != "none":
                settings |= {
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.location": str(self.directory / "client.pem"),
                }
        if self.protocol.sasl:
            settings |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": self._jaas()}
        return settings

    @property
    def librdkafka_settings(self) -> dict[str, str]:
        """The settings of clients that are made of librdkafka, such as confluent-kafka."""
        settings = {"security.protocol": self.protocol.name}
        if self.protocol.tls:
            settings["ssl.ca.location"] = str(self.directory / "ca.crt")
            if self._client_auth != "none":
                settings["ssl.certificate.location"] = str(self.directory / "client.pem")
                settings["ssl.key.location"] = str(self.directory / "client.pem")
        if self.protocol.sasl:
            settings |= {
                "sasl.mechanisms": "PLAIN",
                "sasl.username": SASL_USER,
                "sasl.password": self.password,
            }
        return settings


def client_settings_in(directory: Path) -> Mapping[str, str]:
    """The settings for clients of the cluster in a directory; empty if it is not secured."""
    from ottla.runtime.properties import parse_properties

    path = directory / CLIENT_FILE
    return parse_properties(path.read_text()) if path.exists() else {}


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in place of one that is there: that may be one of another
    user, or a link.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
