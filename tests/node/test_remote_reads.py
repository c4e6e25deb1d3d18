"""Reads of remote storage are prepared in one way for a fetch, a share group and a table."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.replication.partition_harness import TP

import ottla.node
from ottla.node.fetch.remote_reads import RemoteRead, prepare_remote_read
from ottla.protocol.errors import ErrorCode, KafkaError

PARTITION: Any = SimpleNamespace(
    topic_partition=TP,
    topic_id_partition="id",
    log=SimpleNamespace(last_stable_offset=30, high_watermark=40),
)


class Reader:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def read(self, *args: Any, **options: Any) -> None:
        self.asked.append((*args[2:], *options.values()))


def broker(reader: Reader | None) -> Any:
    return SimpleNamespace(
        config=SimpleNamespace(number=lambda name: {"remote.fetch.max.wait.ms": 500}[name]),
        replication=SimpleNamespace(remote_log_reader=reader),
        runtime=SimpleNamespace(clock=None),
    )


def read(broker: Any, *, committed: bool, max_wait_ms: int | None = None) -> RemoteRead:
    return prepare_remote_read(
        broker, PARTITION, 7, 1000, committed=committed, min_one_batch=True, max_wait_ms=max_wait_ms
    )


@pytest.mark.parametrize(("committed", "end"), [(True, 30), (False, 40)])
async def test_a_read_ends_where_its_isolation_level_says(committed: bool, end: int) -> None:
    reader = Reader()
    await read(broker(reader), committed=committed)._read()
    assert reader.asked == [(7, 1000, end, True, committed)]


def test_a_read_waits_as_the_broker_says_unless_its_caller_says_otherwise() -> None:
    assert read(broker(Reader()), committed=True)._max_wait_ms == 500
    assert read(broker(Reader()), committed=True, max_wait_ms=9)._max_wait_ms == 9


def test_a_broker_without_remote_storage_says_which_setting_is_missing() -> None:
    with pytest.raises(KafkaError, match=r"offset 7 is in remote storage.*remote\.log\.storage") as found:
        read(broker(None), committed=True)
    assert found.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_no_other_place_makes_such_a_read() -> None:
    made = [
        path.name
        for path in sorted(Path(ottla.node.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RemoteRead"
    ]
    assert made == ["remote_reads.py"]
