"""A node beside Apache Kafka 4.3.1, driven by the same client (librdkafka) in the same run."""

import statistics
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import Broker, apache_kafka, ottla
from bench.harness import Row, compare, markdown

KAFKA = "Apache Kafka 4.3.1"
SIZES = {100: 400_000, 1_000: 120_000}
LATENCY_RECORDS = 2_000
LATENCY_RATE = 500


def create(broker: Broker, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def producing(broker: Broker, topic: str, size: int, count: int) -> Callable[[], None]:
    value = bytes(size)

    def work() -> None:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "acks": "all",
                "linger.ms": 5,
                "batch.size": 131_072,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0

    return work


def consuming(broker: Broker, topic: str, count: int) -> Callable[[], None]:
    def work() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 200_000,
                "fetch.message.max.bytes": 4_194_304,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        left = count
        while left > 0:
            left -= len(consumer.consume(10_000, 5.0))
        consumer.close()

    return work


def latencies(broker: Broker, topic: str) -> list[float]:
    """Milliseconds from produce to consume of single records at a modest rate."""
    create(broker, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0})
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "latency", "fetch.wait.max.ms": 500}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    took = []
    begin = time.perf_counter()
    for number in range(LATENCY_RECORDS):
        due = begin + number / LATENCY_RATE
        while (now := time.perf_counter()) < due:
            time.sleep(due - now)
        sent = time.perf_counter()
        producer.produce(topic, b"x" * 100)
        producer.poll(0)
        while consumer.poll(1.0) is None:
            pass
        took.append((time.perf_counter() - sent) * 1000)
    consumer.close()
    producer.flush()
    return sorted(took[LATENCY_RECORDS // 10 :])


def figure(name: str, unit: str, ours: float, theirs: float, target: str) -> Row:
    """A figure of which less is better; the ratio says how many times less ours is."""
    ratio = theirs / ours
    return Row(name, unit, ours, theirs, KAFKA, ratio, ratio, ratio, target)


def rows() -> Iterator[Row]:
    with ottla() as mine, apache_kafka() as theirs:
        yield figure("start to ready", "s", mine.ready_s, theirs.ready_s, "≥ 8")
        idle = mine.resident_megabytes(), theirs.resident_megabytes()
        yield figure("resident memory, idle", "MB", *idle, "≥ 8")
        for size, count in SIZES.items():
            name = f"{size} B" if size < 1000 else f"{size // 1000} kB"
            topic = f"bench-{size}"
            for broker in (mine, theirs):
                create(broker, topic)
            before = mine.cpu_seconds(), theirs.cpu_seconds()
            yield compare(
                f"produce {name}, acks=all",
                count,
                "records/s",
                producing(mine, topic, size, count),
                producing(theirs, topic, size, count),
                peer_name=KAFKA,
                target="≥ 1.5",
                rounds=5,
            )
            produced = 6 * count / 1e6
            cpu = mine.cpu_seconds() - before[0], theirs.cpu_seconds() - before[1]
            yield figure(
                f"broker CPU, produce {name}",
                "s per million records",
                cpu[0] / produced,
                cpu[1] / produced,
                "≥ 1.7",
            )
            yield compare(
                f"consume {name}",
                count,
                "records/s",
                consuming(mine, topic, count),
                consuming(theirs, topic, count),
                peer_name=KAFKA,
                target="≥ 1.2",
                rounds=5,
            )
        ours, kafkas = latencies(mine, "latency"), latencies(theirs, "latency")
        yield figure("end to end, p50", "ms", statistics.median(ours), statistics.median(kafkas), "")
        p99 = int(len(ours) * 0.99)
        yield figure("end to end, p99", "ms", ours[p99], kafkas[p99], "≥ 2")
        after = mine.resident_megabytes(), theirs.resident_megabytes()
        yield figure("resident memory, after load", "MB", *after, "≥ 8")


if __name__ == "__main__":
    print(markdown(list(rows())))
