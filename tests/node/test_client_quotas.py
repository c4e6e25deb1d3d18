"""Clients above their quota are throttled: Ottla and Apache Kafka, the same requests, the same times.

A throttled client gets its response at once, and nothing more for the time in it. The quotas are so small
that this time never comes to an end in a test: what is counted is answers, not seconds.
"""

from __future__ import annotations

import asyncio
import re
import selectors
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import ThrottleEvent
from tests.kafka.scripts.kit import batch_of, fetch_request, produce_request
from tests.support.apache_kafka import ApacheKafka
from tests.support.wire import WireClient

from kafka import KafkaProducer
from ottla import blocking
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchResponse, ReplicaState
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from ottla.testing.local_node import LocalNode

ASKED = 50
# The rate is taken over ten whole windows of a second, and what has gone by of the newest.
WINDOWS_MS = 10_000
SLACK_MS = 1_100


@dataclass
class Broker:
    address: str
    settle: Callable[[], None]
    stack: ExitStack

    def client(self, client_id: str) -> WireClient:
        return self.stack.enter_context(WireClient(self.address, client_id=client_id))

    def limit(self, client_id: str, **quotas: float) -> None:
        with blocking.Admin(self.address) as admin:
            admin.quotas.alter({"client-id": client_id}, set=quotas)
        self.settle()
        self.stack.callback(self._remove, client_id, list(quotas))

    def _remove(self, client_id: str, quotas: list[str]) -> None:
        with blocking.Admin(self.address) as admin:
            admin.quotas.alter({"client-id": client_id}, remove=quotas)

    def topic(self) -> tuple[str, bytes]:
        name = f"quotas-{uuid.uuid4().hex}"
        with blocking.Admin(self.address) as admin:
            admin.topics.create(name, partitions=1)
            self.settle()
            return name, admin.topics.describe(name).topic_id


@pytest.fixture(scope="module")
def own_node() -> Iterator[LocalNode]:
    with LocalNode() as node:
        yield node


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with ExitStack() as stack:
        if request.param == "ottla":
            node: LocalNode = request.getfixturevalue("own_node")
            yield Broker(node.bootstrap_servers, lambda: None, stack)
        else:
            kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
            yield Broker(kafka.bootstrap, kafka.settle, stack)


@pytest.fixture
def noisy() -> str:
    return f"noisy-{uuid.uuid4().hex}"


def is_silent(client: WireClient) -> bool:
    """Whether nothing has come."""
    assert client._socket is not None
    with selectors.DefaultSelector() as selector:
        selector.register(client._socket, selectors.EVENT_READ)
        return not selector.select(0)


def size_of(request: ProduceRequest, version: int, client_id: str) -> int:
    """The size of a Produce request with its header, whose fields take ten bytes besides the client id and
    the tagged ones.
    """
    return len(request.encode(version)) + 10 + len(client_id) + 1


def is_forgotten(began: float) -> bool:
    """Whether the machine took so long that what a client did at that time has left the windows."""
    return time.monotonic() > began + WINDOWS_MS / 1000


def serve_others(broker: Broker) -> None:
    quiet = broker.client("quiet")
    for _ in range(ASKED):
        answer = quiet.get(MetadataRequest(topics=[]), 12, MetadataResponse)
        assert answer.throttle_time_ms == 0


def test_a_noisy_producer_waits_and_a_quiet_one_does_not(broker: Broker, noisy: str) -> None:
    name, topic_id = broker.topic()
    quota = 1_000
    broker.limit(noisy, producer_byte_rate=quota)
    client, quiet = broker.client(noisy), broker.client(f"quiet-{noisy}")
    request = produce_request("", batch_of(bytes(900_000)), topic_id=topic_id)
    began = time.monotonic()
    answer = client.get(request, 13, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0
    expected_ms = size_of(request, 13, noisy) / quota * 1000 - WINDOWS_MS
    assert expected_ms - SLACK_MS <= answer.throttle_time_ms <= expected_ms
    client.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    # By another connection it is throttled too, and no response says so that has no place for it.
    again = broker.client(noisy)
    small = again.get(produce_request("", batch_of(b"x"), topic_id=topic_id), 13, ProduceResponse)
    assert small.throttle_time_ms > expected_ms - 3 * SLACK_MS or is_forgotten(began)
    for _ in range(ASKED):
        produced = quiet.get(
            produce_request("", batch_of(bytes(9_000)), topic_id=topic_id), 13, ProduceResponse
        )
        assert produced.throttle_time_ms == 0
    serve_others(broker)
    assert is_silent(client)
    # All that it has sent is there.
    with blocking.Admin(broker.address) as admin:
        assert list(admin.offsets.end(name).values()) == [ASKED + 2]


def test_a_noisy_producer_without_acknowledgements_waits_too(broker: Broker, noisy: str) -> None:
    _, topic_id = broker.topic()
    broker.limit(noisy, producer_byte_rate=1_000)
    client = broker.client(noisy)
    client.send(produce_request("", batch_of(bytes(900_000)), topic_id=topic_id, acks=0), 13)
    client.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    serve_others(broker)
    assert is_silent(client)


def test_a_noisy_consumer_gets_empty_responses(broker: Broker, noisy: str) -> None:
    _, topic_id = broker.topic()
    quota = 10_000
    broker.limit(noisy, consumer_byte_rate=quota)
    quiet = broker.client("quiet")
    for _ in range(20):
        quiet.get(produce_request("", batch_of(bytes(15_000)), topic_id=topic_id), 13, ProduceResponse)
    client = broker.client(noisy)
    # At once it gets what the quota gives in all windows, and never more.
    fetch = fetch_request(topic_id, 0, partition_max_bytes=10**6, max_bytes=10**6, session_epoch=-1)
    first = client.get(fetch, 17, FetchResponse)
    while not first.responses:
        # Kafka fills the response to the last byte, and with its header it is a little too much then.
        assert first.throttle_time_ms < 100
        first = client.get(fetch, 17, FetchResponse)
    taken = len(first.responses[0].partitions[0].records or b"")
    assert 60_000 < taken <= 100_000
    assert first.throttle_time_ms == 0
    began = time.monotonic()
    second = client.get(fetch, 17, FetchResponse)
    assert second.responses == []
    assert second.session_id == 0
    expected_ms = 2 * taken / quota * 1000 - WINDOWS_MS
    assert expected_ms - SLACK_MS <= second.throttle_time_ms <= expected_ms + 100
    client.send(fetch, 17)
    # What it did not get does not count: by another connection it waits as long.
    third = broker.client(noisy).get(fetch, 17, FetchResponse)
    assert third.responses == []
    assert third.throttle_time_ms <= second.throttle_time_ms
    whole = quiet.get(fetch, 17, FetchResponse)
    assert len(whole.responses[0].partitions[0].records or b"") > 2 * taken
    serve_others(broker)
    # For some seconds: no quota makes it longer, as it gives as much as it takes back.
    assert is_silent(client) or time.monotonic() > began + second.throttle_time_ms / 1000


def test_a_fetch_session_goes_on_where_it_was_throttled(broker: Broker, noisy: str) -> None:
    _, topic_id = broker.topic()
    quiet = broker.client("quiet")
    for _ in range(3):
        quiet.get(produce_request("", batch_of(bytes(5_000)), topic_id=topic_id), 13, ProduceResponse)
    client = broker.client(noisy)
    begun = client.get(fetch_request(topic_id, 0, session_epoch=0), 17, FetchResponse)
    assert begun.session_id > 0
    broker.limit(noisy, consumer_byte_rate=500)
    go_on = fetch_request(topic_id, 0, session_id=begun.session_id, session_epoch=1)
    throttled = client.get(go_on, 17, FetchResponse)
    assert (throttled.error_code, throttled.session_id) == (0, begun.session_id)
    assert throttled.responses == []
    assert throttled.throttle_time_ms > 0
    broker.limit(noisy, consumer_byte_rate=10**9)
    go_on.session_epoch = 2
    go_on.topics = []
    answer = broker.client(noisy).get(go_on, 17, FetchResponse)
    assert len(answer.responses[0].partitions[0].records or b"") > 15_000


@pytest.mark.slow
def test_a_client_without_sessions_goes_on_where_it_was_throttled(broker: Broker, noisy: str) -> None:
    """The connection keeps the partitions of such a client if they are many."""
    name, partitions = f"quotas-{uuid.uuid4().hex}", 70
    with blocking.Admin(broker.address) as admin:
        admin.topics.create(name, partitions=partitions)
        broker.settle()
        topic_id = admin.topics.describe(name).topic_id
    quiet = broker.client("quiet")
    for partition in range(partitions):
        records = batch_of(bytes(1_000))
        request = produce_request("", records, topic_id=topic_id, partition=partition)
        quiet.get(request, 13, ProduceResponse)
    fetch = fetch_request(topic_id, 0, session_epoch=-1, max_bytes=10**6)
    fetch.topics[0].partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=10**6)
        for number in range(partitions)
    ]
    client = broker.client(noisy)

    def fetched() -> tuple[int, int]:
        """How many partitions have records in the response, and for how long it throttles."""
        answer = client.get(fetch, 17, FetchResponse)
        parts = [part for topic in answer.responses for part in topic.partitions]
        return sum(len(part.records or b"") > 1_000 for part in parts), answer.throttle_time_ms

    assert fetched() == (partitions, 0)
    broker.limit(noisy, consumer_byte_rate=70_000)
    answers = [fetched()]
    while answers[-1] == (partitions, 0):
        answers.append(fetched())
    assert 8 <= len(answers) <= 10
    count, throttle_ms = answers[-1]
    assert count == 0
    assert 0 < throttle_ms < 2_000
    broker.limit(noisy, consumer_byte_rate=10**9)
    assert fetched() == (partitions, 0)


def test_a_fetch_as_a_follower_frees_no_other_request(broker: Broker, noisy: str) -> None:
    _, topic_id = broker.topic()
    broker.limit(noisy, producer_byte_rate=1_000)
    for replica in (77, 0, 1):  # there may be a broker with such an id, and this one is asked
        client = broker.client(noisy)
        fetch = fetch_request(topic_id, 0, session_epoch=-1)
        fetch.replica_state = ReplicaState(replica_id=replica, replica_epoch=-1)
        client.get(fetch, 17, FetchResponse)
        produced = client.get(
            produce_request("", batch_of(bytes(900_000)), topic_id=topic_id), 13, ProduceResponse
        )
        assert produced.throttle_time_ms > 800_000


def test_markers_of_transactions_free_no_other_request(broker: Broker, noisy: str) -> None:
    _, topic_id = broker.topic()
    broker.limit(noisy, producer_byte_rate=1_000)
    client = broker.client(noisy)
    client.get(WriteTxnMarkersRequest(), 1, WriteTxnMarkersResponse)
    produced = client.get(
        produce_request("", batch_of(bytes(900_000)), topic_id=topic_id), 13, ProduceResponse
    )
    assert produced.throttle_time_ms > 800_000


@pytest.mark.slow
def test_a_client_that_says_it_is_a_follower_is_throttled(own_node: LocalNode, noisy: str) -> None:
    """Apache Kafka throttles no fetch with the id of a replica; here it has to be that of another broker."""
    with ExitStack() as stack:
        broker = Broker(own_node.bootstrap_servers, lambda: None, stack)
        _, topic_id = broker.topic()
        broker.limit(noisy, request_percentage=0.0001)
        fetch = fetch_request(topic_id, 0, session_epoch=-1)
        fetch.replica_state = ReplicaState(replica_id=77, replica_epoch=-1)
        client = broker.client(noisy)
        throttled = [client.get(fetch, 17, FetchResponse).throttle_time_ms for _ in range(3)]
        assert sum(ms > 0 for ms in throttled) >= 2


@pytest.mark.slow
def test_a_client_that_takes_much_time_is_throttled_for_a_second_at_most(broker: Broker, noisy: str) -> None:
    broker.limit(noisy, request_percentage=0.0001)
    client = broker.client(noisy)
    throttled = 0
    for _ in range(3):
        answer = client.get(MetadataRequest(topics=None), 12, MetadataResponse)
        assert 0 <= answer.throttle_time_ms <= 1_000
        throttled += answer.throttle_time_ms > 0
    assert throttled >= 2
    # A version without a place for it.
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    assert client.get(request, 0, ApiVersionsResponse).error_code == 0
    serve_others(broker)


def test_changes_of_partitions_are_refused_or_delayed(broker: Broker, noisy: str) -> None:
    broker.limit(noisy, controller_mutation_rate=0.001)  # a burst of 0.011
    prefix = f"mutations-{uuid.uuid4().hex}"

    def create(name: str, partitions: int, version: int) -> tuple[int, int]:
        topic = CreatableTopic(name=f"{prefix}-{name}", num_partitions=partitions, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        answer = broker.client(noisy).get(request, version, CreateTopicsResponse)
        return answer.topics[0].error_code, answer.throttle_time_ms

    # The last one that finds tokens may take more than there are.
    assert create("a", 3, 7) == (ErrorCode.NONE, 0)
    code, throttle_ms = create("b", 1, 7)
    assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 2_900_000 < throttle_ms <= 2_989_000
    # Older clients do not know the error.
    code, throttle_ms = create("c", 1, 5)
    assert code == ErrorCode.NONE
    assert 3_900_000 < throttle_ms <= 3_989_000
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=f"{prefix}-a", count=4, assignments=None)], timeout_ms=30_000
    )
    added = broker.client(noisy).get(more, 3, CreatePartitionsResponse)
    assert added.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert added.throttle_time_ms > 3_900_000
    removal = DeleteTopicsRequest(topics=[DeleteTopicState(name=f"{prefix}-a")], timeout_ms=30_000)
    client = broker.client(noisy)
    removed = client.get(removal, 6, DeleteTopicsResponse)
    assert removed.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert removed.throttle_time_ms > 3_900_000
    client.send(MetadataRequest(topics=[]), 12)
    serve_others(broker)
    assert is_silent(client)
    with blocking.Admin(broker.address) as admin:
        broker.settle()
        names = [topic.name for topic in admin.topics.list() if topic.name.startswith(prefix)]
        assert sorted(names) == [f"{prefix}-a", f"{prefix}-c"]
        admin.topics.delete(*names)


@pytest.mark.slow
def test_the_admin_client_waits_for_a_quota_on_changes(broker: Broker, noisy: str) -> None:
    broker.limit(noisy, controller_mutation_rate=4)  # a burst of 44
    names = [f"waits-{noisy}-{number}" for number in range(4)]
    with blocking.Admin(broker.address, client_id=noisy) as admin:
        admin.topics.create(names[0], partitions=45)
        admin.topics.create(names[1], partitions=2)
        broker.settle()
        admin.topics.add_partitions(names[1], 3)
        assert admin.topics.delete_many(names[:1]) == {names[0]: None}
    slow = f"slow-{noisy}"
    broker.limit(slow, controller_mutation_rate=0.01)
    with blocking.Admin(broker.address, client_id=slow) as admin:
        admin.topics.create(names[2], partitions=2)
        # More than three minutes would have to pass: that would take too long.
        with pytest.raises(KafkaError) as refused:
            admin.topics.create(names[3], partitions=1)
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_topics_that_a_client_brings_into_being_count(own_node: LocalNode, noisy: str) -> None:
    with ExitStack() as stack:
        broker = Broker(own_node.bootstrap_servers, lambda: None, stack)
        broker.limit(noisy, controller_mutation_rate=0.01)  # a burst of 0.11
        names = [f"auto-{noisy}-{number}" for number in range(3)]
        client = broker.client(noisy)
        found = []
        for name in names:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(topic_id=bytes(16), name=name)], allow_auto_topic_creation=True
            )
            found.append(client.get(request, 12, MetadataResponse).topics[0].error_code)
        refused = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # The last one that finds tokens may take more than there are.
        assert found == [0, refused, refused]


def test_clients_that_people_use_are_throttled_and_lose_nothing(
    broker: Broker, noisy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A quota of 100 kB/s gives a megabyte at once; what is more has to wait about a second."""
    name, _ = broker.topic()
    records, value = 11, bytes(100_000)
    seen_ms: dict[str, float] = {}

    def confluent(client_id: str) -> None:
        def on_throttle(event: ThrottleEvent) -> None:
            seen_ms["confluent"] = max(seen_ms.get("confluent", 0), event.throttle_time * 1000)

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.address,
                "client.id": client_id,
                "throttle_cb": on_throttle,
                "batch.num.messages": 1,
            }
        )
        for _ in range(records):
            producer.produce(name, value)
        assert producer.flush(60) == 0
        deadline = time.monotonic() + 60
        while "confluent" not in seen_ms and time.monotonic() < deadline:
            producer.poll(0.1)

    def kafka_python(client_id: str) -> None:
        with closing(
            KafkaProducer(bootstrap_servers=broker.address, client_id=client_id, batch_size=0)
        ) as it:
            for future in [it.send(name, value) for _ in range(records)]:
                future.get(60)
        said = re.search(r"throttled by broker \((\d+) ms\)", caplog.text)
        assert said, "kafka-python has not noticed it"
        seen_ms["kafka-python"] = float(said.group(1))

    async def aiokafka(client_id: str) -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.address, client_id=client_id) as producer:
            for _ in range(records):
                await producer.send_and_wait(name, value)

    def ottla_client(client_id: str) -> None:
        settings = {"bootstrap.servers": broker.address, "client.id": client_id}
        with blocking.Producer(settings) as producer:
            for _ in range(records):
                producer.send(name, value)

    for number, produce in enumerate((confluent, kafka_python, aiokafka, ottla_client)):
        client_id = f"{noisy}-{number}"
        broker.limit(client_id, producer_byte_rate=100_000)
        pending = produce(client_id)
        if pending is not None:
            asyncio.run(pending)
    assert 0 < seen_ms["confluent"] < 2_000
    assert 0 < seen_ms["kafka-python"] < 2_000
    with blocking.Admin(broker.address) as admin:
        assert list(admin.offsets.end(name).values()) == [4 * records]
