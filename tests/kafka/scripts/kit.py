"""What the scripts share: the registry, topics to work on, batches good and bad."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from crc32c import crc32c

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from tests.support.differential import Script, Session

SCRIPTS: Final[dict[str, Script]] = {}
TIMEOUT_MS: Final = 10_000
TIMESTAMP: Final = 1_700_000_000_000
UNKNOWN_ID: Final = bytes(range(1, 17))
LATEST: Final = -1
EARLIEST: Final = -2
GROUP_RESOURCE: Final = 32
SET: Final = 0

_PARTITION_FIELDS = {field.name for field in FetchPartition.FIELDS}
_CRC = struct.Struct(">I")


def script(function: Script) -> Script:
    """Registers a script under the name of its function."""
    assert function.__name__ not in SCRIPTS, function.__name__
    SCRIPTS[function.__name__] = function
    return function


def make_topic(
    session: Session, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> bytes:
    """Creates a topic, waits until all of its partitions serve requests, and returns its id."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    created = session.get(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS), CreateTopicsResponse)
    assert created.topics[0].error_code == 0, created
    await_leaders(session, name, partitions)
    session.know("topic_id", created.topics[0].topic_id)
    return created.topics[0].topic_id


def await_leaders(session: Session, name: str, partitions: int) -> None:
    """Waits until the broker leads the first `partitions` partitions of a topic."""
    session.until(
        list_offsets_request(name, dict.fromkeys(range(partitions), LATEST)),
        ListOffsetsResponse,
        lambda answer: all(each.error_code == 0 for each in answer.topics[0].partitions),
    )


def configure_group(session: Session, group: str, settings: Mapping[str, str]) -> None:
    """Sets configurations of a group, and waits until the broker has applied them."""
    _set_group_configs(session, group, settings)
    await_applied(session)


def await_applied(session: Session) -> None:
    """Waits until the broker has applied all changes of topics and settings that it shows.

    Apache Kafka shows a change before its replicas, then its settings, then its coordinators have it, and
    applies changes one after the other: once it shows another change, it has applied those before.
    """
    name, group = "share.record.lock.duration.ms", "await-applied"
    shown = _group_configs(session.get(_group_configs_request(group), DescribeConfigsResponse))[name]
    assert shown is not None
    # Any value that is allowed and not the last one.
    _set_group_configs(session, group, {name: "15000" if shown == "60000" else str(int(shown) + 1)})


def _set_group_configs(session: Session, group: str, settings: Mapping[str, str]) -> None:
    resource = AlterConfigsResource(
        resource_type=GROUP_RESOURCE,
        resource_name=group,
        configs=[
            AlterableConfig(name=name, config_operation=SET, value=value) for name, value in settings.items()
        ],
    )
    altered = session.get(
        IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse
    )
    assert altered.responses[0].error_code == 0, altered
    session.until(
        _group_configs_request(group),
        DescribeConfigsResponse,
        lambda answer: settings.items() <= _group_configs(answer).items(),
    )


def _group_configs_request(group: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group)
    return DescribeConfigsRequest(resources=[resource])


def _group_configs(answer: DescribeConfigsResponse) -> dict[str, str | None]:
    return {each.name: each.value for each in answer.results[0].configs}


def new_producer(session: Session) -> int:
    """An id for an idempotent producer; a broker that has just begun may have to fetch its first ones."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    made = session.until(request, InitProducerIdResponse, lambda answer: answer.error_code == 0)
    session.know("producer_id", made.producer_id)
    return made.producer_id


def list_offsets_request(topic: str, timestamps: Mapping[int, int], **fields: Any) -> ListOffsetsRequest:
    partitions = [
        ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index, timestamp in timestamps.items()
    ]
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=partitions)], **fields
    )


def produce_request(
    topic: str, batch: bytes | None, *, topic_id: bytes = bytes(16), partition: int = 0, acks: int = -1
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        topic_data=[TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])],
    )


def fetch_request(
    topic_id: bytes, offset: int, *, topic: str = "", partition: int = 0, **fields: Any
) -> FetchRequest:
    """A fetch of one partition that does not wait; `fields` are those of the request or of the partition."""
    own = {name: fields.pop(name) for name in _PARTITION_FIELDS & fields.keys()}
    wanted = FetchPartition(
        partition=partition, fetch_offset=offset, **{"partition_max_bytes": 1_000_000, **own}
    )
    return FetchRequest(
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[wanted])],
        **{"max_wait_ms": 0, "min_bytes": 0, **fields},
    )


def fill(session: Session, topic: str, *batches: bytes, partition: int = 0) -> None:
    """Appends batches that the broker must take."""
    for batch in batches:
        answer = session.get(produce_request(topic, batch, partition=partition), ProduceResponse, 12)
        result = answer.responses[0].partition_responses[0]
        assert result.error_code == 0, (ErrorCode(result.error_code), result.error_message)


def batch_of(
    *values: bytes | None, timestamp: int = TIMESTAMP, key: bytes | None = b"k", **fields: Any
) -> bytes:
    """A batch with a record for each value; timestamps go up by one."""
    return build_batch([(timestamp + index, key, value) for index, value in enumerate(values)], **fields)


def patched(batch: bytes, position: int, layout: str, *values: int, checksum: bool = True) -> bytes:
    """A batch with some bytes overwritten, its checksum made right again unless that is the point."""
    data = bytearray(batch)
    struct.pack_into(layout, data, position, *values)
    if checksum:
        _CRC.pack_into(data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def keep_topics(prefix: str) -> Callable[[Any], None]:
    """An edit that leaves only the topics of a script in an answer about all topics."""

    def edit(answer: Any) -> None:
        answer.topics = [each for each in answer.topics if (each.name or "").startswith(prefix)]

    return edit
