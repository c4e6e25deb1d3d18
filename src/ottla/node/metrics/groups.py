"""Groups, transactions and share partitions that this broker coordinates.

Groups are counted by protocol and state. The lag of a group is known here for the partitions of which this
broker has a replica; the committed offsets of all are shown, so that Prometheus can compute the rest with the
offsets of the leaders (a recording rule in `dashboards/` does). The same goes for share partitions, whose
progress their share coordinator knows.

At most `metrics.max.group.partitions` series have a group and a partition. A group has all of its partitions
or none, and the first groups of the coordinator have theirs; sums by group and topic are there for as many
groups again. All groups beyond are one sum, `_other`. The first share partitions, as many, have theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from ottla.metadata.image.cache import MetadataCache
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.coordinators.coordinators import Coordinators
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.clock import Clock
from ottla.runtime.metrics import OTHER, MetricKind, MetricsText, label_text
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.coordinator.group.group_coordinator_shard import GroupCoordinatorShard
    from ottla.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
    from ottla.coordinator.runtime.effects import CoordinatorShard
    from ottla.coordinator.share.service import ShareCoordinatorService

S = TypeVar("S", bound="CoordinatorShard")

_GROUP: Final = "kafka_consumergroup_"
_CLASSIC: Final = "kafka_coordinator_group_groupmetadatamanager_numgroups"
_CLASSIC_STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
_BY_PARTITION: Final = ("consumergroup", "topic", "partition")
_BY_TOPIC: Final = ("consumergroup", "topic")
_SHARE_OFFSET: Final = "ottla_share_partition_offset"
_BY_SHARE_PARTITION: Final = ("group", "topic", "partition")


class GroupCollector:
    def __init__(
        self,
        coordinators: Coordinators,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        config: DynamicBrokerConfig,
        clock: Clock,
    ) -> None:
        self._coordinators: Final = coordinators
        self._replicas: Final = replicas
        self._metadata: Final = metadata
        self._config: Final = config
        self._clock: Final = clock

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        await self._write_groups(text, turns)
        await self._write_transactions(text, turns)
        await self._write_share_states(text, turns)

    async def _write_share_states(self, text: MetricsText, turns: Turns) -> None:
        service = self._coordinators.share_in_use
        text.gauge(
            "ottla_share_partitions",
            "Share partitions whose state this broker coordinates",
            0 if service is None else service.share_partition_count,
        )
        if service is not None:
            text.counter(
                "ottla_share_state_writes_total",
                "Writes of the state of a share partition that this broker coordinates",
                service.writes,
            )
            text.histogram(
                "ottla_share_state_write_seconds",
                "How long requests to write the state of share partitions took until they were committed",
                "",
                service.write_times,
            )
            await self._write_share_offsets(text, turns, service)

    async def _write_share_offsets(
        self, text: MetricsText, turns: Turns, service: ShareCoordinatorService
    ) -> None:
        """Write how far share groups have come, also those without members, from the state that is persisted.

        The lag, as DescribeShareGroupOffsets has it, is what the high watermark is ahead of that.
        """
        lines = text.family(
            _SHARE_OFFSET,
            "The start offset of the share partition and the records after it that are done",
            MetricKind.GAUGE,
        )
        left = self._config.current.number("metrics.max.group.partitions")
        topics = self._metadata.image.topics.by_id
        for shard in _loaded_shards(service.runtime):
            for key, state in list(shard.partitions.items()):
                topic, offset = topics.get(key.topic_id), state.offset
                if topic is not None and offset.is_initialized:
                    left -= 1
                    if left < 0:
                        return
                    labels = label_text(_BY_SHARE_PARTITION, (key.group_id, topic.name, str(key.partition)))
                    done = offset.start_offset + offset.delivery_complete_count
                    lines.append(f"{_SHARE_OFFSET}{labels} {done}")
                if turns.is_due():
                    await turns.pause()

    async def _write_groups(self, text: MetricsText, turns: Turns) -> None:
        service = self._coordinators.groups_in_use
        bound = self._config.current.number("metrics.max.group.partitions")
        walk = _GroupWalk(text, self._replicas, bound)
        if service is not None:
            for shard in _loaded_shards(service.runtime):
                await walk.visit(shard, turns)
        walk.finish(text)

    async def _write_transactions(self, text: MetricsText, turns: Turns) -> None:
        parts = self._coordinators.transactions_in_use
        states: dict[str, int] = {}
        oldest_ms: int | None = None
        if parts is not None:
            for shard in _loaded_shards(parts.service.runtime):
                for transaction in list(shard.transactions.values()):
                    states[transaction.state.title] = states.get(transaction.state.title, 0) + 1
                    if not transaction.state.is_idle and transaction.start_ms >= 0:
                        oldest_ms = min(transaction.start_ms, oldest_ms or transaction.start_ms)
                    if turns.is_due():
                        await turns.pause()
        states.setdefault("Ongoing", 0)
        text.gauge(
            "ottla_transactional_ids",
            "Transactional ids that this broker coordinates, by the state of their transaction",
            [((state,), count) for state, count in sorted(states.items())],
            ("state",),
        )
        now_ms = self._clock.wall_ms()
        text.gauge(
            "ottla_transaction_oldest_open_seconds",
            "The age of the oldest transaction that is open or being ended",
            0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000,
        )
        text.counter(
            "ottla_transactions_ended_total",
            "Transactions whose end was decided here",
            [
                (("commit",), 0 if parts is None else parts.service.committed),
                (("abort",), 0 if parts is None else parts.service.aborted),
            ],
            ("result",),
        )
        if parts is not None:
            text.histogram(
                "ottla_transaction_open_seconds",
                "How long transactions were open until their end was decided",
                "",
                parts.service.open_times,
            )


class _GroupWalk:
    """One walk over the groups of this broker."""

    def __init__(self, text: MetricsText, replicas: ReplicaManager, bound: int) -> None:
        self._replicas: Final = replicas
        self._left = self._groups_left = bound
        self._counts: Final[dict[tuple[str, str], int]] = {}
        self._offsets = 0
        self._other_lag = self._other_groups = 0
        gauge = MetricKind.GAUGE
        self._members: Final = text.family(f"{_GROUP}members", "Members of the group", gauge)
        self._lags: Final = text.family(
            f"{_GROUP}lag", "Records of the partition that the group has not committed", gauge
        )
        self._committed: Final = text.family(
            f"{_GROUP}current_offset", "The committed offset of the group", gauge
        )
        self._sums: Final = text.family(
            f"{_GROUP}lag_sum",
            "The lag of the group in all partitions of the topic that are known here",
            gauge,
        )

    async def visit(self, shard: GroupCoordinatorShard, turns: Turns) -> None:
        from ottla.coordinator.group.group_metadata_manager import group_type

        self._offsets += shard.offsets.committed_count
        for group in list(shard.metadata.groups.values()):
            protocol, state = group_type(group), group.state.value
            self._counts[protocol, state] = self._counts.get((protocol, state), 0) + 1
            await self._visit_group(shard, group.group_id, len(group.members), turns)

    async def _visit_group(
        self, shard: GroupCoordinatorShard, group_id: str, members: int, turns: Turns
    ) -> None:
        committed = shard.offsets.committed(group_id)
        detailed = len(committed) <= self._left
        if detailed:
            self._left -= len(committed)
        sums: dict[str, int] = {}
        for (topic, index), offset in committed:
            lag = self._lag(topic, index, offset)
            if lag is not None:
                sums[topic] = sums.get(topic, 0) + lag
            if detailed:
                labels = label_text(_BY_PARTITION, (group_id, topic, str(index)))
                self._committed.append(f"{_GROUP}current_offset{labels} {offset}")
                if lag is not None:
                    self._lags.append(f"{_GROUP}lag{labels} {lag}")
            if turns.is_due():
                await turns.pause()
        if self._groups_left > len(sums):
            self._groups_left -= 1 + len(sums)
            self._members.append(f"{_GROUP}members{label_text(_BY_TOPIC[:1], (group_id,))} {members}")
            for topic, lag in sums.items():
                self._sums.append(f"{_GROUP}lag_sum{label_text(_BY_TOPIC, (group_id, topic))} {lag}")
        else:
            self._other_groups += 1
            self._other_lag += sum(sums.values())
        if turns.is_due():
            await turns.pause()

    def _lag(self, topic: str, index: int, offset: int) -> int | None:
        """How far a group is behind the high watermark; None if this broker has no replica."""
        partition = self._replicas.find(TopicPartition(topic, index))
        return None if partition is None else max(0, partition.log.high_watermark - offset)

    def finish(self, text: MetricsText) -> None:
        if self._other_groups:
            self._sums.append(f"{_GROUP}lag_sum{label_text(_BY_TOPIC, (OTHER, OTHER))} {self._other_lag}")
        text.gauge(
            "ottla_groups",
            "Groups that this broker coordinates",
            [(key, count) for key, count in sorted(self._counts.items())] or [(("consumer", "Stable"), 0)],
            ("protocol", "state"),
        )
        classic = {state: count for (kind, state), count in self._counts.items() if kind == "classic"}
        text.gauge(_CLASSIC, "Groups of the classic protocol", sum(classic.values()))
        for state in _CLASSIC_STATES:
            text.gauge(_CLASSIC + state.lower(), f"Classic groups in state {state}", classic.get(state, 0))
        text.gauge(
            "kafka_coordinator_group_groupmetadatamanager_numoffsets", "Committed offsets", self._offsets
        )
        text.gauge(
            "ottla_groups_without_series",
            "Groups that are only part of the sum _other",
            self._other_groups,
        )


def _loaded_shards(runtime: CoordinatorRuntime[S]) -> list[S]:
    shards = []
    for index in runtime.partitions:
        try:
            shards.append(runtime.shard(index))
        except KafkaError:
            continue  # it is being loaded
    return shards
