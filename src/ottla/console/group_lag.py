"""How far a group is behind: its committed offsets against the ends of its partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.client.admin import Admin
from ottla.client.admin.offsets import OffsetSpec
from ottla.console.cluster_access import ClusterAccess
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition

__all__ = ["PartitionLag", "end_offsets", "group_lags", "total_lag"]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """What is not known is None: nothing was committed, or the end could not be read."""

    partition: TopicPartition
    committed: int | None
    metadata: str
    end: int | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)


async def committed_offsets(admin: Admin, group_id: str, type: str) -> dict[TopicPartition, tuple[int, str]]:
    """The committed offsets of a group with their metadata; of a share group, where its partitions begin."""
    if type == "share":
        return {each: (at, "") for each, at in (await admin.groups.share_offsets(group_id)).items()}
    found = await admin.groups.offsets(group_id)
    return {each: (at.offset, at.metadata) for each, at in found.items()}


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
    committed: Mapping[TopicPartition, tuple[int, str]],
    assigned: Iterable[TopicPartition] = (),
) -> list[PartitionLag]:
    """The lag of each partition that has a committed offset or is assigned, by name."""
    partitions = sorted({*committed, *assigned})
    ends = await end_offsets(access, partitions)
    return [
        PartitionLag(
            each,
            committed[each][0] if each in committed else None,
            committed[each][1] if each in committed else "",
            ends.get(each),
        )
        for each in partitions
    ]


def total_lag(lags: Iterable[PartitionLag]) -> int | None:
    """The lag of a group; None if that of no partition is known."""
    known = [each.lag for each in lags if each.lag is not None]
    return sum(known) if known else None
