"""A topic to a table and back, in one call each."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import duckdb
import pandas as pd  # type: ignore[import-untyped, unused-ignore]
import polars as pl
import pyarrow as pa
import pytest

import ottla
from ottla.blocking import Consumer, Producer, read_topic, write_topic
from ottla.client.admin import Admin
from ottla.client.consumer import ARROW_COLUMNS
from ottla.protocol.errors import KafkaError

ROWS = pa.table({"key": ["a", "b", "c", "d"], "value": ["1", "2", "3", "4"], "partition": [0, 0, 1, 2]})


def values(table: pa.Table) -> list[bytes]:
    return sorted(table["value"].to_pylist())


@pytest.mark.witness
async def test_a_topic_is_read_to_its_end(servers: str, topic: str) -> None:
    assert await ottla.write_topic(servers, topic, ROWS) == 4
    read = await ottla.read_topic(servers, topic)
    assert tuple(read.column_names) == ARROW_COLUMNS
    assert values(read) == [b"1", b"2", b"3", b"4"]
    assert (await ottla.read_topic(servers, topic, columns=["value"])).column_names == ["value"]
    assert values(await ottla.read_topic(servers, topic, partitions=[1, 2])) == [b"3", b"4"]


async def test_an_empty_topic_is_an_empty_table(servers: str, topic: str) -> None:
    read = await ottla.read_topic(servers, topic, columns=["offset", "value"])
    assert (read.num_rows, read.column_names) == (0, ["offset", "value"])


@pytest.mark.witness
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
async def test_markers_of_transactions_at_the_end_are_no_rows(
    servers: str, topic: str, isolation_level: str
) -> None:
    """A loop that counts rows up to the end offset would never end."""
    assert await ottla.write_topic(servers, topic, ROWS, transactional_id=topic) == 4
    async with ottla.Producer(servers, transactional_id=topic) as producer:
        producer.transactions.begin()
        await producer.send(topic, b"aborted", partition=1)
        await producer.transactions.abort()
    read = await ottla.read_topic(servers, topic, isolation_level=isolation_level)
    aborted = [] if isolation_level == "read_committed" else [b"aborted"]
    assert values(read) == [b"1", b"2", b"3", b"4", *aborted]


async def test_ranges_by_offset(servers: str, topic: str) -> None:
    rows = pa.table({"value": [str(n) for n in range(20)], "partition": [0] * 10 + [1] * 10})
    await ottla.write_topic(servers, topic, rows)

    async def offsets(**where: object) -> list[tuple[int, int]]:
        read = await ottla.read_topic(servers, topic, columns=["offset", "partition"], **where)
        return sorted(zip(read["partition"].to_pylist(), read["offset"].to_pylist(), strict=True))

    assert await offsets(start_offsets=8) == [(0, 8), (0, 9), (1, 8), (1, 9)]
    assert await offsets(end_offsets={0: 1, 1: 2}) == [(0, 0), (1, 0), (1, 1)]
    assert await offsets(start_offsets={0: 9}, end_offsets={1: 1}) == [(0, 9), (1, 0)]
    assert await offsets(start_offsets=100) == []
    assert len(await offsets(end_offsets=100)) == 20


async def test_ranges_by_time(servers: str, topic: str) -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    times = [noon + timedelta(minutes=n) for n in range(10)]
    rows = pa.table({"value": [str(n) for n in range(10)], "partition": [0] * 10, "timestamp": times})
    await ottla.write_topic(servers, topic, rows)
    read = await ottla.read_topic(servers, topic, start_time=times[3], end_time=times[5])
    assert values(read) == [b"3", b"4"]
    read = await ottla.read_topic(servers, topic, start_time=int(times[8].timestamp() * 1000) + 1)
    assert values(read) == [b"9"]
    assert (await ottla.read_topic(servers, topic, start_time=noon + timedelta(days=1))).num_rows == 0


async def test_what_arrives_meanwhile_is_not_read(servers: str, topic: str) -> None:
    await ottla.write_topic(servers, topic, ROWS)
    async with ottla.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, number) for number in range(3)])
        tables = consumer.read_arrow(columns=["value"])
        rows = [await anext(tables)]
        await ottla.write_topic(servers, topic, ROWS)
        rows += [table async for table in tables]
        assert values(pa.concat_tables(rows)) == [b"1", b"2", b"3", b"4"]
        assert consumer.paused() == []
        positions = {p.partition: at.offset for p, at in consumer.positions().items()}
        assert positions == {0: 2, 1: 1, 2: 1}
        rest = [table async for table in consumer.read_arrow(columns=["value"])]
        assert values(pa.concat_tables(rest)) == [b"1", b"2", b"3", b"4"]


async def test_what_is_wrong_is_said(servers: str, topic: str) -> None:
    with pytest.raises(KafkaError, match="there-is-no-such-topic"):
        await ottla.read_topic(servers, "there-is-no-such-topic")
    with pytest.raises(ValueError, match="exclude"):
        await ottla.read_topic(servers, topic, start_offsets=1, start_time=1)
    with pytest.raises(ValueError, match="none of the number 7"):
        await ottla.read_topic(servers, topic, partitions=[7])
    with pytest.raises(ValueError, match="partition 9"):
        await ottla.read_topic(servers, topic, start_offsets={9: 1})
    with pytest.raises(TypeError, match="not list"):
        await ottla.write_topic(servers, topic, [1, 2])
    async with ottla.Consumer(servers, group_id=topic) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(RuntimeError, match="subscribed"):
            await anext(consumer.read_arrow())


async def test_rows_that_are_refused_are_counted(servers: str, admin: Admin, fresh_name: str) -> None:
    await admin.topics.create(fresh_name, partitions=2, configs={"max.message.bytes": "1000"})
    rows = pa.table({"value": ["small", "x" * 5_000], "partition": [0, 1]})
    with pytest.raises(KafkaError, match=f"{fresh_name}-1") as raised:
        await ottla.write_topic(servers, fresh_name, rows)
    assert raised.value.__notes__ == ["1 of 2 rows were delivered"]
    assert values(await ottla.read_topic(servers, fresh_name)) == [b"small"]


def test_there_and_back_with_pandas_polars_and_duckdb(
    ottla_for_clients: ottla.LocalNode, fresh_name: str
) -> None:
    servers = ottla_for_clients.bootstrap_servers
    frames = [
        pd.DataFrame({"key": ["a", "b"], "value": ["1", "2"]}, index=[7, 3]),
        pl.DataFrame({"key": ["a", "b"], "value": [b"1", b"2"]}),
        duckdb.sql("select 'a' as key, '1' as value union all select 'b', '2'"),
        pa.table({"key": ["a", "b"], "value": ["1", "2"]}).to_batches()[0],
    ]
    for number, frame in enumerate(frames):
        topic = f"{fresh_name}-{number}"
        assert write_topic(servers, topic, frame) == 2
        read = read_topic(servers, topic)
        assert sorted(read.to_pandas()["value"]) == [b"1", b"2"]
        assert pl.DataFrame(read)["key"].sort().to_list() == [b"a", b"b"]
        assert duckdb.sql("select count(*) from read").fetchall() == [(2,)]
        # With all columns: those that say where a record was are no part of the copy.
        for there in (read.to_pandas(), pl.DataFrame(read), duckdb.sql("from read")):
            assert write_topic(servers, f"{topic}-copy", there) == 2
        assert values(read_topic(servers, f"{topic}-copy")) == [b"1"] * 3 + [b"2"] * 3


def test_headers_go_there_and_back(ottla_for_clients: ottla.LocalNode, fresh_name: str) -> None:
    servers = ottla_for_clients.bootstrap_servers
    with Producer(servers) as producer:
        producer.send(fresh_name, b"x", headers={"trace": b"1", "empty": None})
    table = read_topic(servers, fresh_name)
    for frame in (table, table.to_pandas(), pl.DataFrame(table)):
        write_topic(servers, f"{fresh_name}-copy", frame)
    copies = read_topic(servers, f"{fresh_name}-copy", columns=["headers"])["headers"].to_pylist()
    assert copies == [[{"key": "trace", "value": b"1"}, {"key": "empty", "value": None}]] * 3


def test_in_a_notebook_where_a_loop_runs_already(ottla_for_clients: ottla.LocalNode, fresh_name: str) -> None:
    servers = ottla_for_clients.bootstrap_servers

    async def cell() -> int:
        write_topic(servers, fresh_name, ROWS)
        with Producer(servers) as producer:
            producer.send(fresh_name, b"5", partition=0)
        with Consumer(servers, auto_offset_reset="earliest") as consumer:
            consumer.assign(consumer.partitions_for(fresh_name))
            rows = sum(table.num_rows for table in consumer.read_arrow())
            assert next(consumer.read_arrow(), None) is None
        return (
            rows
            + read_topic(servers, fresh_name).num_rows
            + (await ottla.read_topic(servers, fresh_name)).num_rows
        )

    assert asyncio.run(cell()) == 15
