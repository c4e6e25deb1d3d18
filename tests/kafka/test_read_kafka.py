"""Apache Kafka's files under our eyes: we open what its broker wrote, after a stop and after a kill, and see
what its own client saw; and we go on writing where it ended.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.log.producers.state_entry import ProducerStateEntry
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.coordinator_records import encode_key, encode_value
from ottla.protocol.metadata_records import decode_metadata_record, encode_metadata_record
from ottla.protocol.names import TopicPartition
from ottla.protocol.transaction_state_records import RECORDS, TransactionLogKey
from ottla.records.batch import iter_batches, read_records
from tests.support.dump_log import check_directory, dump
from tests.support.java_driver import ConsumedRecord, JavaDriver, Message
from tests.support.kafka_corpus import TOPICS, KafkaCorpus, Truth
from tests.support.our_logs import OurProducer, log_manager, log_of, visible_records

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

STATES = ("clean", "crashed")


@dataclass(frozen=True, slots=True)
class Seen:
    """What our log layer says of one partition."""

    uncommitted: tuple[ConsumedRecord, ...]
    committed: tuple[ConsumedRecord, ...]
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    epochs: list[tuple[int, ...]]
    producers: dict[int, ProducerStateEntry]


def _see(log: UnifiedLog) -> Seen:
    return Seen(
        visible_records(log, committed=False),
        visible_records(log, committed=True),
        log.log_start_offset,
        log.last_stable_offset,
        log.log_end_offset,
        [tuple(each) for each in log.leader_epoch_cache.entries],
        dict(log.producer_state_manager.active_producers),
    )


def _open(directory: Path, copy: Path, prepare: Callable[[Path], None] | None = None) -> dict[str, Seen]:
    """Everything in a copy of a data directory."""
    shutil.copytree(directory, copy)
    if prepare is not None:
        prepare(copy)

    async def see() -> dict[str, Seen]:
        async with log_manager(copy) as manager:
            assert manager.failed == {}
            return {topic: _see(log_of(manager, topic)) for topic in TOPICS}

    return asyncio.run(see())


@pytest.fixture(scope="module")
def opened(kafka_corpus: KafkaCorpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Seen]]:
    home = tmp_path_factory.mktemp("opened")
    return {state: _open(getattr(kafka_corpus, state), home / state) for state in STATES}


def _truth(corpus: KafkaCorpus, state: str, topic: str) -> Truth:
    return (corpus.clean_truth if state == "clean" else corpus.crashed_truth)[topic]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("state", STATES)
def test_we_read_every_record_that_kafka_wrote(
    state: str, topic: str, kafka_corpus: KafkaCorpus, opened: dict[str, dict[str, Seen]]
) -> None:
    truth, seen = _truth(kafka_corpus, state, topic), opened[state][topic]
    assert seen.uncommitted == truth.uncommitted.records
    assert seen.committed == truth.committed.records
    assert seen.log_start_offset == truth.uncommitted.beginning_offset
    assert seen.log_end_offset == truth.uncommitted.end_offset
    assert seen.last_stable_offset == truth.committed.end_offset


@pytest.mark.parametrize("state", STATES)
def test_we_find_kafkas_leader_epochs(
    state: str, kafka_corpus: KafkaCorpus, opened: dict[str, dict[str, Seen]]
) -> None:
    directory: Path = getattr(kafka_corpus, state)
    for topic in TOPICS:
        lines = (directory / f"{topic}-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:]
        entries = [tuple(map(int, line.split())) for line in lines]
        # An epoch that wrote nothing yet is forgotten when a log is loaded, by Kafka too.
        seen = opened[state][topic]
        assert seen.epochs == [each for each in entries if each[1] < seen.log_end_offset]


def _remove_snapshots(directory: Path) -> None:
    (directory / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (directory / name).unlink()
    for snapshot in directory.glob("*/*.snapshot"):
        snapshot.unlink()


@pytest.fixture(scope="module")
def replayed(kafka_corpus: KafkaCorpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """The stopped directory without what says what its batches mean: all of it is worked out again."""
    return _open(kafka_corpus.clean, tmp_path_factory.mktemp("replayed") / "data", _remove_snapshots)


@pytest.mark.parametrize("topic", TOPICS)
def test_our_producer_state_is_kafkas(
    topic: str,
    kafka_corpus: KafkaCorpus,
    opened: dict[str, dict[str, Seen]],
    replayed: dict[str, Seen],
    java_driver: JavaDriver,
) -> None:
    """Kafka's snapshot, as its own tool prints it, against our reading of the file and against a replay."""
    newest = max((kafka_corpus.clean / f"{topic}-0").glob("*.snapshot"))
    printed = dump(java_driver, [newest])
    assert printed.complaints == []
    rows = {row["producerId"]: row for row in printed.entries[newest.name]}
    assert int(newest.stem) == opened["clean"][topic].log_end_offset
    for seen in (opened["clean"][topic], replayed[topic]):
        assert {producer_id: _as_printed(entry) for producer_id, entry in seen.producers.items()} == rows


def _as_printed(entry: ProducerStateEntry) -> dict[str, int]:
    first = entry.current_txn_first_offset
    row = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": -1 if first is None else first,
        "lastTimestamp": entry.last_timestamp,
    }
    if entry.batches:
        last = entry.batches[-1]
        row |= {
            "firstSequence": last.first_sequence,
            "lastSequence": last.last_sequence,
            "lastOffset": last.last_offset,
            "offsetDelta": last.offset_delta,
            "timestamp": last.timestamp,
        }
    return row


@pytest.mark.parametrize("state", STATES)
def test_we_go_on_where_kafka_ended(
    state: str, kafka_corpus: KafkaCorpus, java_driver: JavaDriver, tmp_path: Path
) -> None:
    """What we append to Kafka's logs and close is as sound to Kafka's tool as what it wrote itself."""
    directory = tmp_path / "data"
    shutil.copytree(getattr(kafka_corpus, state), directory)
    ends: dict[str, int] = {}

    async def go_on() -> None:
        async with log_manager(directory) as manager:
            for topic in TOPICS:
                log = log_of(manager, topic)
                producer = OurProducer(log, producer_id=9000)
                for index in range(3):
                    producer.send([Message(topic, f"ours-{index}".encode(), key=b"ours")], 1_800_000_000_000)
                ends[topic] = log.log_end_offset

    asyncio.run(go_on())
    for topic in TOPICS:
        dumped = check_directory(
            java_driver, directory / f"{topic}-0", compacted=topic in ("compacted", "deleted-front")
        )
        assert [each.payload for each in dumped.records[-3:]] == ["ours-0", "ours-1", "ours-2"]
        assert dumped.records[-1].offset == ends[topic] - 1


def test_we_decode_what_kafkas_coordinator_wrote(kafka_corpus: KafkaCorpus, tmp_path: Path) -> None:
    """Every record of `__transaction_state` is understood, and encoded again to the same bytes."""
    directory = tmp_path / "data"
    shutil.copytree(kafka_corpus.clean, directory)

    async def records() -> list[tuple[bytes, bytes | None]]:
        found = []
        async with log_manager(directory) as manager:
            for partition in range(2):
                log = manager.get_log(TopicPartition("__transaction_state", partition))
                assert log is not None
                log.update_high_watermark(log.log_end_offset)
                found += [(each.key or b"", each.value) for each in visible_records(log, committed=False)]
        return found

    found = asyncio.run(records())
    transactional_ids = set()
    for key, value in found:
        decoded_key, decoded_value = RECORDS.decode(key, value)
        assert isinstance(decoded_key, TransactionLogKey)
        transactional_ids.add(decoded_key.transactional_id)
        assert encode_key(decoded_key) == key
        if value is not None:
            assert decoded_value is not None
            assert encode_value(decoded_value, int.from_bytes(value[:2], "big")) == value
    assert transactional_ids >= {"committer", "aborter", "left-open", "compacted-txn"}


def test_we_decode_kafkas_metadata_log(kafka_corpus: KafkaCorpus) -> None:
    """Every record of `__cluster_metadata` is understood, and encoded again to the same bytes."""
    seen = set()
    for segment in sorted((kafka_corpus.clean / "__cluster_metadata-0").glob("*.log")):
        data = segment.read_bytes()
        for position, header in iter_batches(data):
            if header.is_control:
                continue
            for record in read_records(data, position):
                assert record.value is not None
                value = bytes(record.value)
                decoded, version = decode_metadata_record(value)
                assert encode_metadata_record(decoded, version) == value
                seen.add(type(decoded).__name__)
    assert seen >= {
        "TopicRecord",
        "PartitionRecord",
        "ConfigRecord",
        "FeatureLevelRecord",
        "RegisterBrokerRecord",
    }
