"""Partitions that Ottla's log layer writes, with a list of what is in them; and a reader for any partition.

The log layer works in a data directory that Apache Kafka formatted, on topics that Apache Kafka made, so that
Kafka can take the directory over again. The same kinds of logs are written as Kafka writes for the corpus:
every codec, transactions, many segments, a front that was deleted, compaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ottla.log.cleaner.cleaner import LogCleaner
from ottla.log.config.log_config import LogConfig
from ottla.log.log_manager import LogManager
from ottla.log.producers.state_manager import ProducerStateManagerConfig
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.names import TopicPartition
from ottla.records.batch import Codec, iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.validation import AppendOrigin
from ottla.runtime.runtime import Runtime
from tests.support.java_driver import ConsumedRecord, Message
from tests.support.kafka_corpus import CODECS, FILLER, TOPICS, varied_messages

LEADER_EPOCH = 0
READ_BYTES = 700
_SMALL_SEGMENT = "internal.segment.bytes"


def config_of(topic: str) -> LogConfig:
    """The settings of a topic of the corpus, Kafka's defaults for any other."""
    settings = dict(TOPICS.get(topic, {}))
    segment_bytes = settings.pop(_SMALL_SEGMENT, None)
    config = LogConfig.from_settings({"retention.ms": "-1", **settings})
    return config if segment_bytes is None else replace(config, segment_bytes=int(segment_bytes))


@contextlib.asynccontextmanager
async def log_manager(directory: Path) -> AsyncIterator[LogManager]:
    """The logs of a data directory on the real disk, shut down in the end."""
    runtime = Runtime.real(pool_workers=2)
    manager = LogManager(
        [str(directory)],
        disk=runtime.disk,
        clock=runtime.clock,
        random=runtime.random,
        pool=runtime.pool,
        # There is no coordinator that could confirm a transaction before it is written to, and the
        # timestamps of the records are years old.
        producer_config=ProducerStateManagerConfig(
            producer_id_expiration_ms=2**62, transaction_verification=False
        ),
    )
    try:
        await manager.start(config_of)
        yield manager
        await manager.shutdown()
    finally:
        runtime.close()


def log_of(manager: LogManager, topic: str) -> UnifiedLog:
    """The only partition of a topic, with a high watermark as its only replica gives it."""
    log = manager.get_log(TopicPartition(topic, 0))
    assert log is not None, (topic, manager.failed)
    log.update_high_watermark(log.log_end_offset)
    return log


def visible_records(log: UnifiedLog, *, committed: bool) -> tuple[ConsumedRecord, ...]:
    """What a consumer would get: fetched in small pieces, without markers and, if asked, what was aborted."""
    upper = log.last_stable_offset if committed else log.high_watermark
    aborted = log.collect_aborted_transactions(log.log_start_offset, upper) if committed else []
    records: list[ConsumedRecord] = []
    offset = log.log_start_offset
    while offset < upper:
        data = log.read(offset, READ_BYTES, upper_offset=upper).records
        before = offset
        for position, header in iter_batches(data):
            offset = header.next_offset
            hidden = header.is_transactional and any(
                txn.producer_id == header.producer_id
                and txn.first_offset <= header.base_offset <= txn.last_offset
                for txn in aborted
            )
            if header.is_control or hidden:
                continue
            records += [
                ConsumedRecord(
                    record.offset,
                    record.timestamp,
                    int(header.timestamp_type),
                    header.leader_epoch,
                    _bytes(record.key),
                    _bytes(record.value),
                    tuple((name, _bytes(value)) for name, value in record.headers),
                )
                for record in read_records(data, position)
                if record.offset >= log.log_start_offset
            ]
        assert offset > before or upper >= log.log_end_offset, f"nothing to read at {offset} of {log}"
        if offset == before:
            break
    return tuple(records)


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)


@dataclass(slots=True)
class OurProducer:
    """A producer that the log layer sees: its id, and the sequence it has come to."""

    log: UnifiedLog
    producer_id: int = -1
    codec: Codec = Codec.NONE
    transactional: bool = False
    transaction_version: int = 2
    epoch: int = 0
    sequence: int = 0

    def send(self, messages: Sequence[Message], now_ms: int) -> list[ConsumedRecord]:
        """Appends one batch and returns what must be in the log then."""
        known = self.producer_id >= 0
        batch = build_batch(
            [
                (
                    now_ms if message.timestamp is None else message.timestamp,
                    message.key,
                    message.value,
                    message.headers,
                )
                for message in messages
            ],
            codec=self.codec,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if known else -1,
            base_sequence=self.sequence if known else -1,
            transactional=self.transactional,
        )
        info = self.log.append_as_leader(bytearray(batch), LEADER_EPOCH, now_ms=now_ms)
        self.sequence += len(messages)
        append_time = info.log_append_time
        return [
            ConsumedRecord(
                info.first_offset + index,
                append_time
                if append_time >= 0
                else now_ms
                if message.timestamp is None
                else message.timestamp,
                0 if append_time < 0 else 1,
                LEADER_EPOCH,
                message.key,
                message.value,
                message.headers,
            )
            for index, message in enumerate(messages)
        ]

    def end(self, *, commit: bool, now_ms: int) -> None:
        """Writes the marker that ends the transaction, as the coordinator would: with version 2 each has a
        new epoch.
        """
        if self.transaction_version >= 2:
            self.epoch += 1
            self.sequence = 0
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = build_end_transaction_marker(
            EndTransactionMarker(kind, coordinator_epoch=3),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            timestamp=now_ms,
        )
        self.log.append_as_leader(
            bytearray(marker),
            LEADER_EPOCH,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=self.transaction_version,
        )


@dataclass(slots=True)
class OurTopic:
    """All records of a topic that are in its log, and the offsets of those that a transaction took back."""

    records: list[ConsumedRecord] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    producers: dict[int, OurProducer] = field(default_factory=dict)
    last_stable_offset: int | None = None
    log_start_offset: int = 0

    @property
    def uncommitted(self) -> tuple[ConsumedRecord, ...]:
        return tuple(each for each in self.records if each.offset >= self.log_start_offset)

    @property
    def committed(self) -> tuple[ConsumedRecord, ...]:
        return tuple(
            each
            for each in self.uncommitted
            if each.offset not in self.aborted
            and (self.last_stable_offset is None or each.offset < self.last_stable_offset)
        )


async def write_our_logs(manager: LogManager, now_ms: int) -> dict[str, OurTopic]:
    """Writes every topic of the corpus."""
    written = {topic: OurTopic() for topic in TOPICS}
    _write_indexed(log_of(manager, "indexed"), written["indexed"], now_ms)
    for codec in CODECS:
        _write_plain(log_of(manager, f"codec-{codec}"), written[f"codec-{codec}"], _codec(codec), now_ms)
    _write_plain(log_of(manager, "append-time"), written["append-time"], Codec.LZ4, now_ms)
    _write_transactions(log_of(manager, "transactions"), written["transactions"], now_ms)
    for topic in ("segments", "deleted-front"):
        _write_segments(log_of(manager, topic), written[topic], topic, now_ms)
    trimmed = log_of(manager, "deleted-front")
    trimmed.maybe_increment_log_start_offset(8, "test")
    written["deleted-front"].log_start_offset = 8
    await _write_compacted(manager, written["compacted"], now_ms)
    return written


def _codec(name: str) -> Codec:
    return Codec[name.upper()]


def _chunks(messages: Iterable[Message], size: int) -> list[list[Message]]:
    items = list(messages)
    return [items[start : start + size] for start in range(0, len(items), size)]


def _write_plain(log: UnifiedLog, topic: OurTopic, codec: Codec, now_ms: int) -> None:
    name = log.topic_partition.topic
    idempotent = OurProducer(log, producer_id=7000, codec=codec)
    for chunk in _chunks(varied_messages(name, 28), 4):
        topic.records += idempotent.send(chunk, now_ms)
    plain = OurProducer(log, codec=codec)
    for chunk in _chunks(varied_messages(name, 9, first=28), 5):
        topic.records += plain.send(chunk, now_ms)
    log.update_high_watermark(log.log_end_offset)


def _write_indexed(log: UnifiedLog, topic: OurTopic, now_ms: int) -> None:
    producer = OurProducer(log, producer_id=7008)
    for chunk in _chunks(varied_messages("indexed", 120), 2):
        topic.records += producer.send(chunk, now_ms)
    log.update_high_watermark(log.log_end_offset)


def _write_transactions(log: UnifiedLog, topic: OurTopic, now_ms: int) -> None:
    name = log.topic_partition.topic
    committer = OurProducer(log, 7001, Codec.ZSTD, transactional=True)
    aborter = OurProducer(log, 7002, Codec.GZIP, transactional=True, transaction_version=1)
    plain = OurProducer(log, codec=Codec.SNAPPY)
    for each in range(3):
        first = 20 * each
        topic.records += committer.send(list(varied_messages(name, 3, first=first)), now_ms)
        for chunk in _chunks(varied_messages(name, 4, first=first + 6), 2):
            taken_back = aborter.send(chunk, now_ms)
            topic.records += taken_back
            topic.aborted |= {record.offset for record in taken_back}
        topic.records += plain.send(list(varied_messages(name, 2, first=first + 10)), now_ms)
        aborter.end(commit=False, now_ms=now_ms)
        topic.records += committer.send(list(varied_messages(name, 3, first=first + 12)), now_ms)
        committer.end(commit=True, now_ms=now_ms)
        log.update_high_watermark(log.log_end_offset)
    topic.last_stable_offset = log.log_end_offset
    left_open = OurProducer(log, 7003, transactional=True)
    topic.records += left_open.send(list(varied_messages(name, 3, first=60)), now_ms)
    topic.records += plain.send(list(varied_messages(name, 2, first=63)), now_ms)
    log.update_high_watermark(log.log_end_offset)


def _write_segments(log: UnifiedLog, topic: OurTopic, name: str, now_ms: int) -> None:
    committer = OurProducer(log, 7004, Codec.LZ4, transactional=True)
    aborter = OurProducer(log, 7005, transactional=True, transaction_version=1)
    for each in range(2):
        for batch in range(4):
            producer = committer if batch % 2 == 0 else aborter
            sent = producer.send(
                [
                    Message(name, f"{name}-{each}-{batch}-{index}-{FILLER[:1100]}".encode())
                    for index in range(3)
                ],
                now_ms,
            )
            topic.records += sent
            if producer is aborter:
                topic.aborted |= {record.offset for record in sent}
        aborter.end(commit=False, now_ms=now_ms)
        committer.end(commit=True, now_ms=now_ms)
    log.update_high_watermark(log.log_end_offset)


async def _write_compacted(manager: LogManager, topic: OurTopic, now_ms: int) -> None:
    log = log_of(manager, "compacted")
    plain = OurProducer(log, 7006, Codec.ZSTD)
    transactional = OurProducer(log, 7007, Codec.LZ4, transactional=True)

    def batch(producer: OurProducer, *pairs: tuple[str, str | None]) -> list[ConsumedRecord]:
        sent = producer.send(
            [
                Message("compacted", None if value is None else value.encode(), key=key.encode())
                for key, value in (*pairs, ("filler", FILLER))
            ],
            now_ms,
        )
        log.update_high_watermark(log.log_end_offset)
        return sent

    sent = batch(plain, ("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"))
    sent += batch(plain, ("a", "2"), ("b", None), ("e", "1"))
    aborted = batch(transactional, ("c", "aborted"), ("f", "aborted"))
    transactional.end(commit=False, now_ms=now_ms)
    sent += batch(transactional, ("d", "committed"), ("g", "committed"))
    transactional.end(commit=True, now_ms=now_ms)
    sent += batch(plain, ("a", "3"), ("h", "1"))
    sent += batch(plain, ("h", "2"))
    cleaned = sent
    active = batch(plain, ("active", "1"))
    assert log.active_segment.base_offset > aborted[-1].offset
    closed = [each for each in cleaned if each.offset < log.active_segment.base_offset]
    rest = [each for each in (*cleaned, *active) if each.offset >= log.active_segment.base_offset]
    runtime = Runtime.real(pool_workers=1)
    try:
        cleaner = LogCleaner(runtime.clock, runtime.random, runtime.pool, lambda: [log])
        await manager.flush(log)
        assert await cleaner.clean_filthiest_log()
        assert cleaner.uncleanable == {}
    finally:
        runtime.close()
    latest = {each.key: each.offset for each in closed}
    # The last value of every key, tombstones included, as their time is not over; nothing that was aborted.
    topic.records = [each for each in closed if latest[each.key] == each.offset] + rest
    topic.producers = {plain.producer_id: plain, transactional.producer_id: transactional}
