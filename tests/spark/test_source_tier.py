"""`readFrom=tier`: what is in remote storage comes from the store, the rest from brokers, and each once."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_metadata import RemoteResourceNotFound
from ottla.spark.source import segments
from ottla.spark.source.batch_reader import RangePartition, SegmentPartition, batch_reader
from ottla.spark.source.columns import COLUMNS, spark_schema
from ottla.spark.source.data_loss import DataLoss
from ottla.testing.local_node import LocalNode
from tests.support.s3_server import (
    ACCESS_KEY,
    BUCKET,
    S3_SKIP,
    SECRET_KEY,
    NoS3Server,
    program,
    s3_server,
)
from tests.support.tiered import (
    START_MS,
    History,
    create_tiered_topic,
    delete_records,
    tiered_settings,
    wait_until_tiered,
)

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


class Archive:
    """A topic of which all but the end is in a directory, and how it is read."""

    def __init__(self, history: History, store: Path) -> None:
        self.history = history
        self.store = store

    def reader(self, **options: Any) -> Any:
        given = {
            "kafka.bootstrap.servers": self.history.bootstrap,
            "subscribe": self.history.topic,
            "readFrom": "tier",
            "rsm.config.storage.url": f"file://{self.store}",
            **{name: str(value) for name, value in options.items()},
        }
        return batch_reader(given, spark_schema(COLUMNS[:-1]))

    def partitions(self, **options: Any) -> list[Any]:
        # As Spark sends them to its workers.
        found: list[Any] = pickle.loads(pickle.dumps(self.reader(**options).partitions()))
        return found

    def read(self, partitions: list[Any], **options: Any) -> dict[int, tuple[bytes, bytes, int]]:
        reader = self.reader(**options)
        found: dict[int, tuple[bytes, bytes, int]] = {}
        for each in partitions:
            for batch in reader.read(each):
                for row in batch.to_pylist():
                    assert row["offset"] not in found, row["offset"]
                    at_ms = round(row["timestamp"].timestamp() * 1000)
                    found[row["offset"]] = row["key"], row["value"], at_ms
        return found

    def rows(self, **options: Any) -> dict[int, tuple[bytes, bytes, int]]:
        return self.read(self.partitions(**options), **options)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def node(store: Path) -> Iterator[LocalNode]:
    with LocalNode(tiered_settings(store)) as running:
        yield running


def write(bootstrap: str, topic: str) -> History:
    """Records with every codec; transactions that are aborted in remote storage, begin there and are aborted
    on the disk, or are decided while an older one is open.
    """
    create_tiered_topic(bootstrap, topic)
    history = History(bootstrap, topic)
    history.write_plain(2 * MIB)
    first = history.producer(transactional_id=f"{topic}-first")
    first.init_transactions(60)
    for into in (history.aborted, history.committed, history.aborted):
        first.begin_transaction()
        history.send(first, 20, into=into)
        (first.commit_transaction if into is history.committed else first.abort_transaction)(60)
    across = history.producer(transactional_id=f"{topic}-across", transaction_timeout_ms=600_000)
    across.init_transactions(60)
    across.begin_transaction()
    history.send(across, 5, into=history.aborted)
    history.write_plain(MIB)
    history.send(across, 5, into=history.aborted)
    across.abort_transaction(60)
    history.write_plain(2 * MIB)
    history.local_start = wait_until_tiered(bootstrap, topic)
    return history


@pytest.fixture(scope="module")
def orders(node: LocalNode, store: Path) -> Archive:
    return Archive(write(node.bootstrap_servers, "orders"), store)


def expected(history: History, isolation: str) -> dict[int, tuple[bytes, bytes, int]]:
    records = history.all if isolation == "read_uncommitted" else history.committed
    return dict(sorted(records.items()))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("max_bytes", ["128m", "300k"])
def test_segments_and_brokers_together_have_every_record_once(
    orders: Archive, isolation: str, max_bytes: str
) -> None:
    options = {"kafka.isolation.level": isolation, "maxBytesPerPartition": max_bytes}
    partitions = orders.partitions(**options)
    assert {type(each) for each in partitions} == {SegmentPartition, RangePartition}
    assert orders.read(partitions, **options) == expected(orders.history, isolation)


def test_brokers_read_only_what_is_not_in_the_store(orders: Archive) -> None:
    partitions = orders.partitions()
    ends = [each.value.offsets.end for each in partitions if isinstance(each, SegmentPartition)]
    starts = [each.value.start for each in partitions if isinstance(each, RangePartition)]
    assert max(ends) == min(starts) >= orders.history.local_start


def test_small_requests_read_the_same(orders: Archive) -> None:
    options = {"kafka.isolation.level": "read_committed", "kafka.max.partition.fetch.bytes": "1000"}
    assert orders.rows(**options) == expected(orders.history, "read_committed")


@pytest.mark.parametrize(
    "limits",
    [
        {"startingOffsets": {"orders": {"0": 1}}, "endingOffsets": {"orders": {"0": 3}}},
        {"startingOffsets": {"orders": {"0": 1500}}, "endingOffsets": {"orders": {"0": -1}}},
        {"startingTimestamp": START_MS + 700_500, "endingTimestamp": START_MS + 2_900_000},
        {"endingOffsets": {"orders": {"0": 2071}}},
    ],
)
def test_offsets_and_times_limit_both_sides(orders: Archive, limits: dict[str, Any]) -> None:
    given = {name: json.dumps(each) if isinstance(each, dict) else each for name, each in limits.items()}
    given["kafka.isolation.level"] = "read_committed"
    from_brokers = orders.rows(**given, readFrom="brokers")
    assert from_brokers
    assert orders.rows(**given) == from_brokers


def test_auto_takes_segments_too(orders: Archive) -> None:
    kinds = {type(each) for each in orders.partitions(readFrom="auto")}
    assert kinds == {SegmentPartition, RangePartition}
    assert orders.rows(readFrom="auto") == expected(orders.history, "read_committed")


def test_auto_without_the_store_reads_from_brokers(orders: Archive, tmp_path: Path) -> None:
    options = {"readFrom": "auto", "rsm.config.storage.url": f"file://{tmp_path}"}
    assert {type(each) for each in orders.partitions(**options)} == {RangePartition}


def test_the_wrong_store_is_an_error(orders: Archive, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"storage\.url"):
        orders.partitions(**{"rsm.config.storage.url": f"file://{tmp_path}"})


def test_a_tier_needs_its_store(orders: Archive) -> None:
    given = {"kafka.bootstrap.servers": orders.history.bootstrap, "subscribe": "orders", "readFrom": "tier"}
    reader = batch_reader(given, spark_schema(COLUMNS[:-1]))
    with pytest.raises(ValueError, match=r"set the option rsm\.config\.storage\.url"):
        reader.partitions()


@pytest.mark.parametrize(
    "secret",
    ["storage.aws.secret.access.key", "storage.azure.account.key", "storage.gcs.credentials.json"],
)
def test_secrets_are_refused_and_not_repeated(orders: Archive, secret: str) -> None:
    with pytest.raises(ValueError, match="is refused") as refused:
        orders.reader(**{f"rsm.config.{secret}": "s3cr3t"})
    assert "s3cr3t" not in str(refused.value)


def test_what_is_copied_after_the_plan_is_read_once(node: LocalNode, store: Path) -> None:
    archive = Archive(write(node.bootstrap_servers, "growing"), store)
    wanted = expected(archive.history, "read_committed")
    options = {"kafka.isolation.level": "read_committed"}
    partitions = archive.partitions(**options)
    archive.history.write_plain(3 * MIB)
    wait_until_tiered(node.bootstrap_servers, "growing")
    assert archive.read(partitions, **options) == wanted


def test_a_segment_that_is_gone_is_read_from_brokers_or_reported(node: LocalNode, store: Path) -> None:
    archive = Archive(write(node.bootstrap_servers, "leaving"), store)
    wanted = expected(archive.history, "read_committed")
    options = {"kafka.isolation.level": "read_committed", "maxBytesPerPartition": "400k"}
    partitions = archive.partitions(**options)
    # As if each segment had been deleted, and another upload had taken its place: brokers still have all.
    gone = [
        SegmentPartition(
            segments.SegmentRange(
                each.value.offsets,
                tuple(part._replace(segment=_with_other_id(part.segment)) for part in each.value.parts),
                each.value.aborted,
                each.value.storage,
            )
        )
        if isinstance(each, SegmentPartition)
        else each
        for each in partitions
    ]
    assert archive.read(gone, **options) == wanted
    # Now some are deleted indeed.
    delete_records(node.bootstrap_servers, "leaving", 1500)
    with pytest.raises(DataLoss, match="no longer in the log"):
        archive.read(gone, **options)
    some = archive.read(gone, **options, failOnDataLoss="false")
    assert some == {offset: record for offset, record in wanted.items() if offset >= 1500}


class HalfDeleted:
    """A store in which a deletion, under way or failed in the middle, has left the records of segments."""

    def __init__(self, storage: Any) -> None:
        self.fetch_log_segment = storage.fetch_log_segment

    async def fetch_index(self, segment: Any, index_type: Any) -> bytes:
        raise RemoteResourceNotFound(f"{segment.id} has no {index_type.name} index")


def test_brokers_say_what_was_aborted_where_the_index_of_a_segment_is_gone(
    orders: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"kafka.isolation.level": "read_committed"}
    find = segments._storage
    with monkeypatch.context() as patch:
        patch.setattr(segments, "_storage", lambda settings: HalfDeleted(find(settings)))
        partitions = orders.partitions(**options)
    assert any(isinstance(each, SegmentPartition) for each in partitions)
    assert orders.read(partitions, **options) == expected(orders.history, "read_committed")


@pytest.mark.parametrize("what", ["expired", "deleted"])
def test_segments_of_records_that_go_while_they_are_planned_are_not_taken(
    node: LocalNode, store: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    archive = Archive(write(node.bootstrap_servers, what), store)
    options = {"kafka.isolation.level": "read_committed", "failOnDataLoss": "false"}
    find = segments._find_covered

    def find_and_delete(*args: Any) -> Any:
        found = find(*args)
        assert found
        if what == "expired":
            delete_records(node.bootstrap_servers, what, found[0].offsets.end)
        else:
            delete_topic(node.bootstrap_servers, what)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(segments, "_find_covered", find_and_delete)
        # Its objects may stay for a while: which of its records were aborted is known to no one any more.
        patch.setattr(ObjectStorageManager, "fetch_log_segment", _one_byte)
        partitions = archive.partitions(**options)
    assert [type(each) for each in partitions] == [RangePartition]


async def _one_byte(*_: Any) -> bytes:
    return b"x"


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(60)


def _with_other_id(segment: Any) -> Any:
    from dataclasses import replace

    return replace(segment, id=segment.id._replace(id=bytes(16)))


@pytest.mark.slow
def test_segments_are_read_from_s3_with_credentials_that_are_in_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        program()
    except NoS3Server as error:
        pytest.skip(f"{S3_SKIP}{error}")
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with s3_server(tmp_path) as url:
        place = {
            "rsm.config.storage.url": f"s3://{BUCKET}/tier",
            "rsm.config.storage.s3.endpoint.url": url,
            "rsm.config.storage.s3.region": "us-east-1",
        }
        settings = tiered_settings(tmp_path)
        del settings["rsm.config.storage.root"]
        with LocalNode(settings | place) as node:
            archive = Archive(write(node.bootstrap_servers, "orders"), tmp_path)
            options = {**place, "kafka.isolation.level": "read_committed", "maxBytesPerPartition": "700k"}
            partitions = archive.partitions(**options)
            assert any(isinstance(each, SegmentPartition) for each in partitions)
            assert SECRET_KEY.encode() not in pickle.dumps(partitions)
            assert archive.read(partitions, **options) == expected(archive.history, "read_committed")
