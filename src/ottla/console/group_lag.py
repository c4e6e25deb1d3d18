"""How far a group is behind: its committed offsets against the ends of its partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.admin import Admin
from ottla.client.admin.offsets import OffsetSpec
from ottla.console.cluster_access import ClusterAccess
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition


class GroupOffset(NamedTuple):
    """Where a group is in a partition. A share group has records behind its start offset that are done: its
    `lag`, where the broker says it, counts those that are not.
    """

    offset: int
    metadata: str = ""
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """What is not known is None: nothing was committed, or the end could not be read."""

    partition: TopicPartition
    at: GroupOffset | None
    end: int | None

    @property
    def committed(self) -> int | None:
        return None if self.at is None else self.at.offset

    @property
    def metadata(self) -> str:
        return "" if self.at is None else self.at.metadata

    @property
    def lag(self) -> int | None:
        if self.at is not None and self.at.lag is not None:
            return self.at.lag
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)

    @property
    def done(self) -> int | None:
        """How many records from the start offset of a share group on are done."""
        if self.committed is None or self.end is None or self.lag is None:
            return None
        return max(self.end - self.committed - self.lag, 0)


async def committed_offsets(admin: Admin, group_id: str, type: str) -> dict[TopicPartition, GroupOffset]:
    """The committed offsets of a group with their metadata; of a share group, where its partitions begin."""
    if type == "share":
        return {
            each: GroupOffset(at.start_offset, lag=at.lag)
            for each, at in (await admin.groups.share_offsets(group_id)).items()
            if not isinstance(at, KafkaError) and at.start_offset is not None
        }
    found = await admin.groups.offsets(group_id)
    return {each: GroupOffset(at.offset, at.metadata) for each, at in found.items()}


async def end_offsets(
    access: ClusterAccess, partitions: Iterable[TopicPartition], spec: int = OffsetSpec.LATEST
) -> dict[TopicPartition, int]:
    """The ends of partitions; those that cannot be read are left out."""
    wanted = list(dict.fromkeys(partitions))
    if not wanted:
        return {}
    known = {topic.name: len(topic.partitions) for topic in await access.topics() if not topic.error}
    # A partition that does not exist would have all topics be read again.
    wanted = [each for each in wanted if each.partition < known.get(each.topic, 0)]
    found = await (await access.listing()).offsets.list(dict.fromkeys(wanted, int(spec)))
    return {each: at.offset for each, at in found.items() if not isinstance(at, KafkaError)}


async def group_lags(
    access: ClusterAccess,
    committed: Mapping[TopicPartition, GroupOffset],
    assigned: Iterable[TopicPartition] = (),
) -> list[PartitionLag]:
    """The lag of each partition that has a committed offset or is assigned, by name."""
    partitions = sorted({*committed, *assigned})
    ends = await end_offsets(access, partitions)
    return [PartitionLag(each, committed.get(each), ends.get(each)) for each in partitions]


def total_lag(lags: Iterable[PartitionLag]) -> int | None:
    """The lag of a group; None if that of no partition is known."""
    known = [each.lag for each in lags if each.lag is not None]
    return sum(known) if known else None
