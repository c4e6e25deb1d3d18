"""Transactions of librdkafka against a node."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0
PARTITIONS = 2
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "transaction.two.phase.commit.enable": True,
}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(SETTINGS) as running:
        yield running


@pytest.fixture
def lab(node: LocalNode, request: pytest.FixtureRequest) -> Iterator[ClientLab]:
    lab = ClientLab(node, request.node.name)
    yield lab
    lab.close()


class ClientLab:
    """A topic of one test, its producers, and both views of its records."""

    def __init__(self, node: LocalNode, name: str) -> None:
        self.servers = node.bootstrap_servers
        self.name = name
        self.producers: list[Producer] = []
        self.make_topic(name)

    def close(self) -> None:
        """Let producers go while their node is there; without it they would wait for it."""
        for producer in self.producers:
            producer.purge()
        self.producers.clear()

    def make_topic(self, name: str) -> str:
        admin = AdminClient({"bootstrap.servers": self.servers})
        for done in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
            done.result(DEADLINE_S)
        return name

    def producer(self, **settings: str | int) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "transactional.id": self.name,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.producers.append(producer)
        producer.init_transactions(DEADLINE_S)
        return producer

    def write(self, producer: Producer, *values: str, topic: str | None = None) -> None:
        for number, value in enumerate(values):
            producer.produce(topic or self.name, value, partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0

    def read(self, isolation: str, topic: str | None = None) -> list[str]:
        """All values, up to the end as this isolation level sees it."""
        consumer = self.consumer("reader", isolation)
        consumer.assign([TopicPartition(topic or self.name, each, 0) for each in range(PARTITIONS)])
        values, ended, deadline = [], set(), time.monotonic() + DEADLINE_S
        while len(ended) < PARTITIONS:
            message = consumer.poll(0.5)
            assert time.monotonic() < deadline, "the ends of the partitions were not reached"
            if message is None:
                continue
            if message.error() is not None:
                ended.add(message.partition())
            else:
                values.append(_text(message))
        consumer.close()
        return sorted(values)

    def committed(self) -> list[str]:
        return self.read("read_committed")

    def uncommitted(self) -> list[str]:
        return self.read("read_uncommitted")

    def await_committed(self, *values: str, topic: str | None = None) -> None:
        """The answer to a commit comes before the last marker is written."""
        deadline = time.monotonic() + DEADLINE_S
        while (seen := self.read("read_committed", topic)) != sorted(values):
            assert time.monotonic() < deadline, f"{seen} are committed, not {values}"

    def consumer(self, group: str, isolation: str = "read_committed") -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"{self.name}-{group}",
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )


def _text(message: Message) -> str:
    value = message.value()
    assert value is not None
    return value.decode()


def test_what_is_committed_is_read(lab: ClientLab) -> None:
    producer = lab.producer()
    for number in range(5):
        producer.begin_transaction()
        lab.write(producer, f"{number}-a", f"{number}-b")
        producer.commit_transaction(DEADLINE_S)
    lab.await_committed(*(f"{number}-{part}" for number in range(5) for part in "ab"))


def test_what_is_aborted_is_read_only_by_those_who_do_not_care(lab: ClientLab) -> None:
    producer = lab.producer()
    producer.begin_transaction()
    lab.write(producer, "no", "nor this")
    producer.abort_transaction(DEADLINE_S)
    producer.begin_transaction()
    lab.write(producer, "yes")
    producer.commit_transaction(DEADLINE_S)
    lab.await_committed("yes")
    assert lab.uncommitted() == ["no", "nor this", "yes"]


def test_what_is_open_is_not_read(lab: ClientLab) -> None:
    producer = lab.producer()
    producer.begin_transaction()
    lab.write(producer, "later")
    assert (lab.committed(), lab.uncommitted()) == ([], ["later"])
    producer.commit_transaction(DEADLINE_S)
    lab.await_committed("later")


def test_an_empty_transaction_can_be_ended(lab: ClientLab) -> None:
    producer = lab.producer()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end(DEADLINE_S)
    producer.begin_transaction()
    lab.write(producer, "one")
    producer.commit_transaction(DEADLINE_S)
    lab.await_committed("one")


def test_a_producer_that_was_replaced_is_fenced(lab: ClientLab) -> None:
    old = lab.producer()
    old.begin_transaction()
    lab.write(old, "of the old one")
    new = lab.producer()
    new.begin_transaction()
    lab.write(new, "of the new one")
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(DEADLINE_S)
    assert raised.value.args[0].fatal()
    new.commit_transaction(DEADLINE_S)
    lab.await_committed("of the new one")
    assert lab.uncommitted() == ["of the new one", "of the old one"]


def test_a_transaction_past_its_timeout_is_aborted(lab: ClientLab) -> None:
    slow = lab.producer(transaction_timeout_ms=1_000)
    slow.begin_transaction()
    lab.write(slow, "too late", "this too")
    deadline = time.monotonic() + DEADLINE_S
    # Readers get past it by themselves once it is aborted.
    quick = Producer({"bootstrap.servers": lab.servers})
    lab.write(quick, "plain", "and simple")
    while lab.committed() != ["and simple", "plain"]:
        assert time.monotonic() < deadline, "the transaction is still open"
    with pytest.raises(KafkaException):
        slow.commit_transaction(DEADLINE_S)
    again = lab.producer()
    again.begin_transaction()
    lab.write(again, "in time")
    again.commit_transaction(DEADLINE_S)
    lab.await_committed("and simple", "in time", "plain")


def test_offsets_are_committed_with_the_transaction(lab: ClientLab) -> None:
    plain = Producer({"bootstrap.servers": lab.servers})
    lab.write(plain, "a", "b", "c", "d")
    output = lab.make_topic(lab.name + "-out")
    producer = lab.producer()
    consumer = lab.consumer("workers")
    consumer.subscribe([lab.name])
    values: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < 4:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(_text(message))

    def offsets() -> list[int]:
        asked = [TopicPartition(lab.name, each) for each in range(PARTITIONS)]
        return [each.offset for each in consumer.committed(asked, DEADLINE_S)]

    none = offsets()
    for end, expected in ((producer.abort_transaction, none), (producer.commit_transaction, [2, 2])):
        producer.begin_transaction()
        lab.write(producer, *(value.upper() for value in values), topic=output)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), DEADLINE_S
        )
        end(DEADLINE_S)
        while offsets() != expected:
            assert time.monotonic() < deadline
    consumer.close()
    lab.await_committed("A", "B", "C", "D", topic=output)
    assert len(lab.read("read_uncommitted", output)) == 8


def test_many_producers_at_once(lab: ClientLab) -> None:
    producers = [lab.producer(transactional_id=f"{lab.name}-{number}") for number in range(8)]
    for producer in producers:
        producer.begin_transaction()
    for number, producer in enumerate(producers):
        lab.write(producer, f"{number}-a", f"{number}-b")
    for number, producer in enumerate(producers):
        if number % 2:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    lab.await_committed(*(f"{number}-{part}" for number in range(0, 8, 2) for part in "ab"))


def test_transactions_go_on_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("data"))
    (port,) = free_ports(1)  # kept free while the node is down
    with LocalNode(SETTINGS, data_dir=directory, port=port) as node:
        lab = ClientLab(node, "restart")
        producer = lab.producer()
        producer.begin_transaction()
        lab.write(producer, "first")
        producer.commit_transaction(DEADLINE_S)
        producer.begin_transaction()
        lab.write(producer, "before", "before too")
    with LocalNode(SETTINGS, data_dir=directory, port=port):
        lab.write(producer, "after")
        producer.commit_transaction(DEADLINE_S)
        lab.await_committed("after", "before", "before too", "first")
        lab.close()
        del producer
