"""Produce and InitProducerId: what a broker takes, what it refuses, and what is in the log afterwards."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.records.batch import Codec
from ottla.records.builder import build_batch
from tests.kafka.scripts.kit import (
    EARLIEST,
    LATEST,
    TIMEOUT_MS,
    TIMESTAMP,
    UNKNOWN_ID,
    batch_of,
    fetch_request,
    list_offsets_request,
    make_topic,
    new_producer,
    patched,
    produce_request,
    script,
)
from tests.support.differential import Session

HOUR_MS = 3_600_000


def _log_of(session: Session, topic: str, topic_id: bytes) -> None:
    """Keeps what is in the log in the transcript."""
    session.ask("end offset", list_offsets_request(topic, {0: LATEST}))
    session.ask("log", fetch_request(topic_id, 0))


@script
def produce(session: Session) -> None:
    """Every version, with every acks and every codec."""
    topic_id = make_topic(session, "produce")
    for version in session.versions(ProduceRequest):
        for acks in (1, -1):
            batch = batch_of(b"one", b"two")
            request = produce_request("produce", batch, topic_id=topic_id, acks=acks)
            session.ask(f"acks {acks}", request, version)
        for codec in Codec:
            request = produce_request(
                "produce", batch_of(b"value" * 20, None, codec=codec), topic_id=topic_id
            )
            session.ask(f"codec {codec.name}", request, version)
        for acks in (2, -2):
            request = produce_request("produce", batch_of(b"x"), topic_id=topic_id, acks=acks)
            session.ask(f"acks {acks}", request, version)
        session.client.send(produce_request("produce", batch_of(b"zero"), topic_id=topic_id, acks=0), version)
        session.ask("after acks 0", list_offsets_request("produce", {0: LATEST}))
    _log_of(session, "produce", topic_id)


@script
def produce_to_what_does_not_exist(session: Session) -> None:
    topic_id = make_topic(session, "produce-few")
    for version in session.versions(ProduceRequest):
        unknown = produce_request("produce-none", batch_of(b"x"), topic_id=UNKNOWN_ID)
        session.ask("unknown topic", unknown, version)
        for partition in (1, -1):
            request = produce_request("produce-few", batch_of(b"x"), topic_id=topic_id, partition=partition)
            session.ask(f"partition {partition}", request, version)
        session.ask("no topics", ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[]), version)
        both = ProduceRequest(
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name="produce-few",
                    topic_id=topic_id,
                    partition_data=[
                        PartitionProduceData(index=index, records=batch_of(b"x")) for index in (0, 1)
                    ],
                )
            ],
        )
        session.ask("one of two partitions", both, version)
        if version >= 13:
            zero = produce_request("", batch_of(b"x"), topic_id=bytes(16))
            session.ask("no topic id", zero, version)


def _odd_batches() -> Mapping[str, bytes]:
    """Batches that are wrong somewhere; which of them a broker takes all the same is the question.

    Left out is what Apache Kafka does by accident: it never answers records that are null, answers an unknown
    codec or compressed rubbish with UNKNOWN_SERVER_ERROR, and takes records whose offset deltas have gaps.
    """
    good = batch_of(b"first", b"second", b"third")
    one = batch_of(b"one")
    return {
        "no bytes": b"",
        "half a batch": good[:-5],
        "half a header": good[:40],
        "bytes after the batch": good + b"more",
        "two batches": good + one,
        "wrong checksum": patched(good, len(good) - 1, ">B", 255, checksum=False),
        "length too small": patched(good, 8, ">i", 20, checksum=False),
        "length negative": patched(good, 8, ">i", -1, checksum=False),
        "length beyond the end": patched(good, 8, ">i", len(good), checksum=False),
        "magic 0": patched(good, 16, ">b", 0, checksum=False),
        "magic 1": patched(good, 16, ">b", 1, checksum=False),
        "magic 3": patched(good, 16, ">b", 3, checksum=False),
        "base offset 7": patched(good, 0, ">q", 7),
        "leader epoch 9": patched(good, 12, ">i", 9),
        "unknown attribute": patched(good, 21, ">h", 1 << 7),
        "delete horizon": patched(good, 21, ">h", 1 << 6),
        "log append time": patched(good, 21, ">h", 1 << 3),
        "control batch": patched(good, 21, ">h", 1 << 5),
        "count too small": patched(good, 57, ">i", 2),
        "count too large": patched(good, 57, ">i", 4),
        "count zero": patched(good, 57, ">i", 0),
        "count negative": patched(good, 57, ">i", -1),
        "last offset delta too small": patched(good, 23, ">i", 1),
        "last offset delta too large": patched(good, 23, ">i", 5),
        "last offset delta negative": patched(good, 23, ">i", -1),
        "wrong maximum timestamp": patched(good, 35, ">q", TIMESTAMP + 99),
        "no maximum timestamp": patched(good, 35, ">q", -1),
        "record length too large": patched(one, 61, ">b", 100),
        "record length negative": patched(one, 61, ">b", 1),
        "no records": batch_of(),
        "value of two MB": batch_of(bytes(2_000_000)),
        "value of two MB compressed": batch_of(bytes(2_000_000), codec=Codec.GZIP),
        "producer epoch without an id": batch_of(b"x", producer_epoch=0),
        "sequence without an id": batch_of(b"x", base_sequence=0),
        "transactional without an id": patched(one, 21, ">h", 1 << 4),
    }


@script
def produce_bad_batches(session: Session) -> None:
    topic_id = make_topic(session, "produce-bad")
    for version in (3, 7, 8, 13):
        for label, batch in _odd_batches().items():
            session.ask(label, produce_request("produce-bad", batch, topic_id=topic_id), version)
    _log_of(session, "produce-bad", topic_id)


@script
def produce_to_topics_with_settings(session: Session) -> None:
    now = int(time.time() * 1000)
    day_ms = 24 * HOUR_MS
    good = batch_of(b"a", b"b", timestamp=now)
    cases: dict[str, tuple[dict[str, str], list[bytes]]] = {
        "compact": (
            {"cleanup.policy": "compact"},
            [good, batch_of(b"a", b"b", key=None), batch_of(None), batch_of(b"a", key=b"")],
        ),
        "append-time": (
            {"message.timestamp.type": "LogAppendTime"},
            [good, batch_of(b"a", codec=Codec.ZSTD)],
        ),
        "after": (
            {},
            [batch_of(b"a", timestamp=now + 2 * HOUR_MS), batch_of(b"a", timestamp=now + HOUR_MS // 2)],
        ),
        "before": (
            {"message.timestamp.before.max.ms": str(HOUR_MS)},
            [batch_of(b"a", timestamp=now - day_ms), batch_of(b"a", timestamp=now - HOUR_MS // 2)],
        ),
        "no-timestamp": ({}, [batch_of(b"a", timestamp=-1)]),
        "small": (
            {"max.message.bytes": "200"},
            [batch_of(b"x" * 300), batch_of(b"x" * 300, codec=Codec.GZIP), batch_of(b"x" * 20)],
        ),
        "zero": ({"max.message.bytes": "0"}, [batch_of(b"")]),
        "gzip": ({"compression.type": "gzip"}, [batch_of(b"x" * 99), batch_of(b"x" * 99, codec=Codec.GZIP)]),
        "uncompressed": ({"compression.type": "uncompressed"}, [good, batch_of(b"x" * 99, codec=Codec.LZ4)]),
        "isr": ({"min.insync.replicas": "2"}, [good]),
    }
    for label, (configs, batches) in cases.items():
        topic = f"produce-{label}"
        topic_id = make_topic(session, topic, configs=configs)
        for index, batch in enumerate(batches):
            for acks in (-1, 1):
                request = produce_request(topic, batch, topic_id=topic_id, acks=acks)
                session.ask(f"{label}, batch {index}, acks {acks}", request)
        # Recompression is the broker's own, and so is the present time.
        recompressed = label in ("gzip", "append-time")
        if label not in ("compact", "after", "before", "isr", "uncompressed") and not recompressed:
            session.ask(f"{label}, log", fetch_request(topic_id, 0))
        session.ask(f"{label}, end", list_offsets_request(topic, {0: LATEST}))


@script
def init_producer_id(session: Session) -> None:
    new_producer(session)
    for version in session.versions(InitProducerIdRequest):
        plain = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        session.ask("idempotent", plain, version)
        session.ask("again", plain, version)
        for timeout_ms in (0, -1, 2_147_483_647):
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout_ms)
            session.ask(f"timeout {timeout_ms}", request, version)
        if version >= 3:
            for producer_id, epoch in ((5, 0), (5, -1), (-1, 0)):
                request = InitProducerIdRequest(
                    transactional_id=None,
                    transaction_timeout_ms=60_000,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                )
                session.ask(f"producer {producer_id} epoch {epoch}", request, version)
        empty = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000)
        session.ask("empty transactional id", empty, version)


@script
def produce_in_sequence(session: Session) -> None:
    """An idempotent producer: repeats are answered as the first time, gaps and old epochs are refused."""
    topic_id = make_topic(session, "produce-sequence")
    producer_id = new_producer(session)

    def ask(
        label: str, sequence: int, count: int = 2, *, epoch: int = 0, producer: int | None = None
    ) -> None:
        batch = batch_of(
            *[b"v"] * count,
            producer_id=producer_id if producer is None else producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        session.ask(label, produce_request("produce-sequence", batch, topic_id=topic_id))

    ask("from zero", 0)
    for index in range(1, 8):
        ask(f"batch {index}", 2 * index)
    ask("the last again", 14)
    ask("the fifth last again", 6)
    ask("the sixth last again", 4)
    ask("the first again", 0)
    ask("a gap", 17)
    ask("overlapping", 13)
    ask("other length", 14, 1)
    ask("epoch 1, not from zero", 16, epoch=1)
    ask("epoch 1 from zero", 0, epoch=1)
    ask("epoch 0 again", 16, epoch=0)
    ask("epoch 1 goes on", 2, epoch=1)
    ask("epoch 3", 0, epoch=3)
    ask("negative sequence", -1)
    ask("negative epoch", 0, epoch=-1)
    ask("unknown producer", 0, producer=777_777)
    ask("unknown producer goes on", 2, producer=777_777)
    ask("another one, not from zero", 9, producer=777_778)
    wrapping = 2_147_483_646
    ask("near the end", wrapping, 2, producer=777_779)
    ask("wraps around", 0, 2, producer=777_779)
    ask("over the end", wrapping, 4, producer=777_780)
    _log_of(session, "produce-sequence", topic_id)


@script
def produce_transactional_batches(session: Session) -> None:
    """A transactional batch needs a transactional id; a plain batch may come with one."""
    topic_id = make_topic(session, "produce-transactional")
    for version in (3, 9, 11, 12, 13):
        batch = batch_of(b"v", producer_id=999_999, producer_epoch=0, base_sequence=0, transactional=True)
        request = produce_request("produce-transactional", batch, topic_id=topic_id)
        session.ask("no transactional id", request, version)
        plain = produce_request("produce-transactional", batch_of(b"plain"), topic_id=topic_id)
        plain.transactional_id = "no-such-transaction"
        session.ask("plain batch with a transactional id", plain, version)
    session.ask("log start", list_offsets_request("produce-transactional", {0: EARLIEST}))
    session.ask("end", list_offsets_request("produce-transactional", {0: LATEST}))


@script
def produce_record_errors(session: Session) -> None:
    """Which records of a batch are at fault is said from version 8 on."""
    topic_id = make_topic(session, "produce-errors", configs={"cleanup.policy": "compact"})
    keys = (None, b"k", None, b"k")
    batch = build_batch([(TIMESTAMP + index, key, b"v") for index, key in enumerate(keys)])
    for version in session.versions(ProduceRequest):
        request = produce_request("produce-errors", batch, topic_id=topic_id)
        session.ask("two records without a key", request, version)
