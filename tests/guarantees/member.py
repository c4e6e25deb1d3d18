"""A member of a group as a process of its own: what it reads it writes to its journal, then it commits.

`python -m tests.guarantees.member CLIENT BOOTSTRAP GROUP TOPIC [INSTANCE]`, where CLIENT is one of `CLIENTS`
and a TOPIC that begins with ^ is a pattern. Every line of the journal is a list of
[partition, offset, value] that the process was given together.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

SESSION_TIMEOUT_MS: Final = 1_500
# A static member has to be back before its session is over, however long it takes to start.
STATIC_SESSION_TIMEOUT_MS: Final = 60_000
HEARTBEAT_INTERVAL_MS: Final = 200
METADATA_AGE_MS: Final = 500

Record = tuple[int, int, str]


def session_timeout_ms(instance: str | None) -> int:
    return SESSION_TIMEOUT_MS if instance is None else STATIC_SESSION_TIMEOUT_MS


def journal(records: Iterable[Record]) -> bool:
    """Whether there was anything to note."""
    noted = list(records)
    if noted:
        sys.stdout.write(json.dumps(noted) + "\n")
        sys.stdout.flush()
    return bool(noted)


def _rows(polled: dict[Any, list[Any]]) -> Iterator[Record]:
    for records in polled.values():
        yield from ((each.partition, each.offset, each.value.decode()) for each in records)


def _subscription(topic: str) -> dict[str, Any]:
    return {"pattern": topic} if topic.startswith("^") else {"topics": [topic]}


def librdkafka(
    bootstrap: str, group: str, topic: str, instance: str | None, protocol: str = "classic"
) -> None:
    from confluent_kafka import Consumer, KafkaException

    config: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
    }
    if instance is not None:
        config["group.instance.id"] = instance
    if protocol == "classic":
        config |= {
            "partition.assignment.strategy": "range",
            "session.timeout.ms": session_timeout_ms(instance),
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    while True:
        messages = [each for each in consumer.consume(50, 0.1) if each.error() is None]
        if journal((each.partition(), each.offset(), each.value().decode()) for each in messages):
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:  # the partitions are another's by now
                print(error, file=sys.stderr)


def librdkafka_modern(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    librdkafka(bootstrap, group, topic, instance, "consumer")


def kafka_python(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError

    from kafka import KafkaConsumer

    # With a pattern it asks for fresh metadata before it joins, not sooner than a back-off after the last
    # time. If a poll is no longer than that it never gets there, and the back-off grows to a second.
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=session_timeout_ms(instance),
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        metadata_max_age_ms=METADATA_AGE_MS,
        retry_backoff_ms=20,
    )
    consumer.subscribe(**_subscription(topic))
    while True:
        polled = consumer.poll(timeout_ms=2000, max_records=50)
        if journal(_rows(polled)):
            try:
                consumer.commit()
            except KafkaError as error:
                print(error, file=sys.stderr)


def aiokafka(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    asyncio.run(_aiokafka(bootstrap, group, topic, instance))


async def _aiokafka(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    while True:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=session_timeout_ms(instance),
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        consumer.subscribe(**_subscription(topic))
        try:
            await consumer.start()
            while True:
                polled = await consumer.getmany(timeout_ms=100, max_records=50)
                if journal(_rows(polled)):
                    try:
                        await consumer.commit()
                    except KafkaError as error:
                        print(error, file=sys.stderr)
        except KafkaError as error:
            # It gives up where the group changes its protocol while it joins; a user starts it again.
            print(error, file=sys.stderr)
            await consumer.stop()


def own(bootstrap: str, group: str, topic: str, instance: str | None, protocol: str = "classic") -> None:
    asyncio.run(_own(bootstrap, group, topic, instance, protocol))


async def _own(bootstrap: str, group: str, topic: str, instance: str | None, protocol: str) -> None:
    from ottla import Consumer
    from ottla.protocol.errors import KafkaError

    async with Consumer(
        bootstrap,
        group_id=group,
        group_instance_id=instance,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy="range",
        session_timeout_ms=session_timeout_ms(instance),
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        metadata_max_age_ms=METADATA_AGE_MS,
    ) as consumer:
        consumer.subscribe(**_subscription(topic))
        while True:
            polled = await consumer.poll(50, timeout_ms=100)
            if journal((each.partition, each.offset, each.value.decode()) for each in polled):
                try:
                    await consumer.commit()
                except KafkaError as error:
                    print(error, file=sys.stderr)


def own_modern(bootstrap: str, group: str, topic: str, instance: str | None) -> None:
    own(bootstrap, group, topic, instance, "consumer")


CLIENTS: Final[dict[str, Callable[[str, str, str, str | None], None]]] = {
    "librdkafka": librdkafka,
    "librdkafka-modern": librdkafka_modern,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "ottla": own,
    "ottla-modern": own_modern,
}

if __name__ == "__main__":
    client, servers, group_id, topic_name, *rest = sys.argv[1:]
    CLIENTS[client](servers, group_id, topic_name, rest[0] if rest else None)
