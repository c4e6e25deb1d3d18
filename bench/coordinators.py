"""Groups and transactions beside Apache Kafka 4.3.1: commits, rebalances, transactions."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.brokers import PEER, Broker
from bench.harness import Row, alone, compare, markdown
from bench.loads import create
from bench.members import Crowd
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


def rebalancing(broker: Broker, topic: str, members: int, protocol: str) -> Callable[[], None]:
    """All members join at once; done when each had its partitions and has left."""
    crowd = Crowd(broker.bootstrap, members)
    rounds = itertools.count()
    return lambda: crowd.settle(protocol, f"{protocol}-{members}-{next(rounds)}", topic)


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
        for topic, partitions in (("one", 1), ("ten", 10), ("hundred", 100)):
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
        # In the consumer protocol both brokers assign at most once a second, which dominates this figure.
        for protocol, rounds in (("classic", 11), ("consumer", 5)):
            for members, topic in ((10, "ten"), (100, "hundred")):
                work = partial(rebalancing, topic=topic, members=members, protocol=protocol)
                yield measured(f"{members} members join, {protocol} protocol", 1, "groups/s", work, rounds)
        yield measured("transactions, 1 partition", TRANSACTIONS, "/s", lambda b: transacting(b, "one", 1))
        yield measured("transactions, 10 partitions", TRANSACTIONS, "/s", lambda b: transacting(b, "ten", 10))


if __name__ == "__main__":
    print(markdown(list(rows())))
