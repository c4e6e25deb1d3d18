"""Convert a `NodeConfig` to the config objects of the quorum, the metadata log, the controller and logs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ottla.log.producers.state_manager import ProducerStateManagerConfig
from ottla.metadata.controller.state import ControllerSettings
from ottla.metadata.log.metadata_log import MetadataLogConfig
from ottla.node.config.definitions.config_def import MAX_DOUBLE
from ottla.node.config.node_config import NodeConfig
from ottla.raft.config import QuorumConfig
from ottla.raft.voters import VoterSet
from ottla.runtime.address import Address

if TYPE_CHECKING:
    from ottla.log.cleaner.cleaner import CleanerConfig
    from ottla.log.scrub.scrubber import ScrubConfig


def metadata_log_config(config: NodeConfig) -> MetadataLogConfig:
    internal = config["internal.metadata.log.segment.bytes"]
    segment_bytes = internal if isinstance(internal, int) else config.number("metadata.log.segment.bytes")
    return MetadataLogConfig(
        segment_bytes=segment_bytes,
        segment_ms=config.number("metadata.log.segment.ms"),
        max_retention_bytes=config.number("metadata.max.retention.bytes"),
        max_retention_ms=config.number("metadata.max.retention.ms"),
        max_record_bytes_between_snapshots=config.number("metadata.log.max.record.bytes.between.snapshots"),
        max_snapshot_interval_ms=config.number("metadata.log.max.snapshot.interval.ms"),
    )


def controller_settings(config: NodeConfig, cluster_id: str) -> ControllerSettings:
    return ControllerSettings(
        node_id=config.node_id,
        cluster_id=cluster_id,
        num_partitions=config.number("num.partitions"),
        default_replication_factor=config.number("default.replication.factor"),
        session_timeout_ms=config.number("broker.session.timeout.ms"),
        min_insync_replicas=config.number("min.insync.replicas"),
        delete_topic_enable=config.flag("delete.topic.enable"),
    )


def producer_config(config: NodeConfig) -> ProducerStateManagerConfig:
    return ProducerStateManagerConfig(
        producer_id_expiration_ms=config.number("producer.id.expiration.ms"),
        max_transaction_timeout_ms=config.number("transaction.max.timeout.ms"),
        transaction_verification=config.flag("transaction.partition.verification.enable"),
    )


def cleaner_config(config: NodeConfig) -> CleanerConfig:
    from ottla.log.cleaner.cleaner import CleanerConfig

    rate = config.real("log.cleaner.io.max.bytes.per.second")
    return CleanerConfig(
        threads=max(1, config.number("log.cleaner.threads")),
        dedupe_buffer_size=config.number("log.cleaner.dedupe.buffer.size"),
        io_buffer_size=config.number("log.cleaner.io.buffer.size"),
        io_buffer_load_factor=config.real("log.cleaner.io.buffer.load.factor"),
        io_max_bytes_per_second=math.inf if rate >= MAX_DOUBLE else rate,
        backoff_ms=config.number("log.cleaner.backoff.ms"),
    )


def scrub_config(config: NodeConfig) -> ScrubConfig:
    from ottla.log.scrub.scrubber import ScrubConfig

    return ScrubConfig(
        interval_ms=config.number("log.scrub.interval.ms"),
        max_bytes_per_second=config.number("log.scrub.max.bytes.per.second"),
    )


def static_voters(config: NodeConfig) -> VoterSet | None:
    """Return the voters of `controller.quorum.voters`; None if it is empty."""
    voters = config.names("controller.quorum.voters")
    return VoterSet.parse(",".join(voters), config.controller_listener_names[0]) if voters else None


def bootstrap_servers(config: NodeConfig) -> list[Address]:
    """Return `controller.quorum.bootstrap.servers`, by which a dynamic quorum is found."""
    servers = (server.rpartition(":") for server in config.names("controller.quorum.bootstrap.servers"))
    return [Address(host.strip("[]"), int(port)) for host, _, port in servers]


def quorum_config(config: NodeConfig) -> QuorumConfig:
    return QuorumConfig(
        election_timeout_ms=config.number("controller.quorum.election.timeout.ms"),
        election_backoff_max_ms=config.number("controller.quorum.election.backoff.max.ms"),
        fetch_timeout_ms=(fetch_timeout_ms := config.number("controller.quorum.fetch.timeout.ms")),
        # Kafka's 500 ms; less where a follower would give its leader up before.
        fetch_max_wait_ms=min(500, fetch_timeout_ms // 4),
        request_timeout_ms=config.number("controller.quorum.request.timeout.ms"),
        retry_backoff_ms=config.number("controller.quorum.retry.backoff.ms"),
        fetch_max_bytes=config.number("controller.quorum.fetch.max.bytes"),
        fetch_snapshot_max_bytes=config.number("controller.quorum.fetch.snapshot.max.bytes"),
        auto_join=config.flag("controller.quorum.auto.join.enable"),
        can_be_voter=config.is_controller,
    )
