"""Small requests beside Apache Kafka 4.3.1: what each costs the broker, and how many a second it answers.

The load generator is a socket and frames that are made in advance: it sends a frame, with up to `IN_FLIGHT`
unanswered, and looks of a response only at its length, so it spends a few microseconds for a request and
the figures are those of the broker. The first response of a load and the last are decoded, and must have no
error. A request of one partition carries, or asks for, one record of 100 bytes.
"""

import itertools
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from confluent_kafka import Producer

from bench import loads
from bench.brokers import Broker
from bench.harness import Row, scaled, show
from bench.versus import Pair, both
from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.schema import Request, Response
from ottla.records.builder import build_batch

PRODUCE_VERSION = 9
FETCH_VERSION = 12
INIT_PRODUCER_ID_VERSION = 4
# As many as librdkafka and Java's producer have on one connection.
IN_FLIGHT = 5
VALUE = bytes(100)
WIDE = 12
PARTITIONS_OF = {"one": 1, "twelve": WIDE, "quiet": WIDE}


def batch(producer: int = -1, sequence: int = -1) -> bytes:
    epoch = -1 if producer < 0 else 0
    now_ms = int(time.time() * 1000)
    return build_batch(
        [(now_ms, None, VALUE)], producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )


def framed(request: Request, version: int) -> bytes:
    return b"".join(request_parts(version, 0, "bench", request))


def produce(topic: str, partitions: int, acks: int, records: bytes) -> bytes:
    data = [PartitionProduceData(index=index, records=records) for index in range(partitions)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return framed(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topics), PRODUCE_VERSION)


def fetch(topic: str, offset: int, max_bytes: int, *, id: int = 0, epoch: int = -1) -> bytes:
    """A fetch of all partitions of a topic, without a session, or the first of one; one that goes on with a
    session (`id`) names no partition.
    """
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        for index in range(PARTITIONS_OF[topic])
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50_000_000,
        isolation_level=1,
        session_id=id,
        session_epoch=epoch,
        topics=[] if id else [FetchTopic(topic=topic, partitions=partitions)],
    )
    return framed(request, FETCH_VERSION)


class Connection:
    """A socket to a broker, and responses as bytes."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray(1 << 20)
        self._filled = 0

    def close(self) -> None:
        self._socket.close()

    def ask(self, frame: bytes, request: type[Request], version: int) -> Response:
        self._socket.sendall(frame)
        return read_response(API[request.API_KEY], version, self._responses(1)[0])[1]

    def send_all(self, frames: Sequence[bytes]) -> list[bytes]:
        """Send all frames, with few in flight; the first response and the last."""
        send = self._socket.sendall
        first = last = b""
        sent = answered = 0
        while answered < len(frames):
            ready = min(len(frames), answered + IN_FLIGHT)
            if ready > sent:
                send(frames[sent] if ready == sent + 1 else b"".join(frames[sent:ready]))
                sent = ready
            got = self._responses(1)
            first = first or got[0]
            last = got[-1]
            answered += len(got)
        return [first, last]

    def _responses(self, least: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < least:
            with memoryview(self._received) as view:
                size = self._socket.recv_into(view[self._filled :])
            assert size, "the broker has closed the connection"
            self._filled += size
            at = 0
            while self._filled - at >= 4:
                end = at + 4 + int.from_bytes(self._received[at : at + 4], "big")
                if end > self._filled:
                    break
                found.append(bytes(self._received[at + 4 : end]))
                at = end
            self._received[: self._filled - at] = self._received[at : self._filled]
            self._filled -= at
        return found


def check_produced(response: Response) -> None:
    assert isinstance(response, ProduceResponse)
    parts = [part for topic in response.responses for part in topic.partition_responses]
    assert parts, response
    assert all(part.error_code == 0 for part in parts), response


def check_fetched(response: Response, partitions: int) -> None:
    assert isinstance(response, FetchResponse)
    parts = [part for topic in response.responses for part in topic.partitions]
    assert response.error_code == 0, response
    assert sum(bool(part.records) for part in parts) == partitions, response


def sending(
    broker: Broker,
    make: Callable[[Connection], Sequence[bytes]],
    request: type[Request],
    version: int,
    check: Callable[[Response], None],
) -> loads.Load:
    """A load of frames, which `make` makes for a new connection before the time counts."""

    def run() -> float:
        connection = Connection(broker)
        frames = make(connection)
        begin = time.perf_counter()
        ends = connection.send_all(frames)
        took = time.perf_counter() - begin
        for response in ends:
            check(read_response(API[request.API_KEY], version, response)[1])
        connection.close()
        return len(frames) / took

    return run


def producing(broker: Broker, topic: str, acks: int, count: int) -> loads.Load:
    def make(_: Connection) -> Sequence[bytes]:
        return [produce(topic, PARTITIONS_OF[topic], acks, batch())] * count

    return sending(broker, make, ProduceRequest, PRODUCE_VERSION, check_produced)


def producing_idempotently(broker: Broker, topic: str, count: int) -> loads.Load:
    def make(connection: Connection) -> Sequence[bytes]:
        request = InitProducerIdRequest(transaction_timeout_ms=60_000)
        response = connection.ask(
            framed(request, INIT_PRODUCER_ID_VERSION), InitProducerIdRequest, INIT_PRODUCER_ID_VERSION
        )
        producer = response.producer_id  # type: ignore[attr-defined]
        return [produce(topic, 1, -1, batch(producer, sequence)) for sequence in range(count)]

    return sending(broker, make, ProduceRequest, PRODUCE_VERSION, check_produced)


def fetching(broker: Broker, topic: str, count: int) -> loads.Load:
    frame = fetch(topic, 0, len(batch()))

    def check(response: Response) -> None:
        check_fetched(response, PARTITIONS_OF[topic])

    return sending(broker, lambda _: [frame] * count, FetchRequest, FETCH_VERSION, check)


def fetching_without_news(broker: Broker, count: int) -> loads.Load:
    """Fetches of a session in which nothing has happened."""

    def make(connection: Connection) -> Sequence[bytes]:
        first = connection.ask(fetch("quiet", 1, 1_000_000, epoch=0), FetchRequest, FETCH_VERSION)
        assert isinstance(first, FetchResponse)
        assert first.session_id, first
        return [
            fetch("quiet", 0, 0, id=first.session_id, epoch=epoch)
            for epoch in itertools.islice(itertools.count(1), count)
        ]

    return sending(broker, make, FetchRequest, FETCH_VERSION, lambda response: check_fetched(response, 0))


def prepare(broker: Broker) -> None:
    """Create the topics, with a record in each partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 4})
    for topic, partitions in PARTITIONS_OF.items():
        loads.create(broker, topic, partitions)
        for partition in range(partitions):
            producer.produce(topic, VALUE, partition=partition, timestamp=int(time.time() * 1000))
    assert producer.flush(60) == 0


def rows_of(pair: Pair) -> Iterator[Row]:
    rounds = scaled(7, 5)
    count = scaled(50_000, 20_000)
    few = count // 4
    for name, load, amount, aim in (
        ("produce, acks=1", lambda broker: producing(broker, "one", 1, count), count, "≥ 5"),
        ("produce, acks=all", lambda broker: producing(broker, "one", -1, count), count, "≥ 5"),
        (
            "produce, idempotent",
            lambda broker: producing_idempotently(broker, "one", count),
            count,
            "≥ 5",
        ),
        ("produce to 12 partitions", lambda broker: producing(broker, "twelve", -1, few), few, "≥ 5"),
        ("fetch of one partition", lambda broker: fetching(broker, "one", count), count, "≥ 3"),
        ("fetch of 12 partitions", lambda broker: fetching(broker, "twelve", few), few, "≥ 3"),
        ("fetch of 12 without news", lambda broker: fetching_without_news(broker, few), few, "≥ 3"),
    ):
        yield from pair.rows(name, load, amount, rounds, unit="requests/s", cost_aim=aim)


def rows() -> Iterator[Row]:
    with both() as pair:
        pair.each(prepare)
        yield from rows_of(pair)


if __name__ == "__main__":
    show(rows())
