"""What a client makes costly is done in threads: the event loop serves the others meanwhile.

Nothing here measures time. Of each call into a codec it is noted in which thread it was and how many bytes it
gave; and such a call is held until another client has had its response.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from bench.attack import LargestMaker, lists_of
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic, produce_request

from ottla.node.api.handlers import describe_producers
from ottla.node.api.handlers import list_offsets as list_offsets_handler
from ottla.protocol.api import API_BY_NAME
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
)
from ottla.protocol.schema import Response
from ottla.records import batch, validation
from ottla.records.builder import build_batch, join_batch
from ottla.records.types import Codec
from ottla.runtime.heavy_work import HeavyWork
from ottla.runtime.turns import Turns
from ottla.testing.local_node import LocalNode

PRODUCE = API_BY_NAME["Produce"]
LIST_OFFSETS = API_BY_NAME["ListOffsets"]
BOMB_BYTES = 20_000_000
# Above what is decoded in a turn.
ENTRIES = 4_000
NOW = int(time.time() * 1000)


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def bomb(timestamp: int = NOW) -> bytes:
    """A batch of one record of 20 MB in 20 kB."""
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(BOMB_BYTES)
    record = varint(len(body) + BOMB_BYTES + 1) + body + bytes(BOMB_BYTES) + varint(0)
    return bytes(
        join_batch(
            zlib.compress(record, 9, wbits=31),
            base_offset=0,
            leader_epoch=-1,
            attributes=int(Codec.GZIP),
            last_offset_delta=0,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=1,
        )
    )


class Calls:
    """The calls into codecs: the thread and the bytes that came out. The next large one can be held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, int]] = []
        self.held = threading.Event()
        self.begun = threading.Event()
        self.held.set()
        for module, name in ((batch, "decompress"), (validation, "compress")):
            monkeypatch.setattr(module, name, self._noted(getattr(module, name)))

    def _noted(self, function: Any) -> Any:
        def noted(codec: Codec, data: Any, *args: Any) -> Any:
            self.begun.set()
            if threading.current_thread().name.startswith("heavy work"):
                assert self.held.wait(60)
            result = function(codec, data, *args)
            self.seen.append((threading.current_thread().name, max(len(result), len(data))))
            return result

        return noted

    def largest_on_the_loop(self) -> int:
        return max((size for thread, size in self.seen if not thread.startswith("heavy work")), default=0)

    def in_threads(self) -> int:
        return sum(thread.startswith("heavy work") for thread, _ in self.seen)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"log.message.timestamp.after.max.ms": 2**62}) as node:
        yield node


@pytest.fixture
def wire(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as wire:
        yield wire


@pytest.fixture
def bystander(node: LocalNode) -> Iterator[WireClient]:
    with WireClient(node.bootstrap_servers) as wire:
        yield wire


def produced(wire: WireClient) -> list[PartitionProduceResponse]:
    frame = wire.receive_frame()
    assert frame is not None
    _, response = read_response(PRODUCE, 9, frame)
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses


def is_served(bystander: WireClient) -> bool:
    answer = bystander.ask(ApiVersionsRequest(client_software_name="b", client_software_version="1"), 3)
    return isinstance(answer, ApiVersionsResponse)


def test_others_are_served_while_a_batch_decompresses_to_much(
    wire: WireClient, bystander: WireClient, calls: Calls
) -> None:
    create_topic(wire, "bombs", 2)
    calls.held.clear()
    wire.send(produce_request("bombs", bomb(), bomb()), 9)
    wire.send(produce_request("bombs", build_batch([(NOW, None, b"behind it")])), 9)
    assert calls.begun.wait(60)
    assert is_served(bystander)
    create_topic(bystander, "bystander", 2)
    bystander.send(produce_request("bystander", build_batch([(NOW, None, b"x")])), 9)
    assert produced(bystander)[0].error_code == 0
    calls.held.set()
    assert [(part.error_code, part.base_offset) for part in produced(wire)] == [(0, 0), (0, 0)]
    # The order of a connection is kept.
    assert [(part.error_code, part.base_offset) for part in produced(wire)] == [(0, 1)]
    assert calls.largest_on_the_loop() < 1_000_000
    assert any(size > BOMB_BYTES for _, size in calls.seen)


def test_an_ordinary_batch_is_checked_at_once(wire: WireClient, calls: Calls) -> None:
    create_topic(wire, "ordinary", 2)
    for codec in (Codec.LZ4, Codec.ZSTD, Codec.SNAPPY, Codec.GZIP):
        data = build_batch([(NOW, None, b"%d " % number * 30) for number in range(200)], codec=codec)
        wire.send(produce_request("ordinary", data), 9)
        assert produced(wire)[0].error_code == 0
    assert calls.seen
    assert calls.in_threads() == 0


@pytest.mark.parametrize(
    "compression",
    [{"compression.type": "zstd", "compression.zstd.level": "19"}, {"compression.type": "gzip"}],
)
def test_others_are_served_while_a_batch_is_compressed_for_its_topic(
    wire: WireClient, bystander: WireClient, calls: Calls, compression: dict[str, str]
) -> None:
    name = f"to-{compression['compression.type']}"
    create_topic(wire, name, 2, **compression)
    calls.held.clear()
    values = [(NOW, None, b"%d" % (number * 7919) * 20) for number in range(2_000)]
    wire.send(produce_request(name, build_batch(values), build_batch(values)), 9)
    assert calls.begun.wait(60)
    assert is_served(bystander)
    calls.held.set()
    assert [(part.error_code, part.base_offset) for part in produced(wire)] == [(0, 0), (0, 0)]
    assert calls.largest_on_the_loop() == 0


def test_a_batch_that_takes_too_long_to_compress_is_too_large(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(wire, "too-long", 2, **{"compression.type": "zstd", "compression.zstd.level": "19"})
    monkeypatch.setattr(validation, "MAX_COST_US", 1_000)
    wire.send(produce_request("too-long", build_batch([(NOW, None, bytes(100_000))])), 9)
    assert produced(wire)[0].error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_damaged_batch_is_refused_as_ever(wire: WireClient) -> None:
    create_topic(wire, "damaged", 2)
    header = batch.BatchHeader.parse(bomb())
    broken = bytes(
        join_batch(
            b"\x1f\x8b is no gzip" + bytes(200_000),
            base_offset=0,
            leader_epoch=-1,
            attributes=header.attributes,
            last_offset_delta=0,
            base_timestamp=NOW,
            max_timestamp=NOW,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=1,
        )
    )
    wire.send(produce_request("damaged", broken), 9)
    assert produced(wire)[0].error_code == ErrorCode.INVALID_RECORD


def test_the_time_of_an_append_is_not_that_of_the_check(
    node: LocalNode, wire: WireClient, calls: Calls
) -> None:
    """What was appended meanwhile is not younger than what comes after it."""
    create_topic(wire, "append-time", 2, **{"message.timestamp.type": "LogAppendTime"})
    calls.held.clear()
    wire.send(produce_request("append-time", bomb()), 9)
    assert calls.begun.wait(60)
    with WireClient(node.bootstrap_servers) as other:
        other.send(produce_request("append-time", build_batch([(NOW, None, b"first")])), 9)
        first = produced(other)[0]
    calls.held.set()
    second = produced(wire)[0]
    assert (first.base_offset, second.base_offset) == (0, 1)
    assert second.log_append_time_ms >= first.log_append_time_ms


def list_offsets(name: str, *timestamps: int) -> ListOffsetsRequest:
    parts = [
        ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
        for index, timestamp in enumerate(timestamps)
    ]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=parts)])


@pytest.mark.parametrize("timestamp", [5, -3])
def test_others_are_served_while_a_timestamp_is_searched_in_a_large_batch(
    wire: WireClient, bystander: WireClient, calls: Calls, timestamp: int
) -> None:
    name = f"search{timestamp}"
    create_topic(wire, name, 2)
    wire.send(produce_request(name, bomb(), bomb()), 9)
    assert [part.error_code for part in produced(wire)] == [0, 0]
    calls.seen.clear()
    calls.begun.clear()
    calls.held.clear()
    wire.send(list_offsets(name, timestamp, timestamp), 7)
    assert calls.begun.wait(60)
    assert is_served(bystander)
    calls.held.set()
    frame = wire.receive_frame()
    assert frame is not None
    _, response = read_response(LIST_OFFSETS, 7, frame)
    assert isinstance(response, ListOffsetsResponse)
    found = [(part.error_code, part.offset, part.timestamp) for part in response.topics[0].partitions]
    assert found == [(0, 0, NOW)] * 2
    assert calls.largest_on_the_loop() < 1_000_000


def test_a_search_over_many_batches_goes_on_in_a_thread(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches whose timestamps do not rise have no entries in the time index between them."""
    create_topic(wire, "many-batches", 2)
    steps: list[int] = []
    run = HeavyWork.run

    async def noted(self: HeavyWork, client: Any, cost_us: int, *args: Any, **options: Any) -> Any:
        steps.append(cost_us)
        return await run(self, client, cost_us, *args, **options)

    monkeypatch.setattr(HeavyWork, "run", noted)
    monkeypatch.setattr(list_offsets_handler, "INLINE_US", 1_000)
    old, new = build_batch([(NOW - 10, None, b"")]), build_batch([(NOW, None, b"")])
    count = 3_000
    for _ in range(count):
        wire.send(produce_request("many-batches", old), 9)
    wire.send(produce_request("many-batches", new), 9)
    for _ in range(count + 1):
        produced(wire)
    response = wire.get(list_offsets("many-batches", NOW - 5), 7, ListOffsetsResponse)
    found = response.topics[0].partitions[0]
    assert (found.error_code, found.offset, found.timestamp) == (0, count, NOW)
    assert len(steps) == 1


def test_many_producers_are_described_in_turns(wire: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(wire, "producers", 2)
    for producer_id in range(10):
        data = build_batch([(NOW, None, b"")], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        wire.send(produce_request("producers", data), 9)
        assert produced(wire)[0].error_code == 0
    monkeypatch.setattr(describe_producers, "_AT_ONCE", 3)
    pauses: list[int] = []
    pause = Turns.pause

    async def counted(self: Turns) -> None:
        pauses.append(1)
        await pause(self)

    monkeypatch.setattr(Turns, "pause", counted)
    monkeypatch.setattr(Turns, "is_due", lambda self: True)
    topics = [TopicRequest(name="producers", partition_indexes=[0])]
    response = wire.get(DescribeProducersRequest(topics=topics), 0, DescribeProducersResponse)
    found = response.topics[0].partitions[0].active_producers
    assert [producer.producer_id for producer in found] == list(range(10))
    assert len(pauses) >= 3


def test_a_request_for_many_partitions_is_looked_up_in_turns(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(wire, "wide-lookup", 2)
    monkeypatch.setattr(list_offsets_handler, "_PARTITIONS_AT_ONCE", 7)
    topics = [
        ListOffsetsTopic(
            name="wide-lookup",
            partitions=[
                ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-2)
                for index in range(100)
            ],
        )
    ]
    response = wire.get(ListOffsetsRequest(replica_id=-1, topics=topics), 7, ListOffsetsResponse)
    parts = response.topics[0].partitions
    assert [part.partition_index for part in parts] == list(range(100))
    assert [part.error_code for part in parts] == [0] * 2 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 98


def test_records_of_many_partitions_are_deleted_in_turns(wire: WireClient) -> None:
    create_topic(wire, "wide-deletion", 2)
    wire.ask(produce_request("wide-deletion", build_batch([(1, None, b"v")] * 5)), 9)
    parts = [DeleteRecordsPartition(partition_index=index, offset=1) for index in range(50)]
    again = [DeleteRecordsPartition(partition_index=0, offset=3)]
    topics = [DeleteRecordsTopic(name="wide-deletion", partitions=each) for each in (parts, again)]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=60_000)
    first, second = wire.get(request, 2, DeleteRecordsResponse).topics
    unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 48
    assert [part.error_code for part in first.partitions] == [
        0,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        *unknown,
    ]
    assert [part.partition_index for part in first.partitions] == list(range(50))
    assert second.partitions[0].low_watermark == 3


LONG = (
    *("Produce", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator"),
    *("CreateTopics", "DeleteTopics", "DeleteRecords", "CreatePartitions", "OffsetForLeaderEpoch"),
    *("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "AlterClientQuotas", "ElectLeaders"),
    *("DescribeGroups", "ConsumerGroupDescribe", "DescribeTopicPartitions", "TxnOffsetCommit"),
    *("DescribeTransactions", "DescribeUserScramCredentials", "DescribeLogDirs", "AddPartitionsToTxn"),
)


def test_the_entries_of_a_long_request_are_in_many_turns(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry, or some of them, where each has an answer of its own."""
    pauses: list[int] = []
    pause = Turns.pause

    async def counted(self: Turns) -> None:
        pauses.append(1)
        await pause(self)

    monkeypatch.setattr(Turns, "pause", counted)
    monkeypatch.setattr(Turns, "is_due", lambda self: True)
    few: dict[str, int] = {}
    for name in LONG:
        api = API_BY_NAME[name]
        place = next(lists_of(api.request_class, api.max_version))
        maker = LargestMaker(place, alike=False, entries=ENTRIES)
        pauses.clear()
        answer = wire.ask(maker.make(api.request_class, api.max_version), api.max_version)
        assert isinstance(answer, Response), name
        if len(pauses) < 10:
            few[name] = len(pauses)
    assert not few


def test_a_request_with_many_elements_is_decoded_in_a_thread_and_keeps_its_place(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    decode = OffsetCommitRequest.decode_from

    def noted(*args: Any) -> Any:
        found = decode(*args)
        threads.append(threading.current_thread().name)
        return found

    monkeypatch.setattr(OffsetCommitRequest, "decode_from", noted)
    parts = [OffsetCommitRequestPartition(partition_index=at, committed_offset=42) for at in range(2_000)]
    commit = OffsetCommitRequest(
        group_id="long",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="committed", partitions=parts)],
    )
    asked = [OffsetFetchRequestTopics(name="committed", partition_indexes=[0])]
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="long", topics=asked)])
    with WireClient(node.bootstrap_servers) as client:
        create_topic(client, "committed")
        find = FindCoordinatorRequest(coordinator_keys=["long"])
        wait_until(
            lambda: not client.get(find, 6, FindCoordinatorResponse).coordinators[0].error_code,
            "there is no coordinator",
        )
        wait_until(
            lambda: not client.get(fetch, 9, OffsetFetchResponse).groups[0].error_code,
            "the coordinator is not loaded",
        )
        client.send(commit, 9)
        client.send(fetch, 9)
        frames = [client.receive_frame() for _ in range(2)]
        assert frames[0]
        assert frames[1]
        first = read_response(API_BY_NAME["OffsetCommit"], 9, frames[0])[1]
        second = read_response(API_BY_NAME["OffsetFetch"], 9, frames[1])[1]
    assert isinstance(first, OffsetCommitResponse)
    assert isinstance(second, OffsetFetchResponse)
    codes = [part.error_code for part in first.topics[0].partitions]
    assert codes == [0] + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1_999
    assert second.groups[0].topics[0].partitions[0].committed_offset == 42
    assert [name.startswith("heavy work") for name in threads] == [True]
