"""The real process is killed again and again under load: what it acknowledged is there, in order, once.

A librdkafka producer with idempotence writes to several partitions all the while, through every death of the
node. After each restart, and at the end, every record that was ever acknowledged must be at the offset that
was told, and no record may be there twice. `KILL_ROUNDS` makes it longer.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.support.node_process import NodeProcess
from tests.support.wire import WireClient

ROUNDS = int(os.environ.get("KILL_ROUNDS", "6"))
SEED = int(os.environ.get("KILL_SEED", str(random.SystemRandom().randrange(2**31))))
DEADLINE_SECONDS = 60
PARTITIONS = 3
CODECS = ("none", "lz4", "zstd")


class Load:
    """Writes numbered records to every partition until told to stop, and notes what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, codec: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": codec,
                "linger.ms": 2,
                "batch.num.messages": 50,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        # Of each partition: the value at each acknowledged offset, and the values written, in order.
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.failures: list[str] = []

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            partition = number % PARTITIONS
            value = b"%d" % number + b"." * (number % 300)
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.05)
                continue
            self.written[partition].append(value)
            number += 1
            self._producer.poll(0.001 if number % 20 == 0 else 0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error.str())
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        self.acknowledged[partition][offset] = value

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = self.count + count
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.count < wanted:
            assert time.monotonic() < deadline, f"no {count} records in time; failures: {self.failures[:3]}"
            assert self._thread.is_alive()
            time.sleep(0.005)

    def finish(self) -> None:
        """Write no more, and see what was written acknowledged."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(DEADLINE_SECONDS)
        assert left == 0, f"{left} records are still under way"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def read_all(bootstrap: str, topic: str, partition: int) -> dict[int, bytes]:
    """Every record of a partition by its offset."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    )
    place = TopicPartition(topic, partition, 0)
    _, end = consumer.get_watermark_offsets(place, DEADLINE_SECONDS)
    consumer.assign([place])
    found: dict[int, bytes] = {}
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while not found or max(found) + 1 < end:
            assert time.monotonic() < deadline, f"{len(found)} of {end} records of {partition} came"
            for message in consumer.consume(10_000, 0.5):
                assert message.error() is None, message.error()
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert isinstance(value, bytes)
                found[offset] = value
    finally:
        consumer.close()
    return found


@pytest.mark.slow
def test_what_was_acknowledged_outlives_every_kill(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"repeat with KILL_SEED={SEED}")
    with NodeProcess(tmp_path) as first:
        port = first.port
        # Small segments, so that a kill also meets a roll and a snapshot of producers.
        settings = [CreatableTopicConfig(name="internal.segment.bytes", value="200000")]
        topic = CreatableTopic(name="load", num_partitions=PARTITIONS, replication_factor=1, configs=settings)
        with WireClient(first.bootstrap) as wire:
            created = wire.get(CreateTopicsRequest(topics=[topic], timeout_ms=9000), 7, CreateTopicsResponse)
        assert created.topics[0].error_code == 0
        bootstrap = first.bootstrap
        first.kill()
    with Load(bootstrap, "load", chance.choice(CODECS)) as load:
        for _ in range(ROUNDS):
            with NodeProcess(tmp_path, listen=f"127.0.0.1:{port}") as node:
                before = [dict(records) for records in load.acknowledged]
                load.wait_for_more(chance.randint(1, 3000))
                for partition, acknowledged in enumerate(before):
                    assert acknowledged.items() <= read_all(bootstrap, "load", partition).items()
                node.kill()
        with NodeProcess(tmp_path, listen=f"127.0.0.1:{port}"):
            load.finish()
            assert load.failures == []
            for partition in range(PARTITIONS):
                found = read_all(bootstrap, "load", partition)
                assert list(found) == list(range(len(found)))
                assert found == load.acknowledged[partition]
                assert list(found.values()) == load.written[partition]
