"""The clients that drive the brokers: librdkafka, and the performance tools that come with Apache Kafka.

Each load is one call that returns its throughput per second. The tools are separate programs and report it
themselves, without the start of their JVM; librdkafka is timed around its work. Everything between the
client's settings and the broker is the same for both brokers.
"""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.support import java

from bench.brokers import Broker

Load = Callable[[], float]
"""One run; returns records (or requests) a second."""

LINGER_MS = 5
BATCH_BYTES = 131_072
MOST_AT_ONCE = 5_000  # partitions; a controller refuses requests for more than some 10,000 records
# The options of `kafka-run-class`, with a heap that is large enough for the buffers.
TOOL_JVM = ("-Xmx512m", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_RUNS = itertools.count()


def create(
    broker: Broker,
    topic: str,
    partitions: int = 1,
    *,
    replicas: int = 1,
    client: dict[str, str] | None = None,
    **config: str,
) -> None:
    """`client` are settings of the client, and `config` those of the topic."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **_dotted(client or {})})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    first = min(partitions, MOST_AT_ONCE)
    admin.create_topics([NewTopic(topic, first, replicas, config=settings)])[topic].result(120)
    while first < partitions:
        first = min(partitions, first + MOST_AT_ONCE)
        admin.create_partitions([NewPartitions(topic, first)], request_timeout=120)[topic].result(120)


def delete(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic], operation_timeout=60)[topic].result(120)


def _dotted(settings: Mapping[str, str | int]) -> dict[str, str | int]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def values(size: int, count: int = 1000) -> Iterator[bytes]:
    """Values that compress about as well as text does: words of a small vocabulary, differently mixed."""
    words = [b"%08x " % (n * 2654435761 % 2**32) for n in range(97)]
    for number in range(count):
        text = b"".join(words[(number * 31 + n * n) % 97] for n in range(size // 9 + 1))
        yield text[:size]


def producing(broker: Broker, topic: str, size: int, count: int, **settings: str | int) -> Load:
    """Produce with librdkafka, from lists of records, so that Python does little for each."""
    messages = [{"value": value} for value in values(size)]

    def run() -> float:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "acks": "all",
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 262_144,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        producer.list_topics(topic, 30)
        begin = time.perf_counter()
        left = count
        while left > 0:
            some = messages[: min(left, len(messages))]
            queued = producer.produce_batch(topic, some)
            left -= queued
            producer.poll(0 if queued == len(some) else 0.005)
        assert producer.flush(120) == 0
        return count / (time.perf_counter() - begin)

    return run


def consuming(
    broker: Broker, topic: str, partitions: int, count: int, consumers: int = 1, **settings: str | int
) -> Load:
    """Consume with librdkafka from the beginning; several consumers are threads that each read everything."""

    def one() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 65_536,
                "fetch.message.max.bytes": 4_194_304,
                # By default it pauses for a second whenever 100,000 messages wait in its queue, which would
                # dominate the run.
                "queued.min.messages": 10_000_000,
                "fetch.queue.backoff.ms": 1,
                **_dotted(settings),
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        left = count
        while left > 0:
            left -= len(consumer.consume(min(left, 10_000), 5.0))
        consumer.close()

    def run() -> float:
        threads = [threading.Thread(target=one) for _ in range(consumers)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return consumers * count / (time.perf_counter() - begin)

    return run


def requesting(broker: Broker, topic: str, count: int) -> Load:
    """Send a request for every record: the cost of a nearly empty request."""
    return producing(
        broker,
        topic,
        100,
        count,
        batch_num_messages=1,
        linger_ms=0,
        max_in_flight_requests_per_connection=5,
    )


def java_producing(broker: Broker, topic: str, size: int, count: int, **settings: str | int) -> Load:
    """`kafka-producer-perf-test`."""
    properties = {
        "bootstrap.servers": broker.bootstrap,
        "acks": "all",
        "linger.ms": LINGER_MS,
        "batch.size": BATCH_BYTES,
        "buffer.memory": 67_108_864,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }

    def run() -> float:
        said = java.run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(count), "--record-size", str(size)),
            *("--throughput", "-1", "--producer-props"),
            *(f"{name}={value}" for name, value in properties.items()),
            timeout_s=600,
            jvm=TOOL_JVM,
        ).out
        found = re.findall(r"(\d+) records sent, ([\d.]+) records/sec", said)
        assert found, said
        assert int(found[-1][0]) == count, said
        return float(found[-1][1])

    return run


def java_consuming(broker: Broker, topic: str, count: int) -> Load:
    """`kafka-consumer-perf-test`, without the time that its group takes to form."""

    def run() -> float:
        said = java.run_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", str(count)),
            *("--group", f"perf-{next(_RUNS)}", "--timeout", "60000"),
            timeout_s=600,
            jvm=TOOL_JVM,
        ).out
        heading, figures = (line.split(", ") for line in said.strip().splitlines()[-2:])
        column = dict(zip(heading, figures, strict=True))
        assert int(column["data.consumed.in.nMsg"]) >= count, said
        return float(column["fetch.nMsg.sec"])

    return run


def latencies(broker: Broker, topic: str, records: int, rate: int) -> list[float]:
    """Milliseconds from produce to consume of single records at a modest rate, smallest first."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0})
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "latency", "auto.offset.reset": "latest"}
    )
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    consumer.assign([TopicPartition(topic, 0, end)])
    took = []
    warm_up = records // 10
    begin = time.perf_counter()
    for number in range(warm_up + records):
        due = begin + number / rate
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
    return sorted(took[warm_up:])
