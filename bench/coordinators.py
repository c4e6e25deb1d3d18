"""Groups and transactions beside Apache Kafka 4.3.1: commits, rebalances, transactions, by one client."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.brokers import Broker, apache_kafka, ottla
from bench.harness import Row, compare, markdown
from bench.node import KAFKA, create

COMMITS = 2_000
TRANSACTIONS = 200
JOIN_SECONDS = 120.0
# Members learn of a rebalance by their next heartbeat. At the default pace of 3 and 5 s that wait would be
# all that is measured, so they beat faster, the same for both brokers.
HEARTBEAT_MS = 200
QUICK = {
    "group_consumer_min_heartbeat_interval_ms": str(HEARTBEAT_MS),
    "group_consumer_heartbeat_interval_ms": str(HEARTBEAT_MS),
}


def committing(broker: Broker, topic: str) -> Callable[[], None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"commits-{topic}"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(0.1)

    def work() -> None:
        for offset in range(COMMITS):
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)

    return work


def rebalancing(broker: Broker, topic: str, members: int, protocol: str = "classic") -> Callable[[], None]:
    """All members join at once; over when each has its partitions."""
    rounds = iter(range(1_000_000))
    pace = {"heartbeat.interval.ms": HEARTBEAT_MS} if protocol == "classic" else {}

    def work() -> None:
        group = f"{protocol}-{members}-{next(rounds)}"
        assigned = threading.Barrier(members + 1)

        def member() -> None:
            consumer = Consumer(
                {
                    "bootstrap.servers": broker.bootstrap,
                    "group.id": group,
                    "group.protocol": protocol,
                    **pace,
                }
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
    with ottla(**QUICK) as mine, apache_kafka(**QUICK) as theirs:
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
        for protocol in ("classic", "consumer"):
            for members, topic, rounds in ((10, "ten", 5), (100, "hundred", 3)):
                work = partial(rebalancing, topic=topic, members=members, protocol=protocol)
                yield both(f"{members} members join, {protocol} protocol", 1, "groups/s", work, rounds)
        yield both("transactions, 1 partition", TRANSACTIONS, "/s", lambda b: transacting(b, "one", 1))
        yield both("transactions, 10 partitions", TRANSACTIONS, "/s", lambda b: transacting(b, "ten", 10))


if __name__ == "__main__":
    print(markdown(list(rows())))
