"""A data directory that Apache Kafka wrote, with the truth about it as Kafka's own Java client read it.

One node writes topics of every kind that storage has to understand: each codec, `LogAppendTime`, headers and
nulls, transactions that were committed, aborted and left open, many segments, a compacted topic with
tombstones and transactions, records deleted from the front. Two copies are kept: `clean`, taken after an
orderly stop, and `crashed`, taken after more writes and a SIGKILL. A `Truth` says what a reader
must see.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.java_driver import Consumed, JavaDriver, JavaProducer, Message
from tests.support.wire import WireClient

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP = 1_700_000_000_000
CLEANER_TIMEOUT_S = 120.0
NODE_PROPERTIES = {
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": "100",
    "log.retention.ms": "-1",
}

# Smaller than Kafka lets operators choose, so that a handful of batches makes many segments.
_SMALL_SEGMENTS = {"internal.segment.bytes": "4000"}
FILLER = "".join(hashlib.sha256(bytes([each])).hexdigest() for each in range(50))

TOPICS: dict[str, dict[str, str]] = {
    **{f"codec-{codec}": {} for codec in CODECS},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "indexed": {"index.interval.bytes": "100"},
    "transactions": {},
    "segments": _SMALL_SEGMENTS,
    "deleted-front": _SMALL_SEGMENTS,
    "compacted": {
        **_SMALL_SEGMENTS,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
    },
}


class Broker(Protocol):
    """Who writes: Apache Kafka, or a node of ours in its place."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def data_dir(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class Truth:
    """What the Java client read of one partition: everything, and what transactions have made final."""

    uncommitted: Consumed
    committed: Consumed


@dataclass(frozen=True, slots=True)
class KafkaCorpus:
    clean: Path
    crashed: Path
    clean_truth: dict[str, Truth]
    crashed_truth: dict[str, Truth]


def write_corpus(directory: Path, driver: JavaDriver) -> KafkaCorpus:
    """Lets Apache Kafka write every topic of `TOPICS` under `directory`."""
    with ApacheKafka(directory / "node", properties=NODE_PROPERTIES) as kafka:
        write_topics(kafka, driver)
        clean_truth = read_truth(kafka, driver)
        kafka.stop()
        clean = Path(shutil.copytree(kafka.data_dir, directory / "clean"))
        kafka.start()
        write_more(kafka, driver)
        crashed_truth = read_truth(kafka, driver)
        kafka.kill()
        crashed = Path(shutil.copytree(kafka.data_dir, directory / "crashed"))
    return KafkaCorpus(clean, crashed, clean_truth, crashed_truth)


def write_topics(kafka: Broker, driver: JavaDriver) -> None:
    """Makes and fills every topic of `TOPICS`."""
    create_topics(kafka)
    write_more(kafka, driver)
    _write_segments(kafka, driver, "segments")
    _write_segments(kafka, driver, "deleted-front")
    _delete_front(kafka, driver, "deleted-front", before_offset=8)
    _write_compacted(kafka, driver)


def write_more(kafka: Broker, driver: JavaDriver) -> None:
    """Writes to those topics that need no cleaning, again if it was done before."""
    _write_plain(kafka, driver)
    _write_transactions(kafka, driver)


def varied_messages(topic: str, count: int, *, first: int = 0) -> Iterator[Message]:
    """Records that differ in everything a record can differ in; timestamps go back and forth."""
    for number in range(first, first + count):
        yield Message(
            topic,
            value=None if number % 7 == 3 else f"value-{number}-".encode() * (number % 5),
            key=None if number % 5 == 1 else f"key-{number % 4}".encode(),
            timestamp=BASE_TIMESTAMP + 10 * number - 35 * (number % 3),
            headers=tuple(
                (f"h{each}", None if each == 1 else bytes([each, number % 256])) for each in range(number % 4)
            ),
        )


def create_topics(kafka: Broker) -> None:
    """Makes every topic of `TOPICS`, with one partition each."""
    topics = [
        CreatableTopic(
            name=topic,
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
        )
        for topic, configs in TOPICS.items()
    ]
    with WireClient(kafka.bootstrap) as client:
        request = CreateTopicsRequest(topics=topics, timeout_ms=30_000)
        made = client.get(request, 7, CreateTopicsResponse)
    assert all(each.error_code == 0 for each in made.topics), made


def _write_plain(kafka: Broker, driver: JavaDriver) -> None:
    for codec in CODECS:
        with driver.producer(kafka.bootstrap, compression_type=codec) as producer:
            # More batches than the five that a broker remembers of a producer.
            producer.send(varied_messages(f"codec-{codec}", 28), flush_every=4)
        with driver.producer(kafka.bootstrap, compression_type=codec, enable_idempotence="false") as producer:
            producer.send(varied_messages(f"codec-{codec}", 9, first=28), flush_every=5)
    with driver.producer(kafka.bootstrap, compression_type="lz4") as producer:
        producer.send(varied_messages("append-time", 12), flush_every=5)
    with driver.producer(kafka.bootstrap) as producer:
        producer.send(varied_messages("indexed", 120), flush_every=2)


def _write_transactions(kafka: Broker, driver: JavaDriver) -> None:
    topic = "transactions"
    with (
        _transactional(kafka, driver, "committer", "zstd") as committer,
        _transactional(kafka, driver, "aborter", "gzip") as aborter,
        driver.producer(kafka.bootstrap, compression_type="snappy") as plain,
    ):
        for round_number in range(3):
            first = 20 * round_number
            committer.begin()
            aborter.begin()
            committer.send(varied_messages(topic, 6, first=first), flush_every=3)
            aborter.send(varied_messages(topic, 4, first=first + 6), flush_every=2)
            plain.send(varied_messages(topic, 2, first=first + 10))
            committer.send(varied_messages(topic, 3, first=first + 12))
            aborter.abort()
            plain.send(varied_messages(topic, 2, first=first + 15))
            committer.commit()
    # What is left open holds the last stable offset back; the next life of the id aborts it.
    left_open = _transactional(kafka, driver, "left-open", "none")
    left_open.begin()
    left_open.send(varied_messages(topic, 3, first=60))
    with driver.producer(kafka.bootstrap) as plain:
        plain.send(varied_messages(topic, 2, first=63))
    left_open.close(timeout_ms=0)


def _write_segments(kafka: Broker, driver: JavaDriver, topic: str) -> None:
    """Several segments, with transactions that begin in one and end in another."""
    with (
        _transactional(kafka, driver, f"{topic}-committer", "lz4") as committer,
        _transactional(kafka, driver, f"{topic}-aborter", "none") as aborter,
    ):
        for each in range(2):
            committer.begin()
            aborter.begin()
            for batch in range(4):
                producer = committer if batch % 2 == 0 else aborter
                producer.send(
                    Message(topic, f"{topic}-{each}-{batch}-{number}-{FILLER[:1100]}".encode())
                    for number in range(3)
                )
            aborter.abort()
            committer.commit()


def _write_compacted(kafka: Broker, driver: JavaDriver) -> None:
    topic = "compacted"

    def batch(producer: JavaProducer, *pairs: tuple[str, str | None]) -> None:
        """Writes one batch that fills most of a segment; the filler's key is in every batch."""
        producer.send(
            Message(topic, None if value is None else value.encode(), key=key.encode())
            for key, value in (*pairs, ("filler", FILLER))
        )

    with (
        driver.producer(kafka.bootstrap, compression_type="zstd") as plain,
        _transactional(kafka, driver, "compacted-txn", "lz4") as transactional,
    ):
        batch(plain, ("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"))
        batch(plain, ("a", "2"), ("b", None), ("e", "1"))
        transactional.begin()
        batch(transactional, ("c", "aborted"), ("f", "aborted"))
        transactional.abort()
        transactional.begin()
        batch(transactional, ("d", "committed"), ("g", "committed"))
        transactional.commit()
        batch(plain, ("a", "3"), ("h", "1"))
        batch(plain, ("h", "2"))
        batch(plain, ("active", "1"))
    _await_cleaned(kafka, topic)


def _await_cleaned(kafka: Broker, topic: str) -> None:
    """Waits until the cleaner's checkpoint says that the log is clean up to its active segment."""
    offset = max(int(each.stem) for each in (kafka.data_dir / f"{topic}-0").glob("*.log"))
    checkpoint = kafka.data_dir / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + CLEANER_TIMEOUT_S
    while time.monotonic() < deadline:
        lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
        if f"{topic} 0 {offset}" in lines:
            return
        time.sleep(0.05)
    raise AssertionError(f"the cleaner has not reached {offset} of {topic}")


def _delete_front(kafka: Broker, driver: JavaDriver, topic: str, *, before_offset: int) -> None:
    request = kafka.data_dir / "delete-records.json"
    partition = {"topic": topic, "partition": 0, "offset": before_offset}
    request.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    driver.tool(
        "org.apache.kafka.tools.DeleteRecordsCommand",
        "--bootstrap-server",
        kafka.bootstrap,
        "--offset-json-file",
        str(request),
    )
    request.unlink()


def _transactional(kafka: Broker, driver: JavaDriver, name: str, codec: str) -> JavaProducer:
    # What is left open must stay so, however long the tests take.
    producer = driver.producer(
        kafka.bootstrap, compression_type=codec, transactional_id=name, transaction_timeout_ms="900000"
    )
    producer.init_transactions()
    return producer


def read_truth(kafka: Broker, driver: JavaDriver) -> dict[str, Truth]:
    """Everything of every topic as the Java client reads it."""
    return {
        topic: Truth(
            driver.consume(kafka.bootstrap, topic, isolation_level="read_uncommitted"),
            driver.consume(kafka.bootstrap, topic, isolation_level="read_committed"),
        )
        for topic in TOPICS
    }
