"""A table with one row for each key: each batch is in it once, whatever is killed and whatever comes late."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ottla.tables.catalog import open_catalog
from ottla.tables.errors import TableError
from ottla.tables.keyed_table import (
    DELETED,
    END_AT,
    MAX_SMALL_FILES,
    SEQUENCE,
    START_AT,
    BatchId,
    History,
    KeyedTable,
    keyed_rows,
    last_batch,
    latest_changes,
)
from ottla.tables.settings import CatalogSettings

Change = tuple[int, str | None, int, bool]
STEPS = ("data files written", "manifests written", "committed")


class Killed(Exception):
    """The process has ended here."""


class Shop:
    """A table of customers, and those who write it."""

    def __init__(self, directory: Path, history: History | None = None) -> None:
        self.directory = directory
        self.history = history
        self.catalog = open_catalog(CatalogSettings(warehouse=str(directory)), create=True)

    def table(
        self, on_step: Callable[[str], None] = lambda _: None, keys: tuple[str, ...] = ("id",)
    ) -> KeyedTable:
        location = f"file://{self.directory}/customers"
        return KeyedTable(self.catalog, "customers", keys, location, on_step, self.history)

    def apply(
        self,
        batch: int,
        changes: Iterable[Change],
        *,
        writer: str = "q",
        generation: int = 0,
        kill_at: str = "",
    ) -> bool:
        def on_step(step: str) -> None:
            if step == kill_at:
                raise Killed

        return self.table(on_step).apply(BatchId(writer, generation, batch), rows(changes))

    def loaded(self) -> Any:
        return self.catalog.load_table(("default", "customers"))

    def names(self) -> dict[int, str]:
        found = keyed_rows(self.loaded()).to_pylist()
        assert len({row["id"] for row in found}) == len(found), found
        return {row["id"]: row["name"] for row in found}

    def times(self) -> list[tuple[int, str | None, int, int | None]]:
        """The rows of a history: the key, its name, since when and until when."""
        found = keyed_rows(self.loaded()).to_pylist()
        times = [(row["id"], row["name"], row[START_AT], row[END_AT]) for row in found]
        return sorted(times, key=lambda each: (each[0], each[2]))

    @property
    def snapshots(self) -> int:
        return len(self.loaded().metadata.snapshots)


def rows(changes: Iterable[Change]) -> pa.Table:
    given = list(changes)
    return pa.table(
        {
            "id": pa.array([each[0] for each in given], pa.int64()),
            "name": pa.array([each[1] for each in given], pa.string()),
            SEQUENCE: pa.array([each[2] for each in given], pa.int64()),
            DELETED: pa.array([each[3] for each in given], pa.bool_()),
        }
    )


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "tables")


def test_changes_become_rows_and_late_ones_change_nothing(shop: Shop) -> None:
    assert shop.apply(
        0, [(1, "ada", 1, False), (2, "bob", 2, False), (1, "eda", 3, False), (3, "eve", 4, False)]
    )
    assert shop.names() == {1: "eda", 2: "bob", 3: "eve"}
    assert shop.apply(1, [(2, None, 6, True), (3, "eva", 7, False)])
    assert shop.names() == {1: "eda", 3: "eva"}
    late = [(2, "rob", 5, False), (3, "old", 5, False), (1, "ida", 5, False)]
    assert shop.apply(2, late)
    assert shop.names() == {1: "ida", 3: "eva"}
    assert shop.apply(3, [(2, "bob again", 9, False)])
    assert shop.names() == {1: "ida", 2: "bob again", 3: "eva"}


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_that_was_killed_and_is_repeated_is_there_once(shop: Shop, step: str) -> None:
    shop.apply(0, [(1, "ada", 1, False)])
    changes = [(1, "eda", 2, False), (2, "bob", 3, False)]
    with pytest.raises(Killed):
        shop.apply(1, changes, kill_at=step)
    was_committed = step == "committed"
    assert shop.names() == ({1: "eda", 2: "bob"} if was_committed else {1: "ada"})
    assert shop.apply(1, changes) is not was_committed
    assert not shop.apply(1, changes)
    assert not shop.apply(0, [(1, "ada", 1, False)])  # of a driver that was asleep
    assert (shop.names(), shop.snapshots) == ({1: "eda", 2: "bob"}, 2)


def test_a_table_that_is_computed_again_forgets_what_it_had(shop: Shop) -> None:
    shop.apply(0, [(1, "ada", 1, False), (2, "bob", 2, False)])
    shop.apply(1, [(1, None, 3, True)])
    assert shop.apply(0, [(2, "rob", 1, False), (4, None, 2, True)], writer="new", generation=1)
    shop.apply(1, [(4, "late", 1, False)], writer="new", generation=1)
    assert shop.names() == {2: "rob"}
    with pytest.raises(TableError, match="computed again by another run"):
        shop.apply(2, [(3, "eve", 4, False)])
    assert last_batch(shop.loaded().metadata) == BatchId("new", 1, 1)


def test_a_lost_checkpoint_applies_all_changes_again_to_the_same_end(shop: Shop) -> None:
    changes = [(1, "ada", 1, False), (2, "bob", 2, False), (1, None, 3, True), (2, "rob", 4, False)]
    shop.apply(0, changes[:2])
    shop.apply(1, changes[2:])
    for batch, change in enumerate(changes):
        assert shop.apply(batch, [change], writer="another query")
        assert shop.names() == {2: "rob"}


def test_columns_come_and_types_stay(shop: Shop) -> None:
    shop.apply(0, [(1, "ada", 1, False)])
    wider = rows([(2, "bob", 2, False)]).append_column("cents", pa.array([5], pa.int32()))
    shop.table().apply(BatchId("q", 0, 1), wider)
    assert sorted(keyed_rows(shop.loaded()).to_pylist(), key=lambda row: int(row["id"])) == [
        {"id": 1, "name": "ada", "cents": None},
        {"id": 2, "name": "bob", "cents": 5},
    ]
    other = wider.set_column(4, "cents", pa.array(["many"]))
    with pytest.raises(TableError, match=r"column cents is int32.*Cast it, or give it another name"):
        shop.table().apply(BatchId("q", 0, 2), other)
    narrow = rows([(1, "eda", 3, False)]).drop_columns(["name"])
    shop.table().apply(BatchId("q", 0, 2), narrow)
    assert shop.names() == {1: None, 2: "bob"}


class Overtaken:
    """A catalog that a table is loaded from just before others change it."""

    def __init__(self, catalog: Any, others: list[Callable[[], object]]) -> None:
        self._catalog = catalog
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: tuple[str, str]) -> Any:
        table = self._catalog.load_table(identifier)
        if self._others:
            self._others.pop()()
        return table


def test_a_batch_with_new_columns_that_another_driver_was_faster_with_is_there_once(shop: Shop) -> None:
    shop.apply(0, [(1, "ada", 1, False)])
    batch = BatchId("q", 0, 1)
    wider = rows([(2, "bob", 2, False)]).append_column("cents", pa.array([5], pa.int32()))
    faster = shop.table()
    catalog = Overtaken(shop.catalog, [lambda: faster.apply(batch, wider)])
    slower = KeyedTable(catalog, "customers", ("id",), f"file://{shop.directory}/customers")
    assert not slower.apply(batch, wider)
    assert (shop.names(), shop.snapshots) == ({1: "ada", 2: "bob"}, 2)


def test_keys_that_are_null_or_others_are_refused(shop: Shop) -> None:
    shop.apply(0, [(1, "ada", 1, False)])
    with pytest.raises(TableError, match=r'has the keys \["id"\], and not \["id", "name"\]'):
        shop.table(keys=("id", "name")).apply(BatchId("q", 0, 1), rows([(2, "bob", 2, False)]))
    with pytest.raises(TableError, match="the key name of a change is null"):
        latest_changes(rows([(2, None, 2, False)]), ["id", "name"])


def test_a_table_that_is_computed_again_may_have_other_keys_and_types(shop: Shop) -> None:
    shop.apply(0, [(1, "ada", 1, False)])
    other = rows([(1, "ada", 1, False), (1, "eda", 2, False)])
    other = other.set_column(0, "id", other.column("id").cast(pa.string()))
    with pytest.raises(TableError, match=r"has the keys .*--full-refresh customers`"):
        shop.table(keys=("id", "name")).apply(BatchId("q", 0, 1), other)
    assert shop.table(keys=("id", "name")).apply(BatchId("new", 1, 0), other)
    found = keyed_rows(shop.loaded()).to_pylist()
    assert sorted(row["name"] for row in found) == ["ada", "eda"]
    assert {row["id"] for row in found} == {"1"}


def test_a_table_that_was_moved_or_copied_is_not_written(shop: Shop) -> None:
    """Its files name each other by their paths: those of the original would be taken for unused."""
    shop.apply(0, [(1, "ada", 1, False)])
    shutil.copytree(shop.directory, shop.directory.with_name("copy"))
    copied = Shop(shop.directory.with_name("copy"))
    with pytest.raises(
        TableError, match=r"its files are in file://.*/tables/customers.*was the project moved"
    ):
        copied.apply(1, [(2, "bob", 2, False)])
    shutil.rmtree(shop.directory / "customers")
    with pytest.raises(TableError, match="its files are gone"):
        copied.apply(1, [(2, "bob", 2, False)])
    shutil.rmtree(copied.directory)
    again = Shop(copied.directory)
    again.apply(0, [(2, "bob", 2, False)], generation=1)
    assert again.names() == {2: "bob"}


def test_upkeep_changes_no_row_and_forgets_no_batch(shop: Shop) -> None:
    for batch in range(MAX_SMALL_FILES + 2):
        shop.apply(batch, [(batch, f"n{batch}", batch, False)])
    before, batches = shop.names(), MAX_SMALL_FILES + 1
    day = 24 * 60 * 60 * 1000
    shop.table().maintain(int(shop.loaded().metadata.last_updated_ms) + 2 * day)
    table = shop.loaded()
    assert len(list(table.scan().plan_files())) == 1
    assert len(table.metadata.snapshots) == 1
    assert shop.names() == before
    assert last_batch(table.metadata) == BatchId("q", 0, batches)
    assert not shop.apply(batches, [(batches, "again", 99, False)])


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_in_random_order_with_kills_end_as_the_model_says(shop: Shop, seed: int) -> None:
    random = Random(seed)
    changes: list[Change] = []
    for sequence in range(120):
        deletes = random.random() < 0.3
        changes.append((random.randrange(12), None if deletes else f"n{sequence}", sequence, deletes))
    model: dict[int, str | None] = {change[0]: change[1] for change in changes}
    random.shuffle(changes)
    batch = 0
    while changes:
        size = random.randrange(1, 20)
        given, changes = changes[:size], changes[size:]
        while random.random() < 0.5:
            try:
                shop.apply(batch, given, kill_at=random.choice(STEPS))
            except Killed:
                continue
            break
        shop.apply(batch, given)
        batch += 1
    assert shop.names() == {key: name for key, name in model.items() if name is not None}


def history_of(changes: Iterable[Change]) -> list[tuple[int, str | None, int, int | None]]:
    """What the rows of a history are, change by change; of two with one sequence the later one."""
    by_key: dict[int, dict[int, Change]] = {}
    for change in changes:
        by_key.setdefault(change[0], {})[change[2]] = change
    found: list[tuple[int, str | None, int, int | None]] = []
    for key, events in by_key.items():
        name, since = None, None
        for sequence, change in sorted(events.items()):
            if since is not None and (change[3] or change[1] != name):
                found.append((key, name, since, sequence))
                since = None
            if since is None and not change[3]:
                since = sequence
            name = change[1]
        if since is not None:
            found.append((key, name, since, None))
    return sorted(found, key=lambda each: (each[0], each[2]))


def test_a_history_says_what_was_true_when(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "tables", History())
    shop.apply(0, [(1, "ada", 1, False), (2, "bob", 2, False), (1, "ada", 5, False), (2, None, 6, True)])
    assert shop.times() == [(1, "ada", 1, None), (2, "bob", 2, 6)]
    # Late ones: another name in between, a delete before all, a change at the time of the delete.
    shop.apply(1, [(1, "eda", 3, False), (2, None, 1, True), (2, "rob", 6, False), (3, None, 7, True)])
    assert shop.times() == [(1, "ada", 1, 3), (1, "eda", 3, 5), (1, "ada", 5, None), (2, "bob", 2, 6)]
    shop.apply(2, [(3, "eve", 4, False), (2, "bob", 9, False)])
    assert shop.times()[-3:] == [(2, "bob", 2, 6), (2, "bob", 9, None), (3, "eve", 4, 7)]
    shop.history = None
    with pytest.raises(TableError, match=r"has the history .*, and not None: .*--full-refresh customers`"):
        shop.apply(3, [(1, "ada", 10, False)])
    assert shop.apply(0, [(1, "ada", 10, False)], generation=1)
    assert shop.names() == {1: "ada"}


def test_columns_that_are_not_tracked_begin_no_row_of_the_history(tmp_path: Path) -> None:
    both = {"id": [1, 1, 1], "name": ["ada", "ada", "eda"], "tags": [["a"], ["b"], ["b"]]}
    changes = pa.table({**both, SEQUENCE: [1, 2, 3], DELETED: [False, False, False]})
    expected = {
        History(untracked=("tags",)): [("ada", ["b"], 1, 3), ("eda", ["b"], 3, None)],
        History(tracked=("Tags",)): [("ada", ["a"], 1, 2), ("eda", ["b"], 2, None)],
        History(): [("ada", ["a"], 1, 2), ("ada", ["b"], 2, 3), ("eda", ["b"], 3, None)],
    }
    for number, (history, rows_then) in enumerate(expected.items()):
        shop = Shop(tmp_path / str(number), history)
        shop.table().apply(BatchId("q", 0, 0), changes)
        found = keyed_rows(shop.loaded()).to_pylist()
        assert [(row["name"], row["tags"], row[START_AT], row[END_AT]) for row in found] == rows_then


@pytest.mark.parametrize("seed", range(3))
def test_a_history_is_the_same_in_whichever_order_changes_come(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    shop = Shop(tmp_path / "tables", History())
    changes: list[Change] = []
    for sequence in range(100):
        deletes = random.random() < 0.2
        name = None if deletes else random.choice(("ada", "bob", None))
        changes.append((random.randrange(8), name, sequence, deletes))
    expected = history_of(changes)
    changes += random.sample(changes, 20)  # some come twice
    random.shuffle(changes)
    for batch in range(12):
        given = changes[batch * 10 : batch * 10 + 10]
        if random.random() < 0.4:
            with contextlib.suppress(Killed):
                shop.apply(batch, given, kill_at=random.choice(STEPS))
        shop.apply(batch, given)
    assert shop.times() == expected
