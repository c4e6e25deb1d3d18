"""The settings of tiered storage that have a prefix: those of the store (`rsm.config.*`), and those of the
topic of its metadata (`rlmm.config.*`).

The names are those of Aiven's plugin (`ottla.remote.store_settings`) and of Kafka's own metadata manager, so
a file that was made for them works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.remote.store_settings import (
    InvalidStoreSetting,
    MissingStoreSetting,
    PrefixedSettings,
    RemoteStorageSettings,
    store_settings,
)

_INT_MAX: Final = 2**31 - 1


def remote_storage_settings(config: NodeConfig) -> RemoteStorageSettings:
    """Read the settings of the store; `NodeFailed` names one that is missing or wrong."""
    given = PrefixedSettings(config.given, config.text("remote.log.storage.manager.impl.prefix"))
    try:
        return store_settings(given)
    except MissingStoreSetting as error:
        raise NodeFailed(f"remote.log.storage.system.enable is true, and {error}") from None
    except InvalidStoreSetting as error:
        raise NodeFailed(str(error)) from None


@dataclass(frozen=True, slots=True)
class MetadataTopicSettings:
    """The topic of the metadata, as it is created."""

    partitions: int
    replication_factor: int
    min_isr: int | None
    retention_ms: int
    consume_wait_ms: int


def metadata_topic_settings(config: NodeConfig) -> MetadataTopicSettings:
    """Read the settings of the metadata topic; `NodeFailed` names one that is wrong."""
    given = PrefixedSettings(config.given, config.text("remote.log.metadata.manager.impl.prefix"))
    try:
        return _topic_settings(given, config.alone)
    except InvalidStoreSetting as error:
        raise NodeFailed(str(error)) from None


def _topic_settings(given: PrefixedSettings, is_alone: bool) -> MetadataTopicSettings:
    topic = "remote.log.metadata.topic."
    retention_ms = given.number(f"{topic}retention.ms", -1, -1, 2**63 - 1)
    if retention_ms == 0:
        raise given.invalid(f"{topic}retention.ms", "it must be -1, for no limit, or above 0")
    # A node alone has no second one to replicate to.
    replicas = given.number(f"{topic}replication.factor", 1 if is_alone else 3, 1, 2**15 - 1)
    min_isr = given.number(f"{topic}min.isr", 0, 0, 2**15 - 1)
    return MetadataTopicSettings(
        partitions=given.number(f"{topic}num.partitions", 50, 1, _INT_MAX),
        replication_factor=replicas,
        min_isr=min_isr or min(2, replicas),
        retention_ms=retention_ms,
        consume_wait_ms=given.number("remote.log.metadata.consume.wait.ms", 120_000, 0, 2**63 - 1),
    )
