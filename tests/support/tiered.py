"""Topics with a part in remote storage, a directory here, and a history of what was written to them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client.admin import Admin
from ottla.client.admin.offsets import FoundOffset, OffsetSpec
from ottla.protocol.names import TopicPartition
from tests.support.waiting import wait_until

SEGMENT_BYTES = 1024 * 1024
START_MS = 1_700_000_000_000
"""The timestamp of the first record; each further one is a second later."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def tiered_settings(store: Path, **more: object) -> dict[str, str]:
    """The settings of a node that keeps old segments in a directory, and is quick about it."""
    return {
        "remote.log.storage.system.enable": "true",
        "rsm.config.storage.root": str(store),
        "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "50",
        **{name.replace("_", "."): str(value) for name, value in more.items()},
    }


def create_tiered_topic(bootstrap: str, name: str, replicas: int = 1, **more: object) -> None:
    """A topic of which the newest one to two segments stay on the disk."""
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(SEGMENT_BYTES),
        "local.retention.bytes": str(SEGMENT_BYTES),
        "local.retention.ms": "-1",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "file.delete.delay.ms": "0",
        **{key.replace("_", "."): str(value) for key, value in more.items()},
    }
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, replicas, config=config)])[name].result(60)


@dataclass
class History:
    """What was written to a partition, by offset: key, value and timestamp."""

    bootstrap: str
    topic: str
    committed: dict[int, tuple[bytes, bytes, int]] = field(default_factory=dict)
    aborted: dict[int, tuple[bytes, bytes, int]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    random: random.Random = field(default_factory=lambda: random.Random(7))
    local_start: int = 0
    """Where the log began on the disk, when a test looked."""

    @property
    def all(self) -> dict[int, tuple[bytes, bytes, int]]:
        return dict(sorted({**self.committed, **self.aborted}.items()))

    def producer(self, **config: object) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, **_dotted(config)})

    def send(
        self,
        producer: Producer,
        count: int,
        size: int = 1000,
        *,
        into: dict[int, tuple[bytes, bytes, int]] | None = None,
    ) -> None:
        """Write records, and note the offset of each."""
        target = self.committed if into is None else into

        def on_delivery(error: Any, message: Message) -> None:
            assert error is None, error
            offset = message.offset()
            assert offset is not None
            target[offset] = sent.pop(bytes(message.key() or b""))

        sent = {}
        for number in itertools.islice(self.numbers, count):
            key, timestamp = b"%d" % number, START_MS + 1000 * number
            value = self.random.randbytes(size)
            sent[key] = key, value, timestamp
            producer.produce(
                self.topic, key=key, value=value, timestamp=timestamp, partition=0, on_delivery=on_delivery
            )
        assert producer.flush(60) == 0
        assert not sent

    def write_plain(self, size: int) -> None:
        """Write so many bytes, with each of the codecs in turn."""
        codecs = itertools.cycle(CODECS)
        for _ in range(-(-size // 100_000)):
            self.send(self.producer(compression_type=next(codecs)), 100)


def _dotted(config: dict[str, object]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in config.items()}


def offset_of(bootstrap: str, topic: str, spec: int) -> int:
    return found_offset(bootstrap, topic, spec).offset


def found_offset(bootstrap: str, topic: str, spec: int) -> FoundOffset:
    async def ask() -> FoundOffset:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            return (await admin.offsets.of_topic(topic, spec))[0]

    return asyncio.run(ask())


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    async def ask() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            partition = TopicPartition(topic, 0)
            result = (await admin.offsets.delete_records({partition: before}))[partition]
            assert result == before, result

    asyncio.run(ask())


def wait_until_tiered(bootstrap: str, topic: str) -> int:
    """Wait until all closed segments are in the store and the disk has no more than it should; the offset at
    which the log begins on the disk.
    """
    seen = [(0, -1, 0)]
    since = time.monotonic()

    def is_tiered() -> bool:
        nonlocal since
        specs = (OffsetSpec.EARLIEST_LOCAL, OffsetSpec.LATEST_TIERED, OffsetSpec.LATEST)
        local, tiered, end = (offset_of(bootstrap, topic, spec) for spec in specs)
        now = local, tiered, end
        if now != seen[-1]:
            seen.append(now)
            since = time.monotonic()
        # Retention looks several times in this time.
        return time.monotonic() - since > 1.0 and 0 < local <= tiered + 1 < end

    wait_until(is_tiered, f"{topic} does not leave the disk: {seen[-5:]}")
    return seen[-1][0]
