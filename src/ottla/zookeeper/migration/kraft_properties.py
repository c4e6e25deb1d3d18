"""Rewrite the settings of a broker on ZooKeeper for the same broker with a quorum of controllers. Pure.

What Apache Kafka 4 does not know any more is left out, and said; everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

CONTROLLER_LISTENER: Final = "CONTROLLER"
_DEFAULT_LISTENERS: Final = "PLAINTEXT://:9092"
_DEFAULT_MAP: Final = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
# Dropped in 4.0, or without a meaning once there is a quorum.
_REMOVED: Final = (
    "zookeeper.",
    "broker.id",
    "control.plane.listener.name",
    "delegation.token.master.key",
    "inter.broker.protocol.version",
    "leader.imbalance.per.broker.percentage",
    "log.message.downconversion.enable",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "message.format.version",
    "offsets.commit.required.acks",
    "password.encoder.",
    "reserved.broker.max.id",
)
_ACL_AUTHORIZERS: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
_LOOPBACK: Final = ("localhost", "127.0.0.1")
# A topic that brokers on ZooKeeper did not have is made like one that they had.
_LIKE: Final = {
    "share.coordinator.state.topic.replication.factor": "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.min.isr": "transaction.state.log.min.isr",
}
_STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class ControllerVoter(NamedTuple):
    id: int
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.id}@{host}:{self.port}"


@dataclass(slots=True)
class KraftProperties:
    settings: dict[str, str]
    removed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [
            "# Written by `ottla zookeeper import`: the settings of this node with a quorum of controllers."
        ]
        lines += [f"# not needed any more: {name}" for name in self.removed]
        lines += [f"{name}={_escape(value)}" for name, value in self.settings.items()]
        return "\n".join(lines) + "\n"


def kraft_properties(
    given: Mapping[str, str], node_id: int, voters: list[ControllerVoter]
) -> KraftProperties:
    """The settings of a broker, which is a controller as well if it is among the voters."""
    own = next((voter for voter in voters if voter.id == node_id), None)
    result = KraftProperties({})
    settings = result.settings
    settings["process.roles"] = "broker" if own is None else "broker,controller"
    settings["node.id"] = str(node_id)
    settings["controller.quorum.voters"] = ",".join(map(str, voters))
    settings["controller.listener.names"] = CONTROLLER_LISTENER
    for name, value in given.items():
        if name.startswith(_REMOVED) and name not in settings:
            result.removed.append(name)
        elif name not in settings:
            settings[name] = value
    if "delegation.token.master.key" in given:
        settings.setdefault("delegation.token.secret.key", given["delegation.token.master.key"])
    for name, model in _LIKE.items():
        if model in given:
            settings.setdefault(name, given[model])
    if given.get("authorizer.class.name") in _ACL_AUTHORIZERS:
        settings["authorizer.class.name"] = _STANDARD_AUTHORIZER
    _set_listeners(given, own, result)
    return result


def controller_properties(voter: ControllerVoter, voters: list[ControllerVoter], dir: str) -> KraftProperties:
    """The settings of a controller that is no broker."""
    return KraftProperties(
        {
            "process.roles": "controller",
            "node.id": str(voter.id),
            "controller.quorum.voters": ",".join(map(str, voters)),
            "controller.listener.names": CONTROLLER_LISTENER,
            "listeners": f"{CONTROLLER_LISTENER}://:{voter.port}",
            "listener.security.protocol.map": f"{_DEFAULT_MAP},{CONTROLLER_LISTENER}:PLAINTEXT",
            "log.dirs": dir,
        }
    )


def _set_listeners(given: Mapping[str, str], own: ControllerVoter | None, result: KraftProperties) -> None:
    settings = result.settings
    listeners = given.get("listeners", _DEFAULT_LISTENERS)
    protocols = given.get("listener.security.protocol.map", _DEFAULT_MAP)
    protocol = _controller_protocol(given, protocols, result)
    settings["listener.security.protocol.map"] = f"{protocols},{CONTROLLER_LISTENER}:{protocol}"
    if own is None:
        return
    host = own.host if own.host in _LOOPBACK else ""
    settings["listeners"] = f"{listeners},{CONTROLLER_LISTENER}://{host}:{own.port}"


def _controller_protocol(given: Mapping[str, str], protocols: str, result: KraftProperties) -> str:
    """How brokers and controllers speak: as brokers among themselves, where that is possible."""
    by_listener = {
        name.strip().upper(): protocol.strip().upper()
        for name, _, protocol in (each.partition(":") for each in protocols.split(","))
    }
    listener = given.get("inter.broker.listener.name")
    protocol = (
        by_listener.get(listener.strip().upper(), "PLAINTEXT")
        if listener is not None
        else given.get("security.inter.broker.protocol", "PLAINTEXT").strip().upper()
    )
    if not protocol.startswith("SASL"):
        return protocol
    mechanism = given.get("sasl.mechanism.inter.broker.protocol", "GSSAPI")
    if not mechanism.startswith("SCRAM"):
        result.settings["sasl.mechanism.controller.protocol"] = mechanism
        return protocol
    result.warnings.append(
        f"the listener {CONTROLLER_LISTENER} is without a login, as SCRAM users are known only once the "
        "metadata is: give it TLS, PLAIN or GSSAPI, or keep its port from others"
    )
    return "SSL" if protocol == "SASL_SSL" else "PLAINTEXT"


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + escaped if escaped[:1] == " " else escaped
