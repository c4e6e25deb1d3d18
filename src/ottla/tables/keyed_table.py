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
"""A generation: whichever the table has."""
_FILE_BYTES: Final = 64 * 1024 * 1024
# Upkeep merges this many small files, as a batch looks into each of them.
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
    """Which columns of a table begin a new row of its history where they change: the `tracked` ones, or if
    there are none all but the `untracked`.
    """

    tracked: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()

    def columns(self, names: Sequence[str], keys: Sequence[str]) -> list[str]:
        """Those of these columns that are tracked."""
        chosen = _lowered(self.tracked)
        left_out = _lowered((*self.untracked, *keys, *SPECIAL, START_AT, END_AT))
        return [
            name for name in names if name.lower() not in left_out and (not chosen or name.lower() in chosen)
        ]


def _lowered(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}


@dataclass(frozen=True, slots=True)
class BatchId:
    """Identifies a batch. `generation` counts how often the writer began from the start: the first batch of a
    later generation replaces all rows of the table.
    """

    writer: str
    generation: int
    batch: int

    def is_done(self, last: BatchId | None) -> bool:
        """Whether a table has this batch, if `last` is the last one that it has."""
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
    """Order all changes of some keys, and say from which sequence until which the row of each was true.

    `rows` are the changes that the table has, and after them the new ones. Of those with the same key and
    sequence one counts: a delete if there is one, else the last.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # A delete has an end. A change that changed nothing is `_deleted` too, and has none.
    is_delete = pc.and_(rows.column(DELETED), pc.is_valid(rows.column(END_AT)))
    rows = rows.append_column("_delete", is_delete)
    rows = rows.append_column("_at", pa.array(range(rows.num_rows), pa.int64()))
    order = [
        *((name, "ascending") for name in (*keys, SEQUENCE)),
        ("_delete", "ascending"),
        ("_at", "ascending"),
    ]
    rows = rows.sort_by(order).combine_chunks()
    rows = rows.filter(pc.invert(_equals_next(rows, (*keys, SEQUENCE))))
    if not rows.num_rows:
        return rows.drop_columns(["_delete", "_at"])
    no = pa.array([False], pa.bool_())
    is_delete = rows.column("_delete").combine_chunks()
    has_later = _equals_next(rows, keys)
    # The next change goes on with this row: neither of the two deletes, and nothing that is tracked differs.
    # Then this change is hidden behind the next one, whose row begins where this one's does.
    either_deletes = pc.or_(is_delete, pa.concat_arrays([is_delete[1:], no]))
    is_hidden = pc.and_(pc.and_(has_later, _equals_next(rows, tracked)), pc.invert(either_deletes))
    begins_earlier = pa.concat_arrays([no, is_hidden[:-1]])
    sequence = rows.column(SEQUENCE).combine_chunks()
    nothing = pa.scalar(None, sequence.type)
    next_sequence = pa.concat_arrays([sequence[1:], pa.nulls(1, sequence.type)])
    start = pc.fill_null_forward(pc.if_else(begins_earlier, nothing, sequence))
    is_replaced = pc.and_(has_later, pc.invert(is_hidden))
    end = pc.if_else(is_delete, sequence, pc.if_else(is_replaced, next_sequence, nothing))
    for name, values in ((DELETED, pc.or_(is_delete, is_hidden)), (START_AT, start), (END_AT, end)):
        index = rows.column_names.index(name)
        rows = rows.set_column(index, rows.schema.field(name), values.cast(rows.schema.field(name).type))
    return rows.drop_columns(["_delete", "_at"])


def _equals_next(rows: pa.Table, columns: Sequence[str]) -> pa.Array:
    """For each row whether the next one has the same in these columns; null equals null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows.num_rows:
        return pa.array([], pa.bool_())
    result = pa.array([True] * (rows.num_rows - 1), pa.bool_())
    for name in columns:
        column = rows.column(name).combine_chunks()
        ones, others = column[:-1], column[1:]
        if pa.types.is_nested(column.type):  # which Arrow does not compare
            pairs = zip(ones.to_pylist(), others.to_pylist(), strict=True)
            equal = pa.array([one == other for one, other in pairs], pa.bool_())
        else:
            both_null = pc.and_(pc.is_null(ones), pc.is_null(others))
            equal = pc.or_(pc.fill_null(pc.equal(ones, others), False), both_null)
        result = pc.and_(result, equal)
    return pa.concat_arrays([result, pa.array([False], pa.bool_())])


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
        """Commit the changes of a batch. Returns False if the table has the batch already."""
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
                continue
            self._check_keys(table)
            if self._add_columns(table, changes.schema):
                continue  # others may have come first: look again
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
        is_of_keys = table.properties.get(HISTORY) == self._properties.get(HISTORY)
        name, what = (KEYS, "the keys") if is_of_keys else (HISTORY, "the history")
        raise TableError(
            f"table {self._name} has {what} {table.properties.get(name)}, and not "
            f"{self._properties.get(name)}: its rows would be taken for others. "
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
        """Write the files that have the rows after these changes; no snapshot has them yet. Returns the files
        of the table that they replace, and the new ones. With `everything`, nothing of the table stays.
        """
        import pyarrow as pa

        tasks = list(table.scan().plan_files())
        replaced: list[DataFile] = [task.file for task in tasks] if everything else []
        files: list[DataFile] = []
        unchanged: list[pa.Table] = []  # rows of replaced files
        former: list[pa.Table] = []  # what the history has of the keys so far
        late: set[int] = set()  # the places of changes whose row is newer
        low, high = _bounds(changes.column(self._keys[0]))
        for task in [] if everything else tasks:
            if not _may_have(table, task, self._keys[0], low, high):
                continue
            rows = _read(table, task)
            if self._history is None:
                taken, older = self._match(rows, changes)
                late |= older
            else:
                taken = self._with_keys_of(rows, changes)
            if not taken:
                continue
            if self._history is not None:
                former.append(rows.take(pa.array(sorted(taken), pa.int64())))
            replaced.append(task.file)
            unchanged.append(_without(rows, taken))
            if sum(each.nbytes for each in unchanged) >= _FILE_BYTES:
                files += self._write(table, pa.concat_tables(unchanged))
                unchanged.clear()
        rows = _fitted(table, _without(changes, late), self._name)
        if self._history is not None:
            tracked = self._history.columns(rows.column_names, self._keys)
            rows = in_history(pa.concat_tables([*former, rows]), self._keys, tracked)
        files += self._write(table, pa.concat_tables([*unchanged, rows]))
        return replaced, files

    def _match(self, rows: pa.Table, changes: pa.Table) -> tuple[set[int], set[int]]:
        """The places of the rows that a change replaces, and of the changes that are older than their row."""
        import pyarrow.compute as pc

        found = self._joined(rows, changes, "inner")
        row_sequences = rows.column(SEQUENCE).take(found.column("row"))
        sequences = changes.column(SEQUENCE).take(found.column("change")).cast(row_sequences.type)
        is_older = pc.greater(row_sequences, sequences)
        replaced = found.filter(pc.invert(is_older)).column("row").to_pylist()
        return set(replaced), set(found.filter(is_older).column("change").to_pylist())

    def _with_keys_of(self, rows: pa.Table, changes: pa.Table) -> set[int]:
        """The places of the rows that have a key of these changes."""
        return set(self._joined(rows, changes, "left semi").column("row").to_pylist())

    def _joined(self, rows: pa.Table, changes: pa.Table, how: str) -> pa.Table:
        """The rows joined with the changes of the same keys, both by their places."""
        import pyarrow as pa

        def places(table: pa.Table, name: str) -> pa.Table:
            columns = {key: table.column(key).cast(rows.schema.field(key).type) for key in self._keys}
            return pa.table({**columns, name: pa.array(range(table.num_rows), pa.int64())})

        return places(rows, "row").join(places(changes, "change"), list(self._keys), join_type=how)

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

    def _add_columns(self, table: Table, schema: pa.Schema) -> bool:
        """Add the columns that the table does not have. Returns whether there were some; if others changed
        the table at the same time, it may have none of them yet. Columns that it has keep their types.
        """
        import pyarrow as pa
        from pyiceberg.exceptions import CommitFailedException

        present = _lowered(table.schema().as_arrow().names)
        added = [field for field in schema if field.name.lower() not in present]
        if not added:
            return False
        try:
            with table.update_schema() as update:
                update.union_by_name(pa.schema([field.with_nullable(True) for field in added]))
        except CommitFailedException as error:
            _log.info("table %s gets its new columns later: %s", self._name, error)
        else:
            _log.info("table %s has new columns: %s", self._name, [field.name for field in added])
        return True

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
        # If a batch was committed meanwhile, the next upkeep does it.
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
    """The least and the greatest value; None if Arrow does not order values of this type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.min_max(column)
    except pa.ArrowNotImplementedError:
        return None, None
    return found["min"].as_py(), found["max"].as_py()


def _may_have(table: Table, task: FileScanTask, key: str, low: Any, high: Any) -> bool:
    """Whether the bounds of a file leave room for keys from `low` to `high`. Where they cannot be compared,
    it may have them.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import IntegerType, LongType, StringType

    field = table.schema().find_field(key)
    kind = field.field_type
    lower = (task.file.lower_bounds or {}).get(field.field_id)
    upper = (task.file.upper_bounds or {}).get(field.field_id)
    if lower is None or upper is None or low is None:
        return True
    if not isinstance(kind, IntegerType | LongType | StringType):
        return True
    if isinstance(low, str) != isinstance(kind, StringType):
        return True
    return bool(from_bytes(kind, lower) <= high and low <= from_bytes(kind, upper))


def _without(rows: pa.Table, places: set[int]) -> pa.Table:
    """The rows but those at these places."""
    import pyarrow as pa

    if not places:
        return rows
    return rows.filter(pa.array([index not in places for index in range(rows.num_rows)], pa.bool_()))


def _read(table: Table, task: FileScanTask) -> pa.Table:
    """The rows of a file, with all columns of the table."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])
    return _fitted(table, rows, table.name()[-1])


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
