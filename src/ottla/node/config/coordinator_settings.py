"""Convert a `NodeConfig` to the config objects of the coordinators.

Apart from `component_settings`, since a node imports the coordinators only when the first request needs one.
"""

from __future__ import annotations

from ottla.coordinator.group.config import GroupCoordinatorConfig, MigrationPolicy
from ottla.coordinator.share.config import ShareCoordinatorConfig
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.node.config.node_config import NodeConfig


def group_config(config: NodeConfig) -> GroupCoordinatorConfig:
    number = config.number
    return GroupCoordinatorConfig(
        group_min_session_timeout_ms=number("group.min.session.timeout.ms"),
        group_max_session_timeout_ms=number("group.max.session.timeout.ms"),
        group_initial_rebalance_delay_ms=number("group.initial.rebalance.delay.ms"),
        group_max_size=number("group.max.size"),
        classic_metadata_bytes=number("connections.memory.max.bytes") // 8,
        consumer_session_timeout_ms=number("group.consumer.session.timeout.ms"),
        consumer_heartbeat_interval_ms=number("group.consumer.heartbeat.interval.ms"),
        consumer_max_size=number("group.consumer.max.size"),
        consumer_assignors=config.names("group.consumer.assignors"),
        consumer_migration_policy=MigrationPolicy(config.text("group.consumer.migration.policy").lower()),
        consumer_assignment_interval_ms=number("group.consumer.assignment.interval.ms"),
        consumer_regex_refresh_interval_ms=number("group.consumer.regex.refresh.interval.ms"),
        streams_session_timeout_ms=number("group.streams.session.timeout.ms"),
        streams_heartbeat_interval_ms=number("group.streams.heartbeat.interval.ms"),
        streams_max_size=number("group.streams.max.size"),
        streams_num_standby_replicas=number("group.streams.num.standby.replicas"),
        streams_initial_rebalance_delay_ms=number("group.streams.initial.rebalance.delay.ms"),
        streams_assignment_interval_ms=number("group.streams.assignment.interval.ms"),
        offset_metadata_max_bytes=number("offset.metadata.max.bytes"),
        offsets_retention_ms=number("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=number("offsets.retention.check.interval.ms"),
        share_session_timeout_ms=number("group.share.session.timeout.ms"),
        share_heartbeat_interval_ms=number("group.share.heartbeat.interval.ms"),
        share_max_size=number("group.share.max.size"),
        share_assignment_interval_ms=number("group.share.assignment.interval.ms"),
        # A request for states may take as long as a commit.
        share_initialize_retry_interval_ms=max(
            number("group.share.initialize.retry.interval.ms"), number("offsets.commit.timeout.ms")
        ),
        consumer_protocol_enabled="consumer" in config.names("group.coordinator.rebalance.protocols"),
        streams_protocol_enabled="streams" in config.names("group.coordinator.rebalance.protocols"),
    )


def transaction_config(config: NodeConfig) -> TransactionConfig:
    number = config.number
    return TransactionConfig(
        transactional_id_expiration_ms=number("transactional.id.expiration.ms"),
        transaction_max_timeout_ms=number("transaction.max.timeout.ms"),
        abort_timed_out_interval_ms=number("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        remove_expired_interval_ms=number("transaction.remove.expired.transaction.cleanup.interval.ms"),
        two_phase_commit_enabled=config.flag("transaction.two.phase.commit.enable"),
    )


def share_config(config: NodeConfig) -> ShareCoordinatorConfig:
    number = config.number
    return ShareCoordinatorConfig(
        snapshot_update_records_per_snapshot=number("share.coordinator.snapshot.update.records.per.snapshot"),
        prune_interval_ms=number("share.coordinator.state.topic.prune.interval.ms"),
        cold_partition_snapshot_interval_ms=number("share.coordinator.cold.partition.snapshot.interval.ms"),
    )
