"""What `ottla top` shows of any Kafka cluster: by its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.output import Cell, size_text
from ottla.cli.top_view import Table, TopView
from ottla.client.admin.groups import SHARE
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.cluster_metadata import Broker, TopicInfo

# Groups whose offsets are asked for at each look, and how many of them at once.
_MAX_GROUPS: Final = 200
_GROUPS_AT_ONCE: Final = 20
_LATEST: Final = -1


class ProtocolTop:
    """Show rates: each is the difference between two looks, of which the earlier one is kept."""

    def __init__(self, admin: Admin, rows: int) -> None:
        self._admin: Final = admin
        self._rows: Final = rows
        self._at = 0.0
        self._ends: dict[TopicPartition, int] = {}
        self._sizes: dict[str, int] = {}

    async def look(self) -> TopView:
        admin = self._admin
        cluster = await admin.cluster.describe()
        topics = await admin.topics.list(include_internal=True)
        ends = await self._end_offsets(topics)
        sizes = await self._topic_sizes()
        at, seconds = monotonic(), monotonic() - self._at if self._at else 0.0
        listed = {
            topic.name: self._topic(topic, ends, sizes, seconds)
            for topic in topics
            if not topic.is_internal or any(ends.get(tp) for tp in _partitions(topic))
        }
        self._at, self._ends, self._sizes = at, ends, sizes
        groups, left_out = await self._groups(ends)
        brokers = _brokers(cluster.brokers, topics, cluster.controller_id)
        problems = _problems(topics)
        if left_out:
            problems.append(f"{left_out} more groups are not shown")
        return TopView(
            {
                "cluster_id": cluster.cluster_id,
                "brokers": brokers,
                "topics": listed,
                "groups": groups,
                "problems": problems,
            },
            [
                (
                    f"cluster {cluster.cluster_id}",
                    ["broker", "address", "controller", "replicas", "leads", "in sync"],
                    [tuple(each.values()) for each in brokers],
                ),
                self._topics_table(listed),
                self._groups_table(groups),
            ],
            problems,
        )

    async def _end_offsets(self, topics: Sequence[TopicInfo]) -> dict[TopicPartition, int]:
        wanted = {
            TopicPartition(topic.name, each.partition): _LATEST
            for topic in topics
            for each in topic.partitions
            if each.leader >= 0
        }
        found = await self._admin.offsets.list(wanted)
        return {tp: each.offset for tp, each in found.items() if not isinstance(each, KafkaError)}

    async def _topic_sizes(self) -> dict[str, int]:
        """The bytes of all replicas by topic; none where that must not be described."""
        sizes: dict[str, int] = {}
        try:
            directories = await self._admin.log_dirs.describe()
        except KafkaError:
            return sizes
        for directory in directories:
            for tp, replica in directory.replicas.items():
                if not replica.is_future:
                    sizes[tp.topic] = sizes.get(tp.topic, 0) + replica.size_bytes
        return sizes

    def _topic(
        self, topic: TopicInfo, ends: dict[TopicPartition, int], sizes: dict[str, int], seconds: float
    ) -> dict[str, Any]:
        # A partition that was not there before has no rate yet.
        added = sum(
            max(ends[tp] - self._ends[tp], 0) for tp in _partitions(topic) if tp in ends and tp in self._ends
        )
        size, size_before = sizes.get(topic.name), self._sizes.get(topic.name)
        grown = None if size is None or size_before is None else max(size - size_before, 0)
        return {
            "partitions": len(topic.partitions),
            "records_per_s": added / seconds if seconds else None,
            "bytes_per_s": grown / seconds if seconds and grown is not None else None,
            "size_bytes": size,
        }

    async def _groups(self, ends: dict[TopicPartition, int]) -> tuple[dict[str, dict[str, Any]], int]:
        """The groups with their lag, and how many were left out."""
        listed = await self._admin.groups.list()
        gate = asyncio.Semaphore(_GROUPS_AT_ONCE)

        async def lag_of(group: str, type: str) -> int | None:
            async with gate:
                try:
                    if type == SHARE:
                        # Records after its start offset may be done: the broker knows which count.
                        found = (await self._admin.groups.share_offsets(group)).values()
                        known = [at.lag for at in found if not isinstance(at, KafkaError)]
                        lags = [lag for lag in known if lag is not None]
                        return sum(lags) if lags else None
                    offsets = await self._admin.groups.offsets(group)
                except KafkaError:
                    return None
            return sum(max(ends[tp] - each.offset, 0) for tp, each in offsets.items() if tp in ends)

        shown = listed[:_MAX_GROUPS]
        lags = await asyncio.gather(*(lag_of(each.group_id, each.type) for each in shown))
        groups = {
            each.group_id: {"state": each.state, "type": each.type, "lag": lag}
            for each, lag in zip(shown, lags)
        }
        return groups, len(listed) - len(shown)

    def _topics_table(self, topics: dict[str, dict[str, Any]]) -> Table:
        busiest = sorted(
            topics.items(), key=lambda item: (-(item[1]["records_per_s"] or 0), -(item[1]["size_bytes"] or 0))
        )
        rows: list[Sequence[Cell]] = [
            (
                name,
                each["partitions"],
                None if each["records_per_s"] is None else round(each["records_per_s"], 1),
                None if each["bytes_per_s"] is None else size_text(int(each["bytes_per_s"])),
                size_text(each["size_bytes"]),
            )
            for name, each in busiest[: self._rows]
        ]
        columns = ["topic", "partitions", "records/s", "grows/s", "size"]
        return f"topics ({len(topics)})", columns, rows

    def _groups_table(self, groups: dict[str, dict[str, Any]]) -> Table:
        furthest = sorted(groups.items(), key=lambda item: (-(item[1]["lag"] or 0), item[0]))
        rows: list[Sequence[Cell]] = [
            (name, each["state"], each["type"], each["lag"]) for name, each in furthest[: self._rows]
        ]
        return f"groups ({len(groups)})", ["group", "state", "type", "lag"], rows


def _partitions(topic: TopicInfo) -> list[TopicPartition]:
    return [TopicPartition(topic.name, each.partition) for each in topic.partitions]


def _brokers(brokers: Sequence[Broker], topics: Sequence[TopicInfo], controller: int) -> list[dict[str, Any]]:
    partitions = [each for topic in topics for each in topic.partitions]
    return [
        {
            "broker": broker.node_id,
            "address": f"{broker.host}:{broker.port}",
            "controller": broker.node_id == controller,
            "replicas": sum(broker.node_id in each.replicas for each in partitions),
            "leads": sum(broker.node_id == each.leader for each in partitions),
            "in_sync": sum(broker.node_id in each.isr for each in partitions),
        }
        for broker in brokers
    ]


def _problems(topics: Sequence[TopicInfo]) -> list[str]:
    partitions = [each for topic in topics for each in topic.partitions]
    leaderless = sum(each.leader < 0 for each in partitions)
    behind = sum(len(each.isr) < len(each.replicas) for each in partitions)
    return [
        *([f"{leaderless} partitions have no leader"] if leaderless else ()),
        *([f"{behind} partitions have replicas that are not in sync"] if behind else ()),
    ]
