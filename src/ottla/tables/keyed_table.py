"""A table with one row for each key: batches of changes in, exactly one commit for each of them out.

A change has the columns of a row, a sequence and whether it deletes. Of two changes of a key the one with the
greater sequence counts, in whichever order they come; so a deleted key stays, as a row that says so and that
readers leave out: a change that comes late finds it.

Exactly once follows from two rules. The snapshot of a batch has the identity of the batch in its summary, and
a batch that a snapshot has is not applied again. And a commit is made on top of the metadata in which that
was looked up: the catalog lets one of two through, and the other looks again.

With a `History` the table has what a key was at which time: of each key all changes stay, and each says from
which sequence on its row was true, and until which. What is no row of the history is `_deleted`: a delete,
and a change that changed nothing and that a later one stands for. So a change that comes late finds its
place: a batch puts the whole history of its keys in order again.

A batch rewrites the files that have one of its keys; the bounds of a file tell whether to look into it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ottla.runtime.clock import pause_thread
from ottla.tables.errors import TableError
from ottla.tables.maintenance import expire, remove_orphans
from ottla.tables.topic_table import LOCATION, MAX_ATTEMPTS, commit_once, same_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

_log = logging.getLogger(__name__)

SEQUENCE: Final = "_sequence"
DELETED: Final = "_deleted"
SPECIAL: Final = (SEQUENCE, DELETED)
START_AT: Final = "__START_AT"
END_AT: Final = "__END_AT"
"""The columns of a history, by the names that Spark gives them."""
BATCH: Final = "ottla.batch"
KEYS: Final = "ottla.keys"
HISTORY: Final = "ottla.history"
NAMESPACE: Final = "default"
PRESENT: Final = -1
_FILE_BYTES: Final = 64 * 1024 * 1024
# As many small files are merged into one; a batch looks into each of them.
MAX_SMALL_FILES: Final = 32
RETENTION_MS: Final = 24 * 60 * 60 * 1000
MAX_SNAPSHOTS: Final = 300
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


@dataclass(frozen=True, slots=True)
class History:
    """A table with what each key was at which time. A change that changes none of the tracked columns begins
    no new row: those that are named, else all but the untracked.
    """

    tracked: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()

    def columns(self, names: Sequence[str], keys: Sequence[str]) -> list[str]:
        """Those of these columns that are tracked."""
        chosen, left_out = _lowered(self.tracked), _lowered((*self.untracked, *keys, *SPECIAL))
        left_out |= _lowered((START_AT, END_AT))
        return [
            name for name in names if name.lower() not in left_out and (not chosen or name.lower() in chosen)
        ]


def _lowered(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch of a writer, among all. `generation` counts how often the writer began from the start: the
    first batch of a later one replaces what the table has. `PRESENT` is the one that the table has.
    """

    writer: str
    generation: int
    batch: int

    def is_done(self, last: BatchId | None) -> bool:
        """Whether a table whose last batch is this one has it."""
        return (
            last is not None
            and (last.writer, last.generation) == (self.writer, self.generation)
            and last.batch >= self.batch
        )


def last_batch(metadata: TableMetadata) -> BatchId | None:
    """The batch that was applied last, from the newest snapshot that has one; else from the properties."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    at = metadata.current_snapshot_id
    text = metadata.properties.get(BATCH)
    while at is not None and (snapshot := by_id.pop(at, None)) is not None:
        if snapshot.summary is not None and (found := snapshot.summary.get(BATCH)) is not None:
            text = found
            break
        at = snapshot.parent_snapshot_id
    return None if text is None else BatchId(**json.loads(text))


def _check_sequences(changes: pa.Table, keys: Sequence[str]) -> None:
    for name in (*keys, SEQUENCE):
        if changes.column(name).null_count:
            what = "the sequence" if name == SEQUENCE else f"the key {name}"
            raise TableError(f"{what} of a change is null: leave such rows out before they are merged")


def _with_times(changes: pa.Table) -> pa.Table:
    """The changes with the columns of a history: those that delete have an end, as they have in the table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sequence = changes.column(SEQUENCE)
    end = pc.if_else(changes.column(DELETED), sequence, pa.scalar(None, sequence.type))
    return changes.append_column(START_AT, sequence).append_column(END_AT, end)


def latest_changes(changes: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The change of each key that counts: the greatest sequence, and of equal ones the last row."""
    import pyarrow as pa

    _check_sequences(changes, keys)
    ordered = changes.append_column("_at", pa.array(range(changes.num_rows), pa.int64()))
    ordered = ordered.select([*keys, SEQUENCE, "_at"]).sort_by(
        [(SEQUENCE, "ascending"), ("_at", "ascending")]
    )
    last = ordered.group_by(list(keys), use_threads=False).aggregate([("_at", "last")]).column("_at_last")
    return changes.take(last.combine_chunks())


def in_history(rows: pa.Table, keys: Sequence[str], tracked: Sequence[str]) -> pa.Table:
    """All changes of some keys, each with the time in which its row was true. Those of the table are ordered
    before those that are new: of two with one sequence the later one counts, but a delete before all.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # Of the rows of the table only a delete has an end and is no row of the history.
    is_delete = pc.and_(rows.column(DELETED), pc.is_valid(rows.column(END_AT)))
    rows = rows.append_column("_delete", is_delete)
    rows = rows.append_column("_at", pa.array(range(rows.num_rows), pa.int64()))
    order = [
        *((name, "ascending") for name in (*keys, SEQUENCE)),
        ("_delete", "ascending"),
        ("_at", "ascending"),
    ]
    rows = rows.sort_by(order).combine_chunks()
    rows = rows.filter(pc.invert(_is_next_like(rows, (*keys, SEQUENCE))))
    if not rows.num_rows:
        return rows.drop_columns(["_delete", "_at"])
    no = pa.array([False], pa.bool_())
    is_delete = rows.column("_delete").combine_chunks()
    goes_on = _is_next_like(rows, keys)  # the key has a later change
    is_same = pc.and_(goes_on, _is_next_like(rows, tracked))
    # The next change is of the same row: neither of the two deletes, and nothing that is tracked differs.
    is_extended = pc.and_(is_same, pc.invert(pc.or_(is_delete, pa.concat_arrays([is_delete[1:], no]))))
    extends = pa.concat_arrays([no, is_extended[:-1]])
    sequence = rows.column(SEQUENCE).combine_chunks()
    nothing = pa.scalar(None, sequence.type)
    later = pa.concat_arrays([sequence[1:], pa.nulls(1, sequence.type)])
    start = pc.fill_null_forward(pc.if_else(extends, nothing, sequence))
    end = pc.if_else(
        is_delete, sequence, pc.if_else(pc.and_(goes_on, pc.invert(is_extended)), later, nothing)
    )
    found = {
        DELETED: pc.or_(is_delete, is_extended),
        START_AT: start,
        END_AT: end,
    }
    for name, values in found.items():
        index = rows.column_names.index(name)
        rows = rows.set_column(index, rows.schema.field(name), values.cast(rows.schema.field(name).type))
    return rows.drop_columns(["_delete", "_at"])


def _is_next_like(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    """For each row whether the next one has the same in these columns; null is like null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    last = pa.array([False] * (rows.num_rows > 0), pa.bool_())
    result = pa.concat_arrays([pa.array([True] * (rows.num_rows - 1), pa.bool_()), last])
    for name in columns:
        column = rows.column(name).combine_chunks()
        mine, following = column[:-1], column[1:]
        if pa.types.is_nested(column.type):
            like = pa.array(
                [one == other for one, other in zip(mine.to_pylist(), following.to_pylist(), strict=True)],
                pa.bool_(),
            )
        else:
            both_null = pc.and_(pc.is_null(mine), pc.is_null(following))
            like = pc.or_(pc.fill_null(pc.equal(mine, following), False), both_null)
        result = pc.and_(
            result, pa.concat_arrays([like, pa.array([False] * (rows.num_rows > 0), pa.bool_())])
        )
    return result


class KeyedTable:
    """One table of a catalog. `on_step` hears of each step of a commit, for tests that stop there."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        keys: Sequence[str],
        location: str,
        on_step: Callable[[str], None] = lambda _: None,
        history: History | None = None,
    ) -> None:
        self._catalog: Final = catalog
        self._identifier: Final = (NAMESPACE, name)
        self._name: Final = name
        self._keys: Final = tuple(keys)
        self._location: Final = location
        self._on_step: Final = on_step
        self._history: Final = history
        self._properties: Final = {KEYS: json.dumps(self._keys)} | (
            {} if history is None else {HISTORY: json.dumps(asdict(history))}
        )

    def apply(self, batch: BatchId, changes: pa.Table) -> bool:
        """Commit the changes of a batch, unless the table has it. Returns whether it did not."""
        if self._history is None:
            changes = latest_changes(changes, self._keys)
        else:
            _check_sequences(changes, self._keys)
            changes = _with_times(changes)
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                pause_thread(0.05 * 2 ** min(attempt, 5))
            table = self._load_or_create(changes.schema)
            last = last_batch(table.metadata)
            if batch.generation == PRESENT:
                batch = replace(batch, generation=0 if last is None else last.generation)
            if batch.is_done(last):
                return False
            if last is not None and last.generation > batch.generation:
                raise TableError(
                    f"table {self._name} has been computed again by another run since this one has begun: "
                    "nothing of this batch was written"
                )
            restarts = last is not None and batch.generation > last.generation
            if restarts and not self._fits(table, changes.schema):
                self._catalog.drop_table(self._identifier)
                table, restarts = self._load_or_create(changes.schema), False
            self._check_keys(table)
            table = self._evolve(table, changes.schema)
            if self._try_commit(table, batch, changes, restarts=restarts):
                self._on_step("committed")
                return True
        raise TableError(f"table {self._name} was changed by others {MAX_ATTEMPTS} times in a row")

    def _fits(self, table: Table, schema: pa.Schema) -> bool:
        """Whether the table has these keys, and the types of these columns."""
        mine = table.schema().as_arrow()
        known = {each.name: each for each in mine}
        return self._is_of_this_kind(table) and all(
            same_type(known[each.name].type, each.type) for each in schema if each.name in known
        )

    def _is_of_this_kind(self, table: Table) -> bool:
        return all(table.properties.get(name) == self._properties.get(name) for name in (KEYS, HISTORY))

    def _check_keys(self, table: Table) -> None:
        if self._is_of_this_kind(table):
            return
        known, what = table.properties.get(HISTORY), "the history"
        wanted = self._properties.get(HISTORY)
        if known == wanted:
            known, what, wanted = table.properties.get(KEYS), "the keys", self._properties[KEYS]
        raise TableError(
            f"table {self._name} has {what} {known}, and not {wanted}: its rows would be taken for others. "
            f"Restore {what}, or compute it again: `ottla pipeline run --full-refresh {self._name}`"
        )

    def _try_commit(self, table: Table, batch: BatchId, changes: pa.Table, *, restarts: bool) -> bool:
        replaced, files = self._rewrite(table, changes, everything=restarts)
        self._on_step("data files written")
        noted = {BATCH: json.dumps(asdict(batch))}
        transaction = table.transaction()
        update = transaction.update_snapshot(snapshot_properties=noted)
        with update.overwrite() if replaced else update.fast_append() as overwrite:
            for each in replaced:
                overwrite.delete_data_file(each)
            for each in files:
                overwrite.append_data_file(each)
        transaction.set_properties(noted)
        self._on_step("manifests written")
        return commit_once(table, transaction, overwrite.snapshot_id)

    # Files.

    def _rewrite(
        self, table: Table, changes: pa.Table, *, everything: bool
    ) -> tuple[list[DataFile], list[DataFile]]:
        """The files that go and those that come; no snapshot has these yet."""
        import pyarrow as pa

        replaced: list[DataFile] = []
        files: list[DataFile] = []
        held: list[pa.Table] = []
        former: list[pa.Table] = []  # of a history: what the keys of these changes have so far
        stale: set[int] = set()
        low, high = _bounds(changes.column(self._keys[0]))
        for task in table.scan().plan_files():
            if everything:
                replaced.append(task.file)
                continue
            if not _may_have(table, task, self._keys[0], low, high):
                continue
            rows = _read(table, task)
            gone, older = self._matches(rows, changes)
            stale |= older
            if gone and self._history is not None:
                former.append(rows.take(pa.array(sorted(gone), pa.int64())))
            if not gone:
                continue
            replaced.append(task.file)
            kept = pa.array([index not in gone for index in range(rows.num_rows)], pa.bool_())
            held.append(rows.filter(kept))
            if sum(each.nbytes for each in held) >= _FILE_BYTES:
                files += self._write(table, pa.concat_tables(held))
                held.clear()
        if stale:
            taken = pa.array([index not in stale for index in range(changes.num_rows)], pa.bool_())
            changes = changes.filter(taken)
        changes = _fitted(table, changes, self._name)
        if self._history is not None:
            tracked = self._history.columns(changes.column_names, self._keys)
            changes = in_history(pa.concat_tables([*former, changes]), self._keys, tracked)
        held.append(changes)
        files += self._write(table, pa.concat_tables(held))
        return replaced, files

    def _matches(self, rows: pa.Table, changes: pa.Table) -> tuple[set[int], set[int]]:
        """The rows that a change replaces, and the changes that are older than their row, by their places."""
        import pyarrow as pa
        import pyarrow.compute as pc

        def places(table: pa.Table, suffix: str) -> pa.Table:
            columns = {name: table.column(name) for name in self._keys}
            columns[f"sequence{suffix}"] = table.column(SEQUENCE)
            columns[f"at{suffix}"] = pa.array(range(table.num_rows), pa.int64())
            return pa.table(columns)

        mine = places(rows, "_row")
        if self._history is not None:
            kind = changes.schema.field(SEQUENCE).type
            changes = changes.group_by(list(self._keys)).aggregate([])
            changes = changes.append_column(SEQUENCE, pa.nulls(changes.num_rows, kind))
        given = places(changes, "_change")
        for name in self._keys:
            index = given.column_names.index(name)
            given = given.set_column(index, name, given.column(name).cast(mine.column(name).type))
        found = mine.join(given, keys=list(self._keys), join_type="inner")
        if self._history is not None:  # all that the table has of these keys
            return set(found.column("at_row").to_pylist()), set()
        sequence = found.column("sequence_change").cast(found.column("sequence_row").type)
        is_older = pc.greater(found.column("sequence_row"), sequence)
        older = found.filter(is_older).column("at_change").to_pylist()
        gone = found.filter(pc.invert(is_older)).column("at_row").to_pylist()
        return set(gone), set(older)

    def _write(self, table: Table, rows: pa.Table) -> list[DataFile]:
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        if not rows.num_rows:
            return []
        rows = rows.sort_by([(name, "ascending") for name in self._keys])
        return list(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))

    # The table itself.

    def _load_or_create(self, schema: pa.Schema) -> Table:
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

        for _ in range(3):
            try:
                return load_keyed_table(self._catalog, self._name, self._location)
            except NoSuchTableError:
                pass
            try:
                self._catalog.create_namespace_if_not_exists(NAMESPACE)
                return self._catalog.create_table(
                    self._identifier,
                    schema,
                    location=self._location,
                    properties={
                        **_PROPERTIES,
                        LOCATION: self._location,
                        **self._properties,
                    },
                )
            except TableAlreadyExistsError:
                continue
        raise TableError(f"table {self._name} appears and disappears while it is opened")

    def _evolve(self, table: Table, schema: pa.Schema) -> Table:
        """Add the columns that the table does not have. The others keep their types: values are cast."""
        import pyarrow as pa

        present = {name.lower() for name in table.schema().as_arrow().names}
        added = [field for field in schema if field.name.lower() not in present]
        if added:
            with table.update_schema() as update:
                update.union_by_name(pa.schema([field.with_nullable(True) for field in added]))
            _log.info("table %s has new columns: %s", self._name, [field.name for field in added])
        return table

    # Upkeep.

    def maintain(self, now_ms: int) -> None:
        """Merge small files, and have old snapshots and files go. Nothing of it changes a row."""
        table = self._catalog.load_table(self._identifier)
        self._compact(table)
        expire(table, RETENTION_MS, MAX_SNAPSHOTS, now_ms)
        remove_orphans(table, RETENTION_MS, now_ms)

    def _compact(self, table: Table) -> None:
        import pyarrow as pa

        small = [
            task for task in table.scan().plan_files() if task.file.file_size_in_bytes < _FILE_BYTES // 2
        ]
        if len(small) < MAX_SMALL_FILES:
            return
        parts: list[pa.Table] = []
        taken: list[FileScanTask] = []
        for task in small:
            parts.append(_read(table, task))
            taken.append(task)
            if sum(each.nbytes for each in parts) > 2 * _FILE_BYTES:
                break
        files = self._write(table, pa.concat_tables(parts))
        transaction = table.transaction()
        noted = {BATCH: json.dumps(asdict(last))} if (last := last_batch(table.metadata)) else {}
        with transaction.update_snapshot(snapshot_properties=noted).overwrite() as overwrite:
            for each in taken:
                overwrite.delete_data_file(each.file)
            for file in files:
                overwrite.append_data_file(file)
        # Where others were faster, the next upkeep does it.
        commit_once(table, transaction, overwrite.snapshot_id)


def load_keyed_table(catalog: Catalog, name: str, location: str) -> Table:
    """Load a table, whose files have to be where they were written: they name each other by their paths."""
    try:
        table = catalog.load_table((NAMESPACE, name))
    except FileNotFoundError:
        table = None
    if table is None or table.metadata.location != location:
        where = "are gone" if table is None else f"are in {table.metadata.location}"
        directory = location.removeprefix("file://").rpartition("/")[0]
        raise TableError(
            f"table {name} was written in another directory, and its files {where}: was the project moved, "
            f"or copied? Remove {directory}, and compute its tables again: `ottla pipeline run "
            f"--full-refresh {name}`"
        )
    return table


def keyed_rows(table: Table, limit: int | None = None) -> pa.Table:
    """The rows of a table that are not deleted, without the columns that are not the user's."""
    shown = [name for name in table.schema().column_names if name not in SPECIAL]
    return table.scan(row_filter=f"{DELETED} = false", selected_fields=tuple(shown), limit=limit).to_arrow()


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    import pyarrow.compute as pc

    try:
        found = pc.min_max(column)
    except NotImplementedError:
        return None, None
    return found["min"].as_py(), found["max"].as_py()


def _may_have(table: Table, task: FileScanTask, key: str, low: Any, high: Any) -> bool:
    """Whether the bounds of a file leave room for keys from `low` to `high`."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import IntegerType, LongType, StringType

    field = table.schema().find_field(key)
    lower, upper = (
        (bounds or {}).get(field.field_id) for bounds in (task.file.lower_bounds, task.file.upper_bounds)
    )
    if (
        not isinstance(field.field_type, IntegerType | LongType | StringType)
        or lower is None
        or upper is None
    ):
        return True
    if isinstance(low, str) != isinstance(field.field_type, StringType):
        return True
    return bool(
        low is None
        or (from_bytes(field.field_type, lower) <= high and low <= from_bytes(field.field_type, upper))
    )


def _read(table: Table, task: FileScanTask) -> pa.Table:
    """The rows of a file, with all columns of the table."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])
    return _fitted(table, rows, "")


def _fitted(table: Table, rows: pa.Table, name: str) -> pa.Table:
    """The rows with all columns of the table, in its order and of its types."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    cased = {each.lower(): each for each in rows.column_names}

    def columns() -> Iterator[pa.ChunkedArray]:
        for field in schema:
            given = cased.get(field.name.lower())
            if given is None:
                yield pa.nulls(rows.num_rows, field.type)
                continue
            try:
                yield rows.column(given).cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise TableError(
                    f"table {name}: column {field.name} is {field.type}, and a value of "
                    f"{rows.column(given).type} does not fit ({error}). Cast it, or give it another name"
                ) from None

    return pa.Table.from_arrays(list(columns()), schema=schema)
