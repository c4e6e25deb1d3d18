"""What the driver asks the cluster: which partitions there are, and where they begin and end.

Partitions by the thousand are asked for in one request per broker (`ListOffsets` to the leaders, all at
once), and every call has a deadline. Nothing here reads a record.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.client.admin.offsets import FoundOffset, OffsetsAdmin
from ottla.client.view import ClusterView, TopicInfo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.spark.source.limits import EARLIEST, LATEST, Limit, LimitKind
from ottla.spark.source.link import Link, link_to
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.sizes import sizes_on_disk

__all__ = ["Partitions", "Planner", "UnknownTopic"]

Offsets = dict[TopicPartition, int]

NEW_TOPIC_WAIT_S = 1.0
NEW_TOPIC_POLL_S = 0.1
_NOT_THERE = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION}
)


class UnknownTopic(KafkaError):
    """A topic or partition that the options name does not exist."""

    __slots__ = ()

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type[UnknownTopic], tuple[str]]:
        return type(self), (self.message,)

    @property
    def retriable(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions to read, sorted, and the ids of their topics (none on brokers that have no ids)."""

    all: tuple[TopicPartition, ...]
    ids: Mapping[str, bytes]


class Planner:
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @property
    def _link(self) -> Link:
        return link_to(self._options.connection)

    def partitions(self, *, known: Iterable[str] = ()) -> Partitions:
        """Those that there are now. Topics in `known` may be gone, which is not an error then."""
        return self._link.call(self._partitions(frozenset(known)))

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Offsets for `EARLIEST`, `LATEST`, or times: then -1 where no record is that young. Partitions
        that no longer exist are left out.
        """
        return self._link.call(self._offsets(wanted))

    def start_of(self, limit: Limit, partitions: Partitions) -> Offsets:
        """Where to begin in each partition."""
        return self._resolved(limit, partitions, starting=True)

    def end_of(self, limit: Limit, partitions: Partitions) -> Offsets:
        return self._resolved(limit, partitions, starting=False)

    def bytes_per_offset(
        self, partitions: Iterable[TopicPartition], starts: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, float]:
        """How large a record is on disk, on average, where the brokers tell. `starts` are the beginnings of
        the logs, where they are known already.
        """
        wanted = set(partitions)
        begins = self.offsets(dict.fromkeys(wanted, EARLIEST)) if starts is None else starts
        ends = self.offsets(dict.fromkeys(wanted, LATEST))
        sizes = self._link.call(sizes_on_disk(self._link, wanted, timeout_ms=self._options.api_timeout_ms))
        return {
            partition: size / (ends[partition] - begins[partition])
            for partition, size in sizes.items()
            if ends.get(partition, 0) > begins.get(partition, 0)
        }

    def topics_in_order_of_time(self, topics: Iterable[str]) -> set[str]:
        """Those whose records have the broker's times, which never go back; none where it does not tell."""
        from ottla.spark.source.times import topics_with_append_time

        return self._link.call(
            topics_with_append_time(self._link, sorted(topics), timeout_ms=self._options.api_timeout_ms)
        )

    # Partitions.

    async def _partitions(self, known: frozenset[str]) -> Partitions:
        options = self._options
        deadline = asyncio.get_running_loop().time() + NEW_TOPIC_WAIT_S
        while True:
            view = await self._link.retrying(
                self._refresh, f"metadata for {options.subject}", timeout_ms=options.api_timeout_ms
            )
            found = self._pick(view)
            missing = sorted(name for name, info in found.items() if info is None and name not in known)
            # A topic that was created just now may not have reached every broker.
            if not missing or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(NEW_TOPIC_POLL_S)
        if missing:
            raise UnknownTopic(
                f"topic {missing[0]!r} does not exist in the cluster at "
                f"{options.connection.bootstrap_servers}; create it first, or correct the name"
            )
        topics = {name: info for name, info in found.items() if info is not None}
        return Partitions(
            tuple(self._assigned_or_all(topics)),
            {name: info.topic_id for name, info in topics.items() if info.topic_id is not None},
        )

    async def _refresh(self) -> ClusterView:
        options = self._options
        if options.pattern is not None:
            return await self._link.cluster.refresh(all_topics=True)
        names = options.topics or {partition.topic for partition in options.assigned}
        return await self._link.cluster.refresh(topics=names)

    def _pick(self, view: ClusterView) -> dict[str, TopicInfo | None]:
        options = self._options
        if options.pattern is not None:
            pattern = re.compile(options.pattern)
            return {
                name: info
                for name, info in view.topics.items()
                if not info.is_internal and not info.error and pattern.fullmatch(name)
            }
        found: dict[str, TopicInfo | None] = {}
        for name in options.topics or sorted({partition.topic for partition in options.assigned}):
            info = view.topics.get(name)
            if info is not None and info.error and info.error not in _NOT_THERE:
                raise KafkaError(info.error, f"topic {name!r}: {info.error.text}")
            found[name] = info if info is not None and not info.error else None
        return found

    def _assigned_or_all(self, topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
        there = {
            TopicPartition(name, each.partition) for name, info in topics.items() for each in info.partitions
        }
        if not self._options.assigned:
            return sorted(there)
        for partition in self._options.assigned:
            if partition.topic in topics and partition not in there:
                count = len(topics[partition.topic].partitions)
                raise UnknownTopic(
                    f"assign: topic {partition.topic!r} has no partition {partition.partition}; "
                    f"it has {count}, 0 to {count - 1}"
                )
        return sorted(there.intersection(self._options.assigned))

    # Offsets.

    def _resolved(self, limit: Limit, partitions: Partitions, *, starting: bool) -> Offsets:
        all_of_them = partitions.all
        match limit.kind:
            case LimitKind.EARLIEST:
                return self._exact(dict.fromkeys(all_of_them, EARLIEST))
            case LimitKind.LATEST:
                return self._exact(dict.fromkeys(all_of_them, LATEST))
            case LimitKind.TIME:
                return self._by_time(dict.fromkeys(all_of_them, limit.time_ms), starting=starting)
        self._check_complete(limit, all_of_them, starting=starting)
        if limit.kind is LimitKind.TIMES:
            return self._by_time(limit.by_partition, starting=starting)
        symbolic = {p: offset for p, offset in limit.by_partition.items() if offset < 0}
        return {**limit.by_partition, **(self._exact(symbolic) if symbolic else {})}

    def _check_complete(
        self, limit: Limit, partitions: tuple[TopicPartition, ...], *, starting: bool
    ) -> None:
        if limit.by_partition.keys() == set(partitions):
            return
        side = "starting" if starting else "ending"
        option = f"{side}Offsets" if limit.kind is LimitKind.OFFSETS else f"{side}OffsetsByTimestamp"
        missing = sorted(set(partitions) - limit.by_partition.keys())
        extra = sorted(limit.by_partition.keys() - set(partitions))
        found = []
        if missing:
            found.append(f"missing are {_some(missing)}")
        if extra:
            found.append(f"{_some(extra)} are not read by {self._options.subject}")
        hint = "; -1 stands for latest, -2 for earliest" if limit.kind is LimitKind.OFFSETS else ""
        raise ValueError(f"{option} must name all partitions and no others: {'; '.join(found)}{hint}")

    def _by_time(self, times: Mapping[TopicPartition, int], *, starting: bool) -> Offsets:
        # Negative times mean something else to a broker, and no record is older than that.
        found = self._exact({partition: max(time, 0) for partition, time in times.items()})
        without = [partition for partition, offset in found.items() if offset < 0]
        if without and starting and not self._options.no_match_is_latest:
            raise ValueError(
                f"no record of {without[0]} is as young as {times[without[0]]} (starting timestamp); "
                "set startingOffsetsByTimestampStrategy to latest to begin at the end of such partitions"
            )
        return {**found, **(self._exact(dict.fromkeys(without, LATEST)) if without else {})}

    def _exact(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        found = self.offsets(wanted)
        for partition in wanted:
            if partition not in found:
                raise UnknownTopic(f"{partition} was deleted while its offsets were asked for")
        return found

    async def _offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        if not wanted:
            return {}
        options = self._options

        async def ask() -> dict[TopicPartition, FoundOffset | KafkaError]:
            found = await OffsetsAdmin(self._link.caller(0)).list(
                wanted, read_committed=options.read_committed
            )
            for result in found.values():
                if isinstance(result, KafkaError) and result.retriable and result.code not in _NOT_THERE:
                    raise result
            return found

        found = await self._link.retrying(
            ask, f"offsets for {options.subject}", timeout_ms=options.api_timeout_ms
        )
        offsets: Offsets = {}
        for partition, result in found.items():
            if not isinstance(result, KafkaError):
                offsets[partition] = result.offset
            elif result.code not in _NOT_THERE:
                raise result
        return offsets


def _some(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions[:5])) + (", …" if len(partitions) > 5 else "")
