"""One suite of source behaviour, run three ways: what a way is, records to read, and how they are read.

A `Way` is a format's name and a broker. `SourceHarness` puts records into topics of that broker, remembers
them as the rows that a source must give, and reads them back through Spark. A test says what should come out;
it never asks which way it runs.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.support.spark_sink_harness import await_markers
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAIT_SECONDS = 180.0
WAYS = {
    "ottla-on-ottla": ("ottla", "ottla"),
    "ottla-on-kafka": ("ottla", "kafka"),
    "kafka-on-ottla": ("kafka", "ottla"),
}
_serial = itertools.count()


def ways(*witnesses: str) -> list[Any]:
    """All ways, of which these run always and the others with all tests."""
    found = []
    for name, way in WAYS.items():
        marks = [pytest.mark.kafka] if "kafka" in way else []
        found.append(
            pytest.param(
                way, id=name, marks=[*marks, *([] if name in witnesses else [pytest.mark.exhaustive])]
            )
        )
    return found


# Tests that show what an option means: by Spark's own connector on a node, and by ours on Apache Kafka too.
beside_kafka = pytest.mark.parametrize("lab", ways("ottla-on-ottla", "kafka-on-ottla"), indirect=True)
every_way = pytest.mark.parametrize("lab", ways(*WAYS), indirect=True)


class Rec(NamedTuple):
    """A record as a row: the expected seven columns and the headers."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int = 0
    headers: tuple[tuple[str, bytes | None], ...] | None = None


def rec_of(row: Row) -> Rec:
    headers = row["headers"] if "headers" in row else None  # noqa: SIM401
    return Rec(
        row["topic"],
        row["partition"],
        row["offset"],
        _bytes(row["key"]),
        _bytes(row["value"]),
        row["timestamp_ms"],
        row["timestampType"],
        None if headers is None else tuple((h["key"], _bytes(h["value"])) for h in headers),
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@dataclass
class SourceHarness:
    """A broker, a format that reads from it, and the records in it."""

    spark: SparkSession
    name: str
    format: str
    servers: str
    folder: Path
    admin: Admin
    producer: Producer
    written: list[Rec] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        return self.format == "ottla"

    # Writing records.

    def topic(self, partitions: int = 1, *, stem: str = "t", configs: Mapping[str, str] | None = None) -> str:
        name = f"{stem}-{uuid.uuid4().hex[:8]}"
        # The records are older than any retention.
        self.admin.topics.create(
            name, partitions=partitions, configs={"retention.ms": "-1", **(configs or {})}
        )
        self.await_partitions(name, partitions)
        return name

    def await_partitions(self, topic: str, count: int) -> None:
        """Wait until the brokers show the change of the controller; without partitions, the deletion."""

        def known() -> int:
            try:
                return len(self.admin.topics.describe(topic).partitions)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                return 0

        wait_for(lambda: known() == count, f"{count} partitions of {topic}")

    def send(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        timestamp: int = 1_700_000_000_000,
        step_ms: int = 1_000,
        headers: Sequence[tuple[str, bytes | None]] = (),
        producer: Producer | None = None,
    ) -> list[Rec]:
        """One record after the other, each `step_ms` younger than the one before."""
        client = producer or self.producer
        sent = []
        for at, value in enumerate(values):
            stamp = timestamp + at * step_ms
            found = client.send_nowait(
                topic, value, key=key, partition=partition, timestamp=stamp, headers=headers
            )
            sent.append((found, value, stamp))
        recs = [
            Rec(topic, partition, future.result().offset, key, value, stamp, 0, tuple(headers) or None)
            for future, value, stamp in sent
        ]
        self.written += recs
        return recs

    @contextmanager
    def transactional(self) -> Iterator[Producer]:
        # Open transactions of a test do not time out, however long Spark takes to read.
        settings = {"transactional_id": f"lab-{uuid.uuid4().hex[:8]}", "transaction_timeout_ms": 600_000}
        with Producer(self.servers, **settings) as producer:
            yield producer

    def await_ends(self, topic: str) -> None:
        """Wait until readers see the end of the transaction, which is a moment after its answer."""
        await_markers(self.servers, topic)

    # Reading records.

    def options(self, options: Mapping[str, Any]) -> dict[str, str]:
        # A shorter timeout than by default, so that a test that waits in vain fails with a message.
        found = {"kafka.bootstrap.servers": self.servers, "kafkaConsumer.pollTimeoutMs": "60000"}
        for name, value in options.items():
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def load(self, **options: Any) -> DataFrame:
        return self.spark.read.format(self.format).options(**self.options(options)).load()

    def read(self, **options: Any) -> list[Rec]:
        return recs_of(self.load(**options))

    def load_stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format(self.format).options(**self.options(options)).load()

    def checkpoint(self) -> str:
        return str(self.folder / f"checkpoint-{next(_serial)}")

    def run(self, checkpoint: str, **options: Any) -> list[list[Rec]]:
        """All existing records, by micro-batch; raises the error of the query."""
        batches: list[list[Rec]] = []
        query = self.start(checkpoint, batches, trigger={"availableNow": True}, **options)
        finish(query)
        return batches

    def start(
        self,
        checkpoint: str,
        into: list[list[Rec]],
        *,
        trigger: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """A running query that puts each batch with rows into `into`."""

        def take(frame: DataFrame, _: int) -> None:
            rows = recs_of(frame)
            if rows:
                into.append(rows)

        writer = self.load_stream(**options).writeStream.foreachBatch(take)
        return (
            writer.option("checkpointLocation", checkpoint)
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start()
        )

    @contextmanager
    def running(self, into: list[list[Rec]], **options: Any) -> Iterator[StreamingQuery]:
        """A query that polls, past its first (empty) batch."""
        query = self.start(self.checkpoint(), into, **options)
        try:
            wait_for(lambda: bool(query.recentProgress) or not query.isActive, "the query's first trigger")
            yield query
        finally:
            query.stop()


def recs_of(frame: DataFrame) -> list[Rec]:
    """All rows, sorted. The time is taken as a number, so that no time zone matters."""
    from pyspark.sql import functions as f

    rows = frame.withColumn("timestamp_ms", f.unix_millis("timestamp")).drop("timestamp").collect()
    return sorted(rec_of(row) for row in rows)


def finish(query: StreamingQuery) -> None:
    try:
        if not query.awaitTermination(WAIT_SECONDS):
            raise TimeoutError(f"the query did not end within {WAIT_SECONDS:.0f} s: {query.status}")
    finally:
        query.stop()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, f"{what}: waited in vain", WAIT_SECONDS, poll_s=0.02)


def flat(batches: Iterable[Iterable[Rec]]) -> list[Rec]:
    return sorted(rec for batch in batches for rec in batch)


def without_headers(recs: Iterable[Rec]) -> list[Rec]:
    return sorted(rec._replace(headers=None) for rec in recs)
