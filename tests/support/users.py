"""Users of a secured cluster, the settings with which clients log in as them, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ottla import blocking
from ottla.client.admin.acls import AclBinding, AclOperation, AclResourceType, PatternType
from ottla.testing.local_cluster import LocalCluster

MECHANISM = "SCRAM-SHA-512"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class ScramUser:
    """One who logs in over SASL_SSL; `authority` is the file of the certificates to trust."""

    name: str
    password: str = field(repr=False)
    authority: Path

    @property
    def principal(self) -> str:
        return f"User:{self.name}"

    @property
    def librdkafka(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": self.name,
            "sasl.password": self.password,
            "ssl.ca.location": str(self.authority),
        }

    @property
    def java(self) -> dict[str, str]:
        """For Kafka's own clients; ours take these, too."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{_SCRAM} required username="{self.name}" password="{self.password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
        }


def admin_of(cluster: LocalCluster) -> blocking.Admin:
    """An admin client that may do everything."""
    return blocking.Admin({"bootstrap.servers": cluster.bootstrap_servers, **cluster.client_settings})


def add_user(admin: blocking.Admin, name: str, authority: Path) -> ScramUser:
    user = ScramUser(name, f"{name}-secret", authority)
    admin.users.set_password(name, user.password, mechanism=MECHANISM)
    return user


def copying_acls(
    user: ScramUser, topics: Iterable[str], groups: Iterable[str], prefix: str
) -> list[AclBinding]:
    """Just what it takes to write and read the topics, to be in the groups, and to have transactions whose
    ids begin with the prefix.
    """
    allowed = [(AclResourceType.TOPIC, topic, AclOperation.WRITE) for topic in topics]
    allowed += [(AclResourceType.TOPIC, topic, AclOperation.READ) for topic in topics]
    allowed += [(AclResourceType.GROUP, group, AclOperation.READ) for group in groups]
    acls = [AclBinding(user.principal, operation, kind, name) for kind, name, operation in allowed]
    transactions = AclResourceType.TRANSACTIONAL_ID
    acls.append(
        AclBinding(user.principal, AclOperation.WRITE, transactions, prefix, PatternType.PREFIXED),
    )
    return acls
