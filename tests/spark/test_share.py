"""Tasks of Spark as members of a share group: each record is given to the function at least once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ottla.client import blocking
from ottla.client.admin.configs import ResourceType
from ottla.client.blocking import Admin, Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.spark.share import _work, foreach_shared
from tests.spark.conftest import SparkNode

COUNT = 200
# Longer than a broker may pause: tasks end when they have accepted their part.
IDLE_MS = 30_000


@pytest.fixture
def topic(admin: Admin, producer: Producer, new_topic: Callable[..., str]) -> str:
    """A topic with records, and a group of its name that begins with the first."""
    name = new_topic()
    admin.configs.alter(ResourceType.GROUP, name, set={"share.auto.offset.reset": "earliest"})
    producer.send_many(name, [b"%d" % number for number in range(COUNT)])
    return name


def lag(admin: Admin, group: str) -> int:
    (found,) = admin.groups.share_offsets(group).values()
    return int(found.lag)


def test_tasks_share_the_records_and_accept_them(
    spark: SparkSession, node: SparkNode, admin: Admin, topic: str, tmp_path: Path
) -> None:
    folder = str(tmp_path)

    def write(table: pa.Table) -> None:
        offsets = table.column("offset").to_pylist()
        Path(folder, f"{offsets[0]}").write_text("\n".join(map(str, offsets)))

    accepted = foreach_shared(
        spark,
        write,
        topic=topic,
        group=topic,
        tasks=2,
        idle_ms=IDLE_MS,
        max_records=COUNT // 2,
        options={
            "bootstrap.servers": node.bootstrap_servers,
            "share.acquire.mode": "record_limit",
            "max.poll.records": 20,
        },
    )
    assert len(accepted) == 2
    assert sum(accepted) == COUNT
    written = [int(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert sorted(written) == list(range(COUNT))
    assert lag(admin, topic) == 0


def test_a_function_that_fails_gets_its_records_again(
    spark: SparkSession, node: SparkNode, admin: Admin, topic: str, tmp_path: Path
) -> None:
    fuse = str(tmp_path / "fuse")
    Path(fuse).touch()

    def write(table: pa.Table) -> None:
        if Path(fuse).exists():
            Path(fuse).unlink()
            raise OSError("once")

    accepted = foreach_shared(
        spark,
        write,
        topic=topic,
        group=topic,
        idle_ms=IDLE_MS,
        max_records=COUNT,
        options={"bootstrap.servers": node.bootstrap_servers},
    )
    assert accepted == [COUNT]
    assert lag(admin, topic) == 0


class _ExpiredConsumer:
    """A consumer whose locks have expired by the time at which a function ends."""

    def __class_getitem__(cls, _: object) -> type[_ExpiredConsumer]:
        return cls

    def __init__(self, _: object) -> None: ...

    def __enter__(self) -> _ExpiredConsumer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def subscribe(self, _: object) -> None: ...

    def assignment(self) -> list[TopicPartition]:
        return []

    def poll_arrow(self, **_: object) -> pa.Table:
        return pa.table({"value": [b"a"]})

    def acknowledge_arrow(self, *_: object) -> None:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "the lock has expired")


def test_a_function_that_fails_late_is_the_error_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: pa.Table) -> None:
        raise LookupError("no such customer")

    monkeypatch.setattr(blocking, "ShareConsumer", _ExpiredConsumer)
    with pytest.raises(LookupError, match="no such customer"):
        _work({}, ["letters"], fail, 1_000, None)


def test_a_topic_that_does_not_exist_is_an_error_and_is_not_created(
    spark: SparkSession, node: SparkNode, admin: Admin
) -> None:
    with pytest.raises(KafkaError, match="Topic 'nosuch-letters' does not exist") as failure:
        foreach_shared(
            spark,
            print,
            topic="nosuch-letters",
            group="mailers",
            options={"bootstrap.servers": node.bootstrap_servers},
        )
    assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "nosuch-letters" not in [each.name for each in admin.topics.list()]


def test_a_new_group_that_got_nothing_logs_where_it_begins(
    spark: SparkSession,
    node: SparkNode,
    admin: Admin,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def read(group: str) -> list[int]:
        return foreach_shared(
            spark,
            print,
            topic=topic,
            group=group,
            idle_ms=1_000,
            options={"bootstrap.servers": node.bootstrap_servers, "max.poll.records": 10},
        )

    late = f"{topic}-late"
    assert read(late) == [0]
    assert f"--group {late} --set share.auto.offset.reset=earliest" in caplog.text
    caplog.clear()
    admin.groups.alter_share_offsets(late, {TopicPartition(topic, 0): COUNT})
    assert read(late) == [0]
    assert "share.auto.offset.reset" not in caplog.text
