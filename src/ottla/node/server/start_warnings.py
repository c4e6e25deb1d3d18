"""What an operator should know at the start of a broker: settings that are valid, and with which it is of
little use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.metadata.image.image import MetadataImage
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.protocol.names import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.scram import ScramMechanism

_INTERNAL_TOPICS: Final = (
    ("offsets.topic.replication.factor", CONSUMER_OFFSETS_TOPIC, "consumer groups"),
    ("transaction.state.log.replication.factor", TRANSACTION_STATE_TOPIC, "transactions"),
    ("share.coordinator.state.topic.replication.factor", SHARE_GROUP_STATE_TOPIC, "share groups"),
)


def start_warnings(
    config: NodeConfig, image: MetadataImage, listeners: Sequence[Endpoint], *, sole_voter: bool
) -> list[str]:
    """The warnings; `listeners` are those of clients, and `sole_voter` a node that is its own quorum."""
    found = [_without_users(config, image, listeners), _without_quota_callback(config)]
    if sole_voter:
        found.append(_without_internal_topics(config, image))
    return [text for text in found if text is not None]


def _without_users(config: NodeConfig, image: MetadataImage, listeners: Sequence[Endpoint]) -> str | None:
    """Clients log in as users of SCRAM only, and there is none: not even one that could add the first."""
    enabled: dict[str, None] = {}
    for listener in listeners:
        names = config.with_listener_prefix(listener.name, "sasl.enabled.mechanisms")
        if not listener.protocol.sasl or not isinstance(names, tuple):
            return None
        enabled |= dict.fromkeys(names)
    mechanisms = [ScramMechanism.of_name(name) for name in enabled]
    if None in mechanisms or any(user.mechanism in mechanisms for user in image.scram):
        return None
    return (
        f"no client can log in: {', '.join(map(str, listeners))} takes users of {', '.join(enabled)} only, "
        "and there is none yet. Stop the node; if its data directory has nothing to keep, remove it and "
        "format it with a first user: `ottla storage format -c FILE --add-scram "
        f"'{next(iter(enabled))}=[name=NAME,password=PASSWORD]'`; otherwise add PLAINTEXT://127.0.0.1:PORT "
        "to listeners until `ottla users add` has added one"
    )


def _without_quota_callback(config: NodeConfig) -> str | None:
    """A Java class should decide who may take how much, and does not."""
    name = config["client.quota.callback.class"]
    if name is None:
        return None
    return (
        f"client.quota.callback.class={name} is not loaded, and what it would limit is not limited: set "
        "quotas of users and client ids with `ottla quotas` or kafka-configs"
    )


def _without_internal_topics(config: NodeConfig, image: MetadataImage) -> str | None:
    """The topics of coordinators need more brokers than there are, and a quorum of one expects no more."""
    brokers = max(len(image.cluster.brokers), 1)
    missing = [
        (name, what)
        for name, topic, what in _INTERNAL_TOPICS
        if config.number(name) > brokers and topic not in image.topics.by_name
    ]
    if not missing:
        return None
    settings = " and ".join(f"{name}={config.number(name)}" for name, _ in missing)
    return (
        f"there will be no {' and no '.join(what for _, what in missing)} until as many brokers are "
        f"registered as {settings} ask for; now it is {brokers}. For a node alone, set "
        f"{' and '.join(f'{name}=1' for name, _ in missing)}"
    )
