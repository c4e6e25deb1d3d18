"""A Kafka client with no mind of its own: it sends the request it is given and returns what comes back.

No retries, no metadata, no version negotiation: tests see every answer of a broker as it is, including the
closing of the connection, which is an answer too (`CLOSED`). A broker that says nothing at all fails the test
when the time limit is over.
"""

from __future__ import annotations

import enum
import socket
import struct
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.schema import Buffer, Request, Response

TIMEOUT_S: Final = 60.0
CLIENT_ID: Final = "wire"

R = TypeVar("R", bound=Response)


class Closed(enum.Enum):
    """The broker closed the connection instead of answering."""

    CLOSED = "closed"


CLOSED: Final = Closed.CLOSED
Answer: TypeAlias = Response | Closed


class WireClient:
    """One connection at a time to one address; the next request opens a closed connection again."""

    def __init__(
        self, address: str, *, client_id: str | None = CLIENT_ID, timeout_s: float = TIMEOUT_S
    ) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._next_correlation_id = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request: Request, version: int) -> Answer:
        """Sends one request and waits for its answer."""
        correlation_id = self.send(request, version)
        frame = self.receive_frame()
        if frame is None:
            return CLOSED
        answered_id, response = read_response(API[request.API_KEY], version, frame)
        assert answered_id == correlation_id, f"answer {answered_id} to request {correlation_id}"
        return response

    def get(self, request: Request, version: int, kind: type[R]) -> R:
        """As `ask`, for requests that set the scene: anything but an answer of this kind fails the test."""
        answer = self.ask(request, version)
        assert isinstance(answer, kind), f"{request!r} was answered by {answer!r}"
        return answer

    def send(self, request: Request, version: int) -> int:
        """Sends one request, and returns its correlation id without waiting for anything."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        self.send_bytes(b"".join(request_parts(version, correlation_id, self._client_id, request)))
        return correlation_id

    def send_frame(self, payload: Buffer) -> None:
        """Sends bytes as a frame: their size before them, whatever they are."""
        self.send_bytes(struct.pack(">i", len(payload)) + bytes(payload))

    def send_bytes(self, data: Buffer) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(data)

    def receive_frame(self) -> bytes | None:
        """The next frame without its size, or None if the broker closed the connection."""
        try:
            size = self._read(4)
            return None if size is None else self._read(struct.unpack(">i", size)[0])
        finally:
            if self._socket is not None and self._socket.fileno() == -1:
                self._socket = None

    def _read(self, size: int) -> bytes | None:
        assert self._socket is not None, "nothing was sent"
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionError:
                part = b""
            except TimeoutError:
                raise AssertionError(f"no answer from {self._address} in {self._timeout_s} s") from None
            if not part:
                self._socket.close()
                return None
            data += part
        return bytes(data)


def create_topic(
    wire: WireClient, name: str, partitions: int = 1, *, replicas: int = 1, **configs: str
) -> bytes:
    """Create a topic that sets the scene of a test, and return its id."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ],
    )
    (made,) = wire.get(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7, CreateTopicsResponse).topics
    assert made.error_code == 0, made
    return bytes(made.topic_id)


def produce_request(
    topic: str | bytes,
    *batches: Buffer | None,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 60_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Batches for a topic, by its name or its id: one for each partition, from `partition` on."""
    data = [PartitionProduceData(index=at, records=batch) for at, batch in enumerate(batches, partition)]
    named = (
        TopicProduceData(name=topic, partition_data=data)
        if isinstance(topic, str)
        else TopicProduceData(topic_id=topic, partition_data=data)
    )
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=[named]
    )


def fetch_request(
    topic: str | bytes,
    offset: int = 0,
    *,
    partition: int = 0,
    partition_max_bytes: int = 2**20,
    **fields: Any,
) -> FetchRequest:
    """A fetch of one partition that does not wait; `fields` are more of the request."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
    named = (
        FetchTopic(topic=topic, partitions=[wanted])
        if isinstance(topic, str)
        else FetchTopic(topic_id=topic, partitions=[wanted])
    )
    return FetchRequest(topics=[named], **fields)
