"""Commits and transactions beside Apache Kafka 4.3.1."""

from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.brokers import PEER, Broker
from bench.harness import Row, alone, compare, markdown
from bench.loads import create
from bench.versus import both

COMMITS = 2_000
TRANSACTIONS = 200


def committing(broker: Broker, topic: str) -> Callable[[], None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"commits-{topic}"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(0.1)

    def work() -> None:
        for offset in range(COMMITS):
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)

    return work


def transacting(broker: Broker, topic: str, partitions: int) -> Callable[[], None]:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": f"bench-{topic}", "linger.ms": 0}
    )
    producer.init_transactions(30)

    def work() -> None:
        for _ in range(TRANSACTIONS):
            producer.begin_transaction()
            for partition in range(partitions):
                producer.produce(topic, b"x" * 100, partition=partition)
            producer.commit_transaction(30)

    return work


def rows() -> Iterator[Row]:
    with both() as pair:
        for topic, partitions in (("one", 1), ("ten", 10)):
            pair.each(lambda broker: create(broker, topic, partitions))  # noqa: B023

        def measured(
            name: str, amount: float, unit: str, work: Callable[[Broker], Callable[[], None]], rounds: int = 3
        ) -> Row:
            mine = work(pair.mine)
            if pair.theirs is None:
                return alone(name, amount, unit, mine, target="≥ 1", rounds=rounds)
            theirs = work(pair.theirs)
            return compare(name, amount, unit, mine, theirs, peer_name=PEER, target="≥ 1", rounds=rounds)

        yield measured("offset commits", COMMITS, "commits/s", lambda broker: committing(broker, "one"))
        yield measured("transactions, 1 partition", TRANSACTIONS, "/s", lambda b: transacting(b, "one", 1))
        yield measured("transactions, 10 partitions", TRANSACTIONS, "/s", lambda b: transacting(b, "ten", 10))


if __name__ == "__main__":
    print(markdown(list(rows())))
