"""The settings of the group coordinator, by Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ottla.coordinator.group.classic.member_memory import MemberMemory

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member that has just joined may wait for its first rebalance to end."""


MOST_PENDING_IDS = 10_000
"""How many ids of a classic group may be given out and not have come back; the oldest is then forgotten."""


class MigrationPolicy(Enum):
    """Which conversions between classic and consumer groups happen while members are online."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class GroupCoordinatorConfig:
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    classic_metadata_bytes: int
    """What the metadata of all classic members may take."""
    consumer_session_timeout_ms: int
    consumer_heartbeat_interval_ms: int
    consumer_max_size: int
    consumer_assignors: tuple[str, ...]
    consumer_migration_policy: MigrationPolicy
    consumer_assignment_interval_ms: int
    consumer_regex_refresh_interval_ms: int
    streams_session_timeout_ms: int
    streams_heartbeat_interval_ms: int
    streams_max_size: int
    streams_num_standby_replicas: int
    streams_initial_rebalance_delay_ms: int
    streams_assignment_interval_ms: int
    offset_metadata_max_bytes: int
    offsets_retention_ms: int
    offsets_retention_check_interval_ms: int
    consumer_protocol_enabled: bool
    streams_protocol_enabled: bool
    share_session_timeout_ms: int
    share_heartbeat_interval_ms: int
    share_max_size: int
    share_assignment_interval_ms: int
    share_initialize_retry_interval_ms: int


class GroupSettings:
    """The settings of the node, and those that an operator has set for single groups."""

    __slots__ = ("member_memory", "node", "overrides")

    def __init__(
        self, node: GroupCoordinatorConfig, overrides: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.node = node
        self.member_memory: Final = MemberMemory(node.classic_metadata_bytes)
        # By group: dynamic settings such as `consumer.session.timeout.ms`, validated when they were set.
        self.overrides: Mapping[str, Mapping[str, str]] = overrides or {}

    def _number(self, group_id: str, name: str, default: int) -> int:
        value = self.overrides.get(group_id, {}).get(name)
        return default if value is None else int(value)

    def session_timeout_ms(self, group_id: str) -> int:
        return self._number(group_id, "consumer.session.timeout.ms", self.node.consumer_session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._number(
            group_id, "consumer.heartbeat.interval.ms", self.node.consumer_heartbeat_interval_ms
        )

    def assignment_interval_ms(self, group_id: str) -> int:
        return self._number(
            group_id, "consumer.assignment.interval.ms", self.node.consumer_assignment_interval_ms
        )

    # Streams groups

    def streams_session_timeout_ms(self, group_id: str) -> int:
        return self._number(group_id, "streams.session.timeout.ms", self.node.streams_session_timeout_ms)

    def streams_heartbeat_interval_ms(self, group_id: str) -> int:
        return self._number(
            group_id, "streams.heartbeat.interval.ms", self.node.streams_heartbeat_interval_ms
        )

    def streams_initial_rebalance_delay_ms(self, group_id: str) -> int:
        return self._number(
            group_id, "streams.initial.rebalance.delay.ms", self.node.streams_initial_rebalance_delay_ms
        )

    def streams_assignment_interval_ms(self, group_id: str) -> int:
        return self._number(
            group_id, "streams.assignment.interval.ms", self.node.streams_assignment_interval_ms
        )

    def streams_assignment_configs(self, group_id: str) -> dict[str, str]:
        """The settings that a streams group's tasks are assigned with, by the names of its records."""
        replicas = self._number(
            group_id, "streams.num.standby.replicas", self.node.streams_num_standby_replicas
        )
        return {"num.standby.replicas": str(replicas)}

    # Share groups

    def share_session_timeout_ms(self, group_id: str) -> int:
        return self._number(group_id, "share.session.timeout.ms", self.node.share_session_timeout_ms)

    def share_heartbeat_interval_ms(self, group_id: str) -> int:
        return self._number(group_id, "share.heartbeat.interval.ms", self.node.share_heartbeat_interval_ms)

    def share_assignment_interval_ms(self, group_id: str) -> int:
        return self._number(group_id, "share.assignment.interval.ms", self.node.share_assignment_interval_ms)
