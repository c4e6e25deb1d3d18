"""Several brokers that a test plays itself: real sockets, Kafka's protocol, and answers of its choice.

For what one node cannot show a client: leaders that move, followers that serve reads, logs that were cut. The
cluster answers ApiVersions, Metadata, FindCoordinator and ListOffsets by its fields; every other request goes
to the function that the test registered for it. `seen` keeps every request with the broker that got it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from ottla.protocol.api import API, ListenerType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import RequestFrame, read_request_header, response_parts
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.schema import Request, Response
from ottla.records.builder import build_batch

R = TypeVar("R", bound=Request)
EARLIEST = -2
TOPIC = "t"
TOPIC_ID = b"topic-id" * 2


def batch(first: int, count: int, *, epoch: int, size: int = 10) -> bytes:
    """Records with the values 0, 1, ... from offset `first` on, written under a leader epoch."""
    records = [(1_000 + n, None, b"%d" % (first + n) + b"." * size) for n in range(count)]
    return build_batch(records, base_offset=first, leader_epoch=epoch)


@dataclass
class FakePartition:
    leader: int = 1
    epoch: int = 0
    replicas: tuple[int, ...] = (1, 2)
    start: int = 0
    end: int = 0


@dataclass
class FakeCluster:
    """`async with` it; brokers are numbered from 1."""

    brokers: int = 2
    partitions: list[FakePartition] = field(default_factory=lambda: [FakePartition()])
    coordinator: int = 1
    # The versions that brokers know, by API key; all of ours if there are none.
    versions: dict[int, tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        self.seen: list[tuple[int, Request]] = []
        self._answers: dict[type[Request], Callable[[int, Any], Response | Awaitable[Response]]] = {
            ApiVersionsRequest: self.api_versions,
            MetadataRequest: self.metadata,
            ListOffsetsRequest: self._list_offsets,
            FindCoordinatorRequest: self._find_coordinator,
            OffsetFetchRequest: self._offset_fetch,
            InitProducerIdRequest: lambda *_: InitProducerIdResponse(producer_id=7, producer_epoch=0),
        }
        self._servers: dict[int, asyncio.Server] = {}
        self._writers: dict[int, set[asyncio.StreamWriter]] = {}
        self.ports: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        for node_id in range(1, self.brokers + 1):
            await self.start(node_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node_id in list(self._servers):
            self.stop(node_id)

    async def start(self, node_id: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(node_id, reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", self.ports.get(node_id, 0))
        self._servers[node_id] = server
        self.ports[node_id] = server.sockets[0].getsockname()[1]

    def stop(self, node_id: int) -> None:
        self._servers.pop(node_id).close()
        for writer in self._writers.pop(node_id, set()):
            writer.transport.abort()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def on(self, request: type[R], answer: Callable[[int, R], Response | Awaitable[Response]]) -> None:
        """What brokers say to a request, by the broker's number and the request; now or later."""
        self._answers[request] = answer

    def asked(self, request: type[R]) -> list[tuple[int, R]]:
        return [(node_id, each) for node_id, each in self.seen if isinstance(each, request)]

    async def _serve(self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads ahead, as a socket's buffer would, and answers one request after the other."""
        self._writers.setdefault(node_id, set()).add(writer)
        waiting: asyncio.Queue[tuple[RequestFrame, Request]] = asyncio.Queue()
        answering = asyncio.create_task(self._answer(node_id, waiting, writer))
        answering.add_done_callback(lambda _: writer.transport.abort())  # a test's own fault shows, too
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                head = read_request_header(frame)
                request, _ = head.api.request_class.decode_from(frame, head.position, head.version)
                self.seen.append((node_id, request))
                waiting.put_nowait((head, request))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            writer.close()

    async def _answer(
        self, node_id: int, waiting: asyncio.Queue[tuple[RequestFrame, Request]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            head, request = await waiting.get()
            version = head.version
            answer = self._answers[type(request)](node_id, request)
            if self.versions is not None and not self._knows(head.api.key, version):
                # As a broker must: in the oldest form, with the versions it has.
                assert isinstance(answer, ApiVersionsResponse), f"{head.api.name} v{version} is unknown"
                answer.error_code, version = ErrorCode.UNSUPPORTED_VERSION, 0
            if not isinstance(answer, Response):
                answer = await answer
            if isinstance(request, FetchRequest) and isinstance(answer, FetchResponse) and _is_empty(answer):
                await asyncio.sleep(request.max_wait_ms / 1000)
            writer.writelines(response_parts(head.api, version, head.correlation_id, answer))
            await writer.drain()

    def _knows(self, key: int, version: int) -> bool:
        first, last = (self.versions or {}).get(key, (0, -1))
        return first <= version <= last

    # What every client asks.

    def api_versions(self, node_id: int, request: ApiVersionsRequest) -> Response:
        ranges = self.versions or {
            api.key: api.announced_versions(ListenerType.BROKER)
            for api in API.values()
            if ListenerType.BROKER in api.listeners
        }
        keys = [
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in ranges.items()
        ]
        return ApiVersionsResponse(api_keys=keys)

    def metadata(self, node_id: int, request: MetadataRequest) -> MetadataResponse:
        brokers = [
            MetadataResponseBroker(node_id=n, host="127.0.0.1", port=port) for n, port in self.ports.items()
        ]
        partitions = [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=p.leader,
                leader_epoch=p.epoch,
                replica_nodes=list(p.replicas),
                isr_nodes=list(p.replicas),
            )
            for index, p in enumerate(self.partitions)
        ]
        topic = MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=partitions)
        return MetadataResponse(brokers=brokers, cluster_id="fake", controller_id=1, topics=[topic])

    def _list_offsets(self, node_id: int, request: ListOffsetsRequest) -> Response:
        topics = []
        for topic in request.topics:
            found = []
            for asked in topic.partitions:
                p = self.partitions[asked.partition_index]
                offset = p.start if asked.timestamp == EARLIEST else p.end
                found.append(
                    ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=offset)
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
        return ListOffsetsResponse(topics=topics)

    def _offset_fetch(self, node_id: int, request: OffsetFetchRequest) -> Response:
        """Nothing is committed."""
        return OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group_id=group.group_id) for group in request.groups]
        )

    def _find_coordinator(self, node_id: int, request: FindCoordinatorRequest) -> Response:
        n = self.coordinator
        if not request.coordinator_keys:
            return FindCoordinatorResponse(node_id=n, host="127.0.0.1", port=self.ports[n])
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=n, host="127.0.0.1", port=self.ports[n])
                for key in request.coordinator_keys
            ]
        )


def _is_empty(answer: FetchResponse) -> bool:
    return not any(
        data.records or data.error_code or data.preferred_read_replica >= 0
        for topic in answer.responses
        for data in topic.partitions
    )


def fetched(request: FetchRequest, answer: Callable[[FetchPartition], PartitionData]) -> FetchResponse:
    """The answer to a fetch, from one for each partition. Sessions are not offered."""
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic, topic_id=topic.topic_id, partitions=[answer(p) for p in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def produced(request: ProduceRequest, *, code: int = 0, offset: int = 42) -> ProduceResponse:
    """The answer to a produce request, the same for each partition."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=p.index, error_code=code, base_offset=-1 if code else offset
                    )
                    for p in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def offsets_fetched(requests: Sequence[tuple[int, FetchRequest]]) -> list[tuple[int, int]]:
    """(broker, offset) for each partition of these fetches."""
    return [
        (node_id, p.fetch_offset)
        for node_id, request in requests
        for topic in request.topics
        for p in topic.partitions
    ]
