"""Tables of the latest value by key: the same rows as a compacted topic has, whatever happens on the way."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pytest

from ottla.tables.errors import MissedDeletes, OffsetsMoved, TableError
from ottla.tables.latest import NO_KEY
from ottla.tables.maintenance import check_rows, compact, expire
from ottla.tables.offsets import committed_read_times
from tests.support.visible_records import build_batches_from_arrow
from tests.tables.conftest import NOW_MS, Warehouse

Pair = tuple[bytes | None, bytes | None]
DAY_MS = 86_400_000


def keyed(pairs: Sequence[Pair], start: int = 0) -> bytes:
    keys = pa.array([key for key, _ in pairs], pa.binary())
    data = pa.RecordBatch.from_arrays(
        [keys, pa.array([value for _, value in pairs], pa.binary())], ["key", "value"]
    )
    found = b""
    for rows, batch in build_batches_from_arrow(data, default_timestamp=NOW_MS):
        struct.pack_into(">q", batch, 0, start)
        start += rows
        found += bytes(batch)
    return found


def commit(warehouse: Warehouse, pairs: Sequence[Pair], partition: int = 0, **settings):
    table = warehouse.table(mode="latest", **settings)
    start = table.open(NOW_MS).get(partition, 0)
    table.append(partition, start, keyed(pairs, start))
    return table.commit()


def latest(warehouse: Warehouse) -> dict[tuple[int, bytes | None], bytes | None]:
    rows = warehouse.rows()
    found = {(row["partition"], row["key"]): row["value"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def expected(pairs: Sequence[Pair], partition: int = 0) -> dict[tuple[int, bytes | None], bytes | None]:
    last = dict(pairs)
    return {(partition, key): value for key, value in last.items() if value is not None}


def test_a_key_has_its_latest_value_until_a_tombstone_deletes_it(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    assert latest(warehouse) == {(0, b"a"): b"2", (0, b"b"): b"1"}
    commit(warehouse, [(b"b", None), (b"c", b"1"), (b"nothing", None)])
    assert latest(warehouse) == {(0, b"a"): b"2", (0, b"c"): b"1"}
    commit(warehouse, [(b"a", None), (b"a", b"3"), (b"c", b"2"), (b"c", None)])
    assert [(row["key"], row["offset"]) for row in warehouse.rows()] == [(b"a", 7)]
    result = commit(warehouse, [(b"a", None)])
    assert result.offsets == {0: 11}
    assert warehouse.rows() == []


def test_partitions_have_keys_of_their_own(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1")])
    commit(warehouse, [(b"a", b"2")], partition=1)
    commit(warehouse, [(b"a", None)])
    assert latest(warehouse) == {(1, b"a"): b"2"}


@pytest.mark.slow
def test_the_table_is_what_random_updates_leave(warehouse: Warehouse) -> None:
    chance = random.Random(1)
    keys = [
        bytes([chance.randrange(256) for _ in range(chance.choice([1, 15, 16, 17, 40]))]) for _ in range(60)
    ]
    keys += [b"\xff" * 16, b"\xff" * 17, b"\xff" * 40, b""]
    history: dict[int, list[Pair]] = {0: [], 3: []}
    for round in range(12):
        for partition, pairs in history.items():
            more = [
                (chance.choice(keys), None if chance.random() < 0.3 else f"{round}-{n}".encode())
                for n in range(20)
            ]
            commit(warehouse, more, partition)
            pairs += more
        if round % 4 == 3:
            compact(warehouse.catalog.load_table(("topics", "orders")), 1_000_000, 2)
    assert latest(warehouse) == expected(history[0], 0) | expected(history[3], 3)
    with duckdb.connect() as connection:
        connection.register("orders", warehouse.catalog.load_table(("topics", "orders")).scan().to_arrow())
        found = connection.sql("select count(*), count(distinct (partition, key)) from orders").fetchall()
    assert found == [(len(latest(warehouse)),) * 2]


class Killed(BaseException):
    """The process ends here: nothing of it is cleaned up."""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["data files written", "manifests written", "committed"])
def test_a_commit_that_ends_anywhere_leaves_the_latest_values(warehouse: Warehouse, step: str) -> None:
    pairs: list[Pair] = [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
    commit(warehouse, pairs)
    more: list[Pair] = [(b"a", b"2"), (b"b", None), (b"d", b"1")]

    def kill(reached: str) -> None:
        if reached == step:
            raise Killed

    table = warehouse.table(mode="latest", on_step=kill)
    start = table.open(NOW_MS)[0]
    table.append(0, start, keyed(more, start))
    with pytest.raises(Killed):
        table.commit()
    offset = warehouse.table(mode="latest").open()[0]
    assert offset == (6 if step == "committed" else 3)
    assert latest(warehouse) == expected(pairs + more if step == "committed" else pairs)
    if offset == 3:
        commit(warehouse, more)
    commit(warehouse, [(b"d", b"2")])
    assert latest(warehouse) == expected([*pairs, *more, (b"d", b"2")])


@pytest.mark.slow
def test_a_leader_that_has_moved_cannot_bring_old_values_back(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1")])
    old = warehouse.table(mode="latest")
    old.open(NOW_MS)
    old.append(0, 1, keyed([(b"a", b"2")], 1))
    commit(warehouse, [(b"a", b"2"), (b"a", b"3")])
    with pytest.raises(OffsetsMoved):
        old.commit()
    assert latest(warehouse) == {(0, b"a"): b"3"}


def test_leaders_of_different_partitions_do_not_disturb_each_other(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1")])
    commit(warehouse, [(b"a", b"1")], partition=1)
    brokers = [warehouse.table(mode="latest") for _ in range(2)]
    for index, broker in enumerate(brokers):
        broker.open(NOW_MS)
        broker.append(index, 1, keyed([(b"a", f"of {index}".encode())], 1))
    for broker in brokers:
        broker.commit()
    assert latest(warehouse) == {(0, b"a"): b"of 0", (1, b"a"): b"of 1"}


@pytest.mark.slow
def test_a_merge_of_files_between_a_read_and_its_commit_is_noticed(warehouse: Warehouse) -> None:
    for n in range(3):
        commit(warehouse, [(f"{n}".encode(), b"1")])
    table = warehouse.table(mode="latest")
    table.open(NOW_MS)
    table.append(0, 3, keyed([(b"1", b"2")], 3))
    assert compact(warehouse.catalog.load_table(("topics", "orders")), 1_000_000, 2) == 3
    with pytest.raises(OffsetsMoved, match="rewritten"):
        table.commit()
    commit(warehouse, [(b"1", b"2")])
    assert latest(warehouse) == {(0, b"0"): b"1", (0, b"1"): b"2", (0, b"2"): b"1"}


def test_records_without_a_key_are_there_with_a_word_on_it(warehouse: Warehouse) -> None:
    commit(warehouse, [(None, b"x"), (b"a", b"1"), (None, b"y")])
    commit(warehouse, [(b"a", b"2"), (None, None)])
    rows = warehouse.rows()
    assert [(row["key"], row["value"], row["_error"]) for row in rows] == [
        (None, b"x", NO_KEY),
        (None, b"y", NO_KEY),
        (b"a", b"2", None),
        (None, None, NO_KEY),
    ]


@pytest.mark.slow
def test_latest_values_have_typed_columns_that_may_change(warehouse: Warehouse) -> None:
    fields: dict[str, object] = {"id": {"type": "integer"}, "tags": {"type": "array"}}
    commit(warehouse, [(b"a", b'{"id":1}'), (b"b", b'{"id":2,"tags":["x"]}'), (b"c", b"no JSON")])
    text = json.dumps({"type": "object", "properties": fields})
    commit(warehouse, [(b"a", b'{"id":3}'), (b"d", b"{")], schema_type="json", schema=text)
    fields["who"] = {"type": "object", "properties": {"name": {"type": "string"}}}
    wider = json.dumps({"type": "object", "properties": fields})
    more = [(b"b", b'{"id":4,"who":{"name":"n"}}')]
    commit(warehouse, more, schema_type="json", schema=wider)
    rows = {row["key"]: row for row in warehouse.rows()}
    assert {key: row["id"] for key, row in rows.items()} == {b"a": 3, b"b": 4, b"c": None, b"d": None}
    assert rows[b"b"]["who"] == {"name": "n"}
    assert "no JSON" in rows[b"d"]["_error"]
    assert rows[b"c"]["_error"] is None


def test_files_whose_keys_have_not_changed_stay(warehouse: Warehouse) -> None:
    commit(warehouse, [(f"a{n}".encode(), b"1") for n in range(10)])
    commit(warehouse, [(f"b{n}".encode(), b"1") for n in range(10)])
    table = warehouse.catalog.load_table(("topics", "orders"))
    before = {task.file.file_path for task in table.scan().plan_files()}
    commit(warehouse, [(b"b3", b"2"), (b"c", b"1")])
    after = {task.file.file_path for task in table.refresh().scan().plan_files()}
    assert (len(before), len(after), len(before & after)) == (2, 2, 1)


def test_a_round_is_full_when_its_keys_take_too_much_memory(warehouse: Warehouse, monkeypatch) -> None:
    monkeypatch.setattr("ottla.tables.topic_table.MAX_ROUND_BYTES", 100_000)
    table = warehouse.table(mode="latest")
    table.open(NOW_MS)
    for start in range(0, 200, 20):  # the same keys again and again take no more
        table.append(0, start, keyed([(f"{n}".encode(), bytes(1000)) for n in range(20)], start))
        assert not table.is_full
    table.append(0, 200, keyed([(f"{n}".encode(), bytes(1000)) for n in range(100)], 200))
    assert table.is_full
    table.commit()
    assert not table.is_full
    assert len(latest(warehouse)) == 100


def test_a_round_rewrites_the_files_of_so_many_partitions(warehouse: Warehouse, monkeypatch) -> None:
    monkeypatch.setattr("ottla.tables.topic_table.MAX_ROUND_PARTITIONS", 3)
    table = warehouse.table(mode="latest")
    table.open(NOW_MS)
    for partition in range(3):
        assert not table.is_full
        table.append(partition, 0, keyed([(b"a", b"1")]))
    assert table.is_full


def test_a_partition_of_which_nothing_is_left_is_emptied(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1"), (b"b", b"1")])
    table = warehouse.table(mode="latest")
    table.open(NOW_MS)
    table.append(0, 5, keyed([(b"b", None)], 5), is_rebuilt=True)
    table.commit()
    assert warehouse.rows() == []
    assert table.open() == {0: 6}


def test_a_partition_whose_tombstones_may_have_gone_is_built_again(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1"), (b"b", b"1")])
    commit(warehouse, [(b"a", b"1")], partition=1)
    # The tombstone of `a` was at offset 2, and the cleaner has removed it.
    left = keyed([(b"c", b"1")], 3)
    table = warehouse.table(mode="latest")
    table.open(NOW_MS + DAY_MS - 1)
    assert table.append(0, 2, left) == 4, "a tombstone stays for a day"
    table.open(NOW_MS + DAY_MS)
    table.append(0, 2, keyed([(b"e", b"1")], 2))
    with pytest.raises(MissedDeletes):
        table.append(0, 3, keyed([(b"f", b"1")], 5))
    assert table.append(0, 1, keyed([(b"b", b"1")], 1), is_rebuilt=True) == 2
    assert table.append(0, 2, left, is_rebuilt=True) == 4
    table.commit()
    assert latest(warehouse) == {(0, b"b"): b"1", (0, b"c"): b"1", (1, b"a"): b"1"}
    assert warehouse.table(mode="latest").open() == {0: 4, 1: 1}


def test_a_round_that_has_not_got_to_the_end_does_not_make_the_table_younger(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1"), (b"b", b"1")])
    table = warehouse.table(mode="latest")
    # The tombstone of `a`, at offset 3, was written and cleaned soon after; this round ends before it.
    table.open(NOW_MS + DAY_MS - 1_000)
    table.append(0, 2, keyed([(b"c", b"1")], 2))
    table.commit(complete=[])
    # By now the tombstone has gone.
    table = warehouse.table(mode="latest")
    table.open(NOW_MS + DAY_MS + 1_000)
    with pytest.raises(MissedDeletes):
        table.append(0, 3, keyed([(b"d", b"1")], 4))
    log = keyed([(b"b", b"1"), (b"c", b"1")], 1), keyed([(b"d", b"1")], 4)
    table.append(0, 1, log[0], is_rebuilt=True)
    table.append(0, 3, log[1], is_rebuilt=True)
    table.commit(complete=[0])
    assert latest(warehouse) == {(0, b"b"): b"1", (0, b"c"): b"1", (0, b"d"): b"1"}
    table.open(NOW_MS + DAY_MS + 2_000)
    assert table.append(0, 5, keyed([(b"d", b"2")], 6)) == 7


def test_tombstones_that_go_while_a_round_reads_are_missed(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1"), (b"b", b"1")])
    table = warehouse.table(mode="latest")
    table.open(NOW_MS + DAY_MS - 1_000)
    with pytest.raises(MissedDeletes):
        table.append(0, 2, keyed([(b"c", b"1")], 3), now_ms=NOW_MS + DAY_MS + 1_000)


@pytest.mark.slow
def test_a_build_in_many_rounds_ends_also_if_tombstones_go_at_once(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1"), (b"b", b"1")])
    log = [keyed([(f"{n}".encode(), b"1")], 2 * n + 3) for n in range(4)]
    position, _is_rebuilt, rebuilds = 2, False, 0
    for round, batch in enumerate(log):
        table = warehouse.table(mode="latest", delete_retention_ms=0)
        table.open(NOW_MS + round)
        try:
            position = table.append(0, position, batch)
        except MissedDeletes:
            rebuilds += 1
            position = table.append(0, 3, batch, is_rebuilt=True)
        table.commit(complete=[0] if round == 3 else [])
    assert rebuilds == 1
    assert latest(warehouse) == {(0, f"{n}".encode()): b"1" for n in range(4)}
    # It was left alone in the middle for so long that tombstones have gone for sure.
    table = warehouse.table(mode="latest", delete_retention_ms=0)
    table.open(NOW_MS)
    table.append(0, 3, log[0], is_rebuilt=True)
    table.commit(complete=[])
    table.open(NOW_MS + DAY_MS)
    with pytest.raises(MissedDeletes):
        table.append(0, 4, log[1])


def test_merged_files_and_expired_snapshots_leave_the_times_at_which_it_was_read(
    warehouse: Warehouse,
) -> None:
    commit(warehouse, [(b"a", b"1")])
    commit(warehouse, [(b"b", b"1")])
    table = warehouse.catalog.load_table(("topics", "orders"))
    before = committed_read_times(table.metadata)
    later = warehouse.table(mode="latest")
    later.open(NOW_MS + DAY_MS)
    later.append(0, 2, keyed([(b"c", b"1")], 2))
    rolled_back = table.metadata.current_snapshot_id
    later.commit()
    table.refresh().manage_snapshots().set_current_snapshot(snapshot_id=rolled_back).commit()
    assert compact(table.refresh(), 1_000_000, 2) == 2
    assert expire(table, 0, 1, NOW_MS * 2) > 0
    assert committed_read_times(table.refresh().metadata) == before == {0: NOW_MS}


def test_a_table_keeps_its_mode(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1")])
    with pytest.raises(TableError, match=r"table\.mode=latest and the topic table\.mode=append"):
        warehouse.table().open()


def test_a_check_finds_keys_that_are_there_twice(warehouse: Warehouse) -> None:
    commit(warehouse, [(b"a", b"1"), (None, b"1"), (None, b"2")])
    table = warehouse.catalog.load_table(("topics", "orders"))
    assert check_rows(table).duplicates == 0
    rows = table.scan().to_arrow()
    moved = rows.set_column(1, "offset", pa.array([7, 8, 9], pa.int64()))
    table.append(moved.cast(table.schema().as_arrow()))
    assert check_rows(table).duplicates == 1
