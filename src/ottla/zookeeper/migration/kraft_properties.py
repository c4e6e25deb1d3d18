"""Rewrite the settings of a broker on ZooKeeper for the same broker with a quorum of controllers. Pure.

What Apache Kafka 4 does not know any more is left out, and said; everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

CONTROLLER_LISTENER: Final = "CONTROLLER"
# Where a listener for clients has that name.
_OTHER_CONTROLLER_LISTENER: Final = "KRAFT_CONTROLLER"
_DEFAULT_LISTENERS: Final = "PLAINTEXT://:9092"
_DEFAULT_MAP: Final = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
# Dropped in 4.0, or without a meaning once there is a quorum.
_REMOVED: Final = (
    "zookeeper.",
    "broker.id",
    "control.plane.listener.name",
    "metadata.log.dir",
    "metadata.store",
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
# Dropped in 3.0: how listeners were written once, and quotas that are settings of the cluster since.
_REMOVED_IN_3: Final = ("port", "host.name", "advertised.port", "advertised.host.name")
_OLD_QUOTAS: Final = {
    "quota.producer.default": "producer_byte_rate",
    "quota.consumer.default": "consumer_byte_rate",
}
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
    """The settings of a broker, which is a controller as well if it is among the voters. A node of Ottla's
    legacy mode may have been no broker.
    """
    own = next((voter for voter in voters if voter.id == node_id), None)
    result = KraftProperties({})
    settings = result.settings
    is_broker = "process.roles" not in given or "broker" in _names(given["process.roles"])
    roles = (["broker"] if is_broker else []) + (["controller"] if own is not None else [])
    settings["process.roles"] = ",".join(roles)
    settings["node.id"] = str(node_id)
    settings["controller.quorum.voters"] = ",".join(map(str, voters))
    settings["controller.listener.names"] = CONTROLLER_LISTENER
    for name, value in given.items():
        if name in _OLD_QUOTAS:
            result.warnings.append(
                f"{name}={value} is no setting since Kafka 3.0: once the cluster runs, set it with "
                f"`ottla quotas set --default-client-id {_OLD_QUOTAS[name]}={value}`"
            )
        if (name.startswith(_REMOVED) or name in (*_REMOVED_IN_3, *_OLD_QUOTAS)) and name not in settings:
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
        },
        warnings=[
            f"the settings of controller {voter.id} have neither TLS nor a login nor an authorizer: add "
            f"those that brokers have, and give {CONTROLLER_LISTENER} the protocol that it has in their files"
        ],
    )


def controller_address(given: Mapping[str, str]) -> tuple[str, int] | None:
    """Where the controller of a node of Ottla's legacy mode listens; None if that has no host or port."""
    names = _names(given.get("controller.listener.names", CONTROLLER_LISTENER).upper())
    for listener in _names(given.get("listeners", "")):
        name, _, address = listener.partition("://")
        host, _, port = address.rpartition(":")
        if name.upper() == names[0] and host and port.isdecimal() and int(port) > 0:
            return host.strip("[]"), int(port)
    return None


def _set_listeners(given: Mapping[str, str], own: ControllerVoter | None, result: KraftProperties) -> None:
    """Replace the listeners that were for controllers by one for the voter, if this node is one."""
    settings = result.settings
    former = _names(given.get("control.plane.listener.name", "").upper())
    if "metadata.store" in given:
        former += _names(given.get("controller.listener.names", CONTROLLER_LISTENER).upper())
    listeners = [each for each in _names(_listeners(given)) if _listener_name(each) not in former]
    advertised = _advertised_listeners(given)
    taken = {_listener_name(each) for each in listeners}
    name = _OTHER_CONTROLLER_LISTENER if CONTROLLER_LISTENER in taken else CONTROLLER_LISTENER
    text = given.get("listener.security.protocol.map", _DEFAULT_MAP)
    protocols = dict(each.partition(":")[::2] for each in _names(text))
    if "metadata.store" not in given or name not in protocols:
        # Kept of the legacy mode: its brokers speak with controllers that way.
        protocols[name] = _controller_protocol(given, text, result)
    settings["controller.listener.names"] = name
    settings["listener.security.protocol.map"] = ",".join(
        f"{listener}:{protocol}" for listener, protocol in protocols.items()
    )
    if advertised is not None:
        kept = [each for each in _names(advertised) if _listener_name(each) not in former]
        settings["advertised.listeners"] = ",".join(kept)
        if not kept:
            del settings["advertised.listeners"]
    if own is not None:
        host = own.host if own.host in _LOOPBACK else ""
        listeners.append(f"{name}://{host}:{own.port}")
    if own is not None or "listeners" in given or _listeners(given) != _DEFAULT_LISTENERS:
        settings["listeners"] = ",".join(listeners)


def _listeners(given: Mapping[str, str]) -> str:
    """Also as Kafka 2.8 still knew them: by `host.name` and `port`."""
    if "listeners" in given:
        return given["listeners"]
    return f"PLAINTEXT://{_host(given.get('host.name', ''))}:{given.get('port', '9092').strip()}"


def _advertised_listeners(given: Mapping[str, str]) -> str | None:
    if "advertised.listeners" in given:
        return given["advertised.listeners"]
    if "advertised.host.name" not in given and "advertised.port" not in given:
        return None
    host = given.get("advertised.host.name") or given.get("host.name", "")
    port = given.get("advertised.port") or given.get("port", "9092")
    return f"PLAINTEXT://{_host(host)}:{port.strip()}"


def _host(text: str) -> str:
    host = text.strip()
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _listener_name(listener: str) -> str:
    return listener.partition("://")[0].strip().upper()


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


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
        "the listener for controllers is without a login, as SCRAM users are known only once the "
        "metadata is: give it TLS, PLAIN or GSSAPI, or keep its port from others"
    )
    return "SSL" if protocol == "SASL_SSL" else "PLAINTEXT"


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + escaped if escaped[:1] == " " else escaped
