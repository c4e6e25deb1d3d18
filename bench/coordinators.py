"""Groups and transactions beside Apache Kafka 4.3.1: commits, rebalances, transactions, by one client."""

import threading
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.brokers import Broker, apache_kafka, ottla
from bench.harness import Row, compare, markdown
from bench.node import KAFKA, create

COMMITS = 2_000
TRANSACTIONS = 200
JOIN_SECONDS = 120.0


def committing(broker: Broker, topic: str) -> Callable[[], None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"commits-{topic}"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(0.1)

    def work() -> None:
        for offset in range(COMMITS):
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)

    return work


def rebalancing(broker: Broker, topic: str, members: int) -> Callable[[], None]:
    """All members join at once; over when each has its partitions."""
    rounds = iter(range(1_000_000))

    def work() -> None:
        group = f"rebalance-{members}-{next(rounds)}"
        assigned = threading.Barrier(members + 1)

        def member() -> None:
            consumer = Consumer(
                {"bootstrap.servers": broker.bootstrap, "group.id": group, "session.timeout.ms": 45_000}
            )
            owned = threading.Event()
            consumer.subscribe([topic], on_assign=lambda _, partitions: owned.set() if partitions else None)
            while not owned.is_set():
                consumer.poll(0.1)
            # Keep polling until all have theirs, as others may only join now.
            waiting = threading.Thread(target=assigned.wait, args=(JOIN_SECONDS,))
            waiting.start()
            while waiting.is_alive():
                consumer.poll(0.05)
            consumer.close()

        threads = [threading.Thread(target=member) for _ in range(members)]
        for thread in threads:
            thread.start()
        assigned.wait(JOIN_SECONDS)
        for thread in threads:
            thread.join()

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
    with ottla() as mine, apache_kafka() as theirs:
        for broker in (mine, theirs):
            create(broker, "one", 1)
            create(broker, "ten", 10)
            create(broker, "hundred", 100)

        def both(
            name: str, amount: float, unit: str, work: Callable[[Broker], Callable[[], None]], rounds: int = 3
        ) -> Row:
            return compare(
                name, amount, unit, work(mine), work(theirs), peer_name=KAFKA, target="≥ 1", rounds=rounds
            )

        yield both("offset commits", COMMITS, "commits/s", lambda broker: committing(broker, "one"))
        yield both("10 members join", 1, "groups/s", lambda broker: rebalancing(broker, "ten", 10))
        yield both("100 members join", 1, "groups/s", lambda broker: rebalancing(broker, "hundred", 100), 2)
        yield both("transactions, 1 partition", TRANSACTIONS, "/s", lambda b: transacting(b, "one", 1))
        yield both("transactions, 10 partitions", TRANSACTIONS, "/s", lambda b: transacting(b, "ten", 10))


if __name__ == "__main__":
    print(markdown(list(rows())))
