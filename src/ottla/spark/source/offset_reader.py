"""Ask the cluster, for the driver, which partitions exist, where they begin and end, and how large they are.

Thousands of partitions take one request per broker (`ListOffsets` to the leaders, concurrently), and every
call has a deadline. Nothing here reads a record.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ottla.client.admin.offsets import FoundOffset, OffsetsAdmin, by_topic
from ottla.client.cluster_metadata import ClusterMetadata, TopicInfo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.names import TopicPartition
from ottla.spark.sink.options import OWN_TOPICS
from ottla.spark.source.client import SourceClient, source_client
from ottla.spark.source.offsets import EARLIEST, LATEST, OffsetLimit, OffsetLimitKind
from ottla.spark.source.options import SourceOptions

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]

NEW_TOPIC_WAIT_S = 1.0
NEW_TOPIC_POLL_S = 0.1
# A topic that was read is not taken for deleted for this long while a broker cannot be asked.
SILENT_BROKER_WAIT_S = 30.0
ASK_BROKER_S = 5.0
_TOPIC_RESOURCE = 2
_TIMESTAMP_TYPE = "message.timestamp.type"
_UNKNOWN = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION}
)
# What brokers answer for a topic that they do not have, or do not let the user see.
_NOT_THERE = _UNKNOWN | {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


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
class SourcePartitions:
    """The partitions to read, sorted, and the ids of their topics (none on brokers that have no ids)."""

    all: tuple[TopicPartition, ...]
    ids: Mapping[str, bytes]


class _Knowledge(Enum):
    """What all brokers together know of topics that one of them does not know."""

    KNOWN = "a broker knows one"
    UNSURE = "a broker does not answer"
    UNKNOWN = "no broker knows any"


class OffsetReader:
    """Asks the cluster about the topics that the options name."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @property
    def _client(self) -> SourceClient:
        return source_client(self._options.connection)

    def partitions(self, *, known: Iterable[str] = ()) -> SourcePartitions:
        """The partitions that exist now. Topics in `known` may be deleted, which is no error then."""
        return self._client.call(self._partitions(frozenset(known)))

    def offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        """Offsets for `EARLIEST`, `LATEST` or timestamps: -1 where no record is that young. Partitions that
        no longer exist are left out.
        """
        return self._client.call(self._offsets(wanted))

    def start_of(self, limit: OffsetLimit, partitions: SourcePartitions) -> Offsets:
        """The first offset to read in each partition."""
        return self._resolve(limit, partitions, starting=True)

    def end_of(self, limit: OffsetLimit, partitions: SourcePartitions) -> Offsets:
        """The offset to stop before in each partition."""
        return self._resolve(limit, partitions, starting=False)

    def bytes_per_offset(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """The average size of a record on disk, where the brokers report sizes."""
        wanted = set(partitions)
        begins = self.offsets(dict.fromkeys(wanted, EARLIEST))
        ends = self.offsets(dict.fromkeys(wanted, LATEST))
        sizes = self._client.call(self._sizes_on_disk(wanted))
        return {
            partition: size / (ends[partition] - begins[partition])
            for partition, size in sizes.items()
            if ends.get(partition, 0) > begins.get(partition, 0)
        }

    def topics_with_log_append_time(self, topics: Iterable[str]) -> set[str]:
        """The topics whose timestamps the broker sets, so that they never go back. Empty if not known."""
        return self._client.call(self._topics_with_log_append_time(sorted(topics)))

    # Partitions.

    async def _partitions(self, known: frozenset[str]) -> SourcePartitions:
        options = self._options
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while True:
            view = await self._client.retrying(
                self._refresh, f"metadata for {options.subject}", timeout_ms=options.api_timeout_ms
            )
            found = self._pick(view)
            missing = sorted(name for name, info in found.items() if info is None and name not in known)
            gone = [name for name in known if found.get(name) is None and self._may_name(name)]
            if not (missing or gone):
                break
            # Not every broker may know a new topic yet, and one that has just started may know no topic.
            waited = loop.time() - begin
            if waited >= NEW_TOPIC_WAIT_S:
                knowledge = await self._ask_all({*missing, *gone})
                if knowledge is _Knowledge.KNOWN and waited >= options.api_timeout_ms / 1000:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"topic {[*missing, *gone][0]!r} is known to some brokers and not to others, for "
                        f"{waited:.0f} s",
                    )
                if knowledge is _Knowledge.UNKNOWN:
                    break
                if knowledge is _Knowledge.UNSURE and (not gone or waited >= SILENT_BROKER_WAIT_S):
                    break
            await asyncio.sleep(NEW_TOPIC_POLL_S)
        if missing:
            raise UnknownTopic(
                f"topic {missing[0]!r} does not exist in the cluster at "
                f"{options.connection.bootstrap_servers}; create it first, or correct the name"
            )
        topics = {name: info for name, info in found.items() if info is not None}
        return SourcePartitions(
            tuple(self._assigned_or_all(topics)),
            {name: info.topic_id for name, info in topics.items() if info.topic_id is not None},
        )

    async def _ask_all(self, topics: Iterable[str]) -> _Knowledge:
        """Ask every broker for these topics: one that lags behind is no proof that a topic was deleted."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in sorted(topics)],
            allow_auto_topic_creation=False,
        )
        cluster = self._client.cluster

        async def ask(node_id: int) -> _Knowledge:
            try:
                async with asyncio.timeout(ASK_BROKER_S):
                    answer = await cluster.request(node_id, request, MetadataResponse)
            except (KafkaError, TimeoutError):
                return _Knowledge.UNSURE
            known = any(ErrorCode.of(each.error_code) not in _NOT_THERE for each in answer.topics)
            return _Knowledge.KNOWN if known else _Knowledge.UNKNOWN

        found = await asyncio.gather(*map(ask, cluster.metadata.brokers))
        if _Knowledge.KNOWN in found:
            return _Knowledge.KNOWN
        return _Knowledge.UNSURE if _Knowledge.UNSURE in found else _Knowledge.UNKNOWN

    async def _refresh(self) -> ClusterMetadata:
        options = self._options
        if options.pattern is not None:
            return await self._client.cluster.refresh(all_topics=True)
        names = options.topics or {partition.topic for partition in options.assigned}
        return await self._client.cluster.refresh(topics=names)

    def _may_name(self, topic: str) -> bool:
        """Whether the options name this topic, if it exists."""
        options = self._options
        if options.pattern is not None:
            return not topic.startswith(OWN_TOPICS) and re.search(options.pattern, topic) is not None
        return topic in options.topics or any(each.topic == topic for each in options.assigned)

    def _pick(self, view: ClusterMetadata) -> dict[str, TopicInfo | None]:
        options = self._options
        if options.pattern is not None:
            pattern = re.compile(options.pattern)
            return {
                name: info
                for name, info in view.topics.items()
                if not (info.is_internal or info.error or name.startswith(OWN_TOPICS))
                and pattern.search(name)
            }
        found: dict[str, TopicInfo | None] = {}
        for name in options.topics or sorted({partition.topic for partition in options.assigned}):
            info = view.topics.get(name)
            if info is not None and info.error and info.error not in _UNKNOWN:
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

    def _resolve(self, limit: OffsetLimit, partitions: SourcePartitions, *, starting: bool) -> Offsets:
        every = partitions.all
        match limit.kind:
            case OffsetLimitKind.EARLIEST:
                return self._exact(dict.fromkeys(every, EARLIEST))
            case OffsetLimitKind.LATEST:
                return self._exact(dict.fromkeys(every, LATEST))
            case OffsetLimitKind.TIME:
                return self._by_time(dict.fromkeys(every, limit.time_ms), starting=starting)
        self._check_complete(limit, every, starting=starting)
        if limit.kind is OffsetLimitKind.TIMES:
            return self._by_time(limit.by_partition, starting=starting)
        symbolic = {p: offset for p, offset in limit.by_partition.items() if offset < 0}
        return {**limit.by_partition, **(self._exact(symbolic) if symbolic else {})}

    def _check_complete(
        self, limit: OffsetLimit, partitions: tuple[TopicPartition, ...], *, starting: bool
    ) -> None:
        if limit.by_partition.keys() == set(partitions):
            return
        side = "starting" if starting else "ending"
        option = f"{side}Offsets" if limit.kind is OffsetLimitKind.OFFSETS else f"{side}OffsetsByTimestamp"
        missing = sorted(set(partitions) - limit.by_partition.keys())
        extra = sorted(limit.by_partition.keys() - set(partitions))
        found = []
        if missing:
            found.append(f"missing are {_list_some(missing)}")
        if extra:
            found.append(f"{_list_some(extra)} are not read by {self._options.subject}")
        hint = "; -1 stands for latest, -2 for earliest" if limit.kind is OffsetLimitKind.OFFSETS else ""
        raise ValueError(f"{option} must name all partitions and no others: {'; '.join(found)}{hint}")

    def _by_time(self, times: Mapping[TopicPartition, int], *, starting: bool) -> Offsets:
        # Negative timestamps have another meaning to a broker, and no record is older than 0.
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
        loop = asyncio.get_running_loop()
        unknown_since: dict[TopicPartition, float] = {}

        async def ask() -> dict[TopicPartition, FoundOffset | KafkaError]:
            found = await OffsetsAdmin(self._client.caller(0)).list(
                wanted, read_committed=options.read_committed
            )
            errors = {p: result for p, result in found.items() if isinstance(result, KafkaError)}
            for error in errors.values():
                if error.retriable and error.code not in _UNKNOWN:
                    raise error
            errors = {p: error for p, error in errors.items() if error.retriable}
            if errors:
                # A leader that has just started, or lost its leadership, may not know its partition. Only one
                # that no broker knows for a while is deleted.
                topics = {partition.topic for partition in errors}
                view = await self._client.cluster.refresh(topics=topics)
                for partition, error in errors.items():
                    first = unknown_since.setdefault(partition, loop.time())
                    if _exists(view, partition) or loop.time() - first < NEW_TOPIC_WAIT_S:
                        raise error
                knowledge = await self._ask_all(topics)
                longest = loop.time() - min(unknown_since[partition] for partition in errors)
                if knowledge is _Knowledge.KNOWN or (
                    knowledge is _Knowledge.UNSURE and longest < SILENT_BROKER_WAIT_S
                ):
                    raise next(iter(errors.values()))
            return found

        found = await self._client.retrying(
            ask, f"offsets for {options.subject}", timeout_ms=options.api_timeout_ms
        )
        offsets: Offsets = {}
        for partition, result in found.items():
            if not isinstance(result, KafkaError):
                offsets[partition] = result.offset
            elif result.code not in _UNKNOWN:
                raise result
        return offsets

    # Facts that improve a plan. A broker that refuses or does not answer changes no result.

    async def _sizes_on_disk(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The bytes of each partition on its leader's disk. Needs DESCRIBE on the cluster."""
        leaders: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            info = self._client.cluster.metadata.leader(partition)
            if info is not None:
                leaders.setdefault(info.leader, []).append(partition)
        try:
            async with asyncio.timeout(self._options.api_timeout_ms / 1000):
                answers = await asyncio.gather(
                    *(self._sizes_on_broker(node, owned) for node, owned in leaders.items())
                )
        except (KafkaError, TimeoutError) as error:
            log.info("sizes of partitions are not known, so tasks are not split by bytes: %s", error)
            return {}
        return {partition: size for answer in answers for partition, size in answer.items()}

    async def _sizes_on_broker(
        self, node_id: int, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        request = DescribeLogDirsRequest(
            topics=[
                DescribableLogDirTopic(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        )
        answer = await self._client.cluster.request(node_id, request, DescribeLogDirsResponse)
        return {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for result in answer.results
            for topic in result.topics
            for each in topic.partitions
            if not each.is_future_key
        }

    async def _topics_with_log_append_time(self, topics: list[str]) -> set[str]:
        if not topics:
            return set()
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=[_TIMESTAMP_TYPE]
                )
                for topic in topics
            ]
        )
        try:
            async with asyncio.timeout(self._options.api_timeout_ms / 1000):
                answer = await self._client.cluster.request_any(request, DescribeConfigsResponse)
        except (KafkaError, TimeoutError) as error:
            log.info("%s is not known, so timestamps are no upper bounds: %s", _TIMESTAMP_TYPE, error)
            return set()
        return {
            result.resource_name
            for result in answer.results
            if not result.error_code
            for entry in result.configs
            if entry.name == _TIMESTAMP_TYPE and entry.value == "LogAppendTime"
        }


def _exists(view: ClusterMetadata, partition: TopicPartition) -> bool:
    topic = view.topics.get(partition.topic)
    return topic is not None and any(each.partition == partition.partition for each in topic.partitions)


def _list_some(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions[:5])) + (", …" if len(partitions) > 5 else "")
