"""The table of one topic: rows in, files and exactly one commit for each range of offsets out.

A round is `open`, `append` for what was read of each partition, `commit`. Rows become files as they come, and
a file counts for nothing until a snapshot has it. Exactly once follows from two rules. The snapshot that adds
the rows of a partition also has, in its summary, the offset that follows them; and a commit is made on top
of metadata in which that partition's offset is the one that this round began with, else it is refused
(`OffsetsMoved`). The catalog lets one of two commits on the same metadata through, so neither a repeated
round after a crash, nor a leader that has moved, nor two writers at once can add a record twice or leave one
out.

A table of latest values (`latest`) is committed in the same way, by a snapshot that replaces files. It also
has when each partition was read to its end: a tombstone that is behind it is younger, and stays for
`delete.retention.ms`. Where the log has been compacted beyond the table's offset, and tombstones may have
gone since, the partition is built again from the start of its log; the first commit also removes its old
rows.

This module, `latest` and `maintenance` are the only ones that use what pyiceberg does not document: its
transaction would repeat a commit that lost against another one by itself, without a look at the offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.records.arrow import ArrowDecoder
from ottla.records.batch import iter_batches
from ottla.runtime.clock import pause_thread
from ottla.runtime.random import SystemRandom
from ottla.tables.columns import TypedColumns, error_field, record_schema, record_table, without_large
from ottla.tables.errors import MissedDeletes, OffsetsMoved, TableError
from ottla.tables.latest import (
    files_of,
    has_gap,
    latest_by_key,
    rewrite_partition,
    with_errors,
    without_tombstones,
)
from ottla.tables.offsets import (
    BUILD_TIMES,
    OFFSETS,
    READ_TIMES,
    committed_build_times,
    committed_offsets,
    committed_read_times,
    offsets_text,
)
from ottla.tables.partitioning import coarsen, crowded_field, partition_spec
from ottla.tables.settings import CatalogSettings, TableSettings, older_table_name, table_name
from ottla.tables.values import ValueColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction


_log = logging.getLogger(__name__)

TOPIC: Final = "ottla.topic"
TOPIC_ID: Final = "ottla.topic-id"
CLUSTER_ID: Final = "ottla.cluster-id"
METADATA_OFFSET: Final = "ottla.metadata-offset"
MODE: Final = "ottla.mode"
# The place that was chosen for the table, and is its own.
LOCATION: Final = "ottla.location"
# Rows are held in memory up to so many bytes; then they are a file.
FLUSH_BYTES: Final = 32 * 1024 * 1024
# A table of latest values holds the rows of a round until its commit: beyond so many bytes the round is full.
MAX_ROUND_BYTES: Final = 64 * 1024 * 1024
# And so is one that rewrites files of so many partitions, or, of any table, has decoded so many bytes.
MAX_ROUND_PARTITIONS: Final = 100
MAX_DECODED_BYTES: Final = 1024 * 1024 * 1024
MAX_ATTEMPTS: Final = 10
# A partition that is built from its start, in several rounds, begins again if it took longer, and longer than
# tombstones stay: it would never end if these stay for less than a round takes.
MAX_BUILD_MS: Final = 24 * 60 * 60 * 1000
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def table_identifiers(catalog: CatalogSettings, topic: str) -> tuple[tuple[str, str], ...]:
    """The name of a topic's table, and the one that it has if an older release has made it."""
    names = dict.fromkeys((table_name(topic), older_table_name(topic)))
    return tuple((catalog.namespace, name) for name in names)


@dataclass(slots=True)
class CommitResult:
    offsets: dict[int, int]
    rows: int = 0
    files: int = 0
    bytes: int = 0
    snapshot_id: int | None = None


@dataclass(slots=True)
class _Range:
    """What this round adds of a partition. `expected` is what the table says; the rows may begin later, where
    the log does.
    """

    expected: int | None
    next_offset: int


@dataclass(slots=True)
class _Round:
    ranges: dict[int, _Range] = field(default_factory=dict)
    tables: list[tuple[int, pa.Table]] = field(default_factory=list)
    buffered: int = 0
    rows: int = 0
    decoded: int = 0
    files: list[DataFile] = field(default_factory=list)
    # Of a table of latest values: files that go, and partitions that are built again from their start.
    replaced: list[DataFile] = field(default_factory=list)
    rebuilt: set[int] = field(default_factory=set)
    is_full: bool = False


class TopicTable:
    """One round after the other. `on_step` hears of each step of a commit, for tests that stop there."""

    def __init__(
        self,
        catalog: Catalog,
        catalog_settings: CatalogSettings,
        settings: TableSettings,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._catalog: Final = catalog
        self._catalog_settings: Final = catalog_settings
        self.settings: Final = settings
        self._on_step: Final = on_step
        self._identifier, *self._older = table_identifiers(catalog_settings, settings.topic)
        self._table: Table | None = None
        self._values: ValueColumns | None = None
        self._offsets: dict[int, int] = {}
        self._read_times: dict[int, int] = {}
        self._build_times: dict[int, int] = {}
        self._now_ms = 0
        self._round = _Round()

    @property
    def table(self) -> Table:
        assert self._table is not None, "the table has not been opened"
        return self._table

    @property
    def _is_latest(self) -> bool:
        return self.settings.mode == "latest"

    def open(self, now_ms: int = 0) -> dict[int, int]:
        """Load the table, or make it, and return the offsets that it has. What was appended and not committed
        is forgotten. `now_ms` is the wall-clock time at which the round begins, before it is known where the
        logs end.
        """
        self._now_ms = now_ms
        self._round = _Round()
        self._table = self._load_or_create()
        if self._values is None:
            if self.settings.schema_type == "registry":
                # The first records may all be ones that do not parse.
                self._add_columns([error_field()])
            self._values = ValueColumns(self.settings, self._evolve)
        self._offsets = committed_offsets(self._table.metadata)
        if self._is_latest:
            self._read_times = committed_read_times(self._table.metadata)
            self._build_times = committed_build_times(self._table.metadata)
        return dict(self._offsets)

    def append(
        self,
        partition: int,
        start_offset: int,
        records: Any,
        aborted: Iterable[tuple[int, int]] = (),
        *,
        is_rebuilt: bool = False,
        now_ms: int | None = None,
    ) -> int:
        """Add what a consumer of committed records sees of the batches. Return the offset that follows. Those
        from which the rows of a partition are built again, `is_rebuilt`, begin where its log does. `now_ms`
        is the wall-clock time after they were read.
        """
        round = self._round
        if self._is_latest:
            if is_rebuilt and partition not in round.rebuilt:
                round.rebuilt.add(partition)
                round.tables = [each for each in round.tables if each[0] != partition]
                round.buffered = sum(each.nbytes for _, each in round.tables)
            self._check_deletes(partition, start_offset, records, self._now_ms if now_ms is None else now_ms)
        decoder = ArrowDecoder(start_offset=start_offset, check_crc=True, empty_headers=True)
        decoder.set_aborted(aborted)
        with memoryview(records) as view:
            # One by one: a few kilobytes may inflate to hundreds of megabytes.
            for position, header in iter_batches(view):
                decoder.feed(view[position : position + header.size])
                if decoder.nbytes >= FLUSH_BYTES:
                    self._take(partition, decoder)
        if decoder.next_offset <= start_offset:
            return start_offset
        self._take(partition, decoder)
        return decoder.next_offset

    def _take(self, partition: int, decoder: ArrowDecoder) -> None:
        """Take over the rows of the batches that were decoded."""
        round = self._round
        round.ranges[partition] = _Range(self._offsets.get(partition), decoder.next_offset)
        if not decoder.rows:
            return
        rows = without_large(record_table(partition, decoder.finish()), self.settings.max_part_bytes)
        round.tables.append((partition, rows))
        round.rows += rows.num_rows
        round.buffered += rows.nbytes
        round.decoded += rows.nbytes
        if round.decoded >= MAX_DECODED_BYTES:
            round.is_full = True
        if self._is_latest:
            round.is_full |= len(round.ranges) >= MAX_ROUND_PARTITIONS
            if round.buffered >= MAX_ROUND_BYTES:
                self._drop_superseded()
                round.is_full |= round.buffered >= MAX_ROUND_BYTES // 2
        elif round.buffered >= FLUSH_BYTES:
            self._write()

    @property
    def is_full(self) -> bool:
        """Whether the round should be committed before more is appended."""
        return self._round.is_full

    def _check_deletes(self, partition: int, start_offset: int, records: Any, now_ms: int) -> None:
        """MissedDeletes if the log has been compacted beyond the table, so long ago that a tombstone may have
        come and gone since.
        """
        limit_ms = self.settings.delete_retention_ms
        known_ms = self._read_times.get(partition)
        if known_ms is None:
            known_ms = self._build_times.get(partition)
            limit_ms = max(limit_ms, MAX_BUILD_MS)
        if known_ms is None or partition in self._round.rebuilt or now_ms - known_ms < limit_ms:
            return
        headers = [header for _, header in iter_batches(records)]
        found = [(each.base_offset, each.last_offset, each.count) for each in headers]
        if has_gap(start_offset, found):
            raise MissedDeletes(
                f"partition {partition} of {self.settings.topic} was compacted beyond the offset "
                f"{start_offset} of its table"
            )

    def _drop_superseded(self) -> None:
        """Keep the latest row of each key only."""
        import pyarrow as pa

        round = self._round
        by_partition: dict[int, list[pa.Table]] = {}
        for partition, rows in round.tables:
            by_partition.setdefault(partition, []).append(rows)
        round.tables = [
            (partition, latest_by_key(pa.concat_tables(tables))) for partition, tables in by_partition.items()
        ]
        round.buffered = sum(each.nbytes for _, each in round.tables)

    def _write_latest(self) -> None:
        """Write the files with the latest rows of this round, and note which ones they replace."""
        import pyarrow.compute as pc

        round = self._round
        assert self._values is not None
        self._drop_superseded()
        tables, round.tables, round.buffered = round.tables, [], 0
        latest = dict(tables)
        for partition in sorted({*latest, *round.rebuilt}):
            rows = latest.pop(partition, None)
            if rows is None:
                rows = record_schema().empty_table()
            changed = pc.drop_null(rows.column("key").combine_chunks())
            # Adding columns may replace the table's metadata.
            rows = with_errors(self._values.append_to(without_tombstones(rows)))
            replaced, files = rewrite_partition(
                self.table, partition, changed, rows, is_rebuilt=partition in round.rebuilt
            )
            round.replaced += replaced
            round.files += files

    def _write(self) -> None:
        """Write the rows that are in memory to files, which no snapshot has yet."""
        if self._is_latest:
            self._write_latest()
            return
        import pyarrow as pa
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        round = self._round
        if not round.tables:
            return
        assert self._values is not None
        # Adding columns may replace the table's metadata.
        rows = self._values.append_to(pa.concat_tables([each for _, each in round.tables]).combine_chunks())
        table = self.table
        if (finer := crowded_field(table, rows)) is not None:
            coarsen(table, finer, rows)
            raise OffsetsMoved("the partitioning of the table has changed: it had too many values")
        round.tables.clear()
        round.buffered = 0
        round.files += _dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io)

    @property
    def has_rows(self) -> bool:
        return self._round.rows > 0 or bool(self._round.rebuilt)

    def commit(self, complete: Collection[int] | None = None) -> CommitResult:
        """Add what was appended as one snapshot. OffsetsMoved if another writer has got further meanwhile.
        `complete` are the partitions that were read to where they ended when the round began; None for all.
        """
        self._write()
        self._on_step("data files written")
        round = self._round
        if not round.ranges:
            return CommitResult(dict(self._offsets))
        table = self.table
        spec_id = table.metadata.default_spec_id
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                table = self._load()
            self._check_owner(table)
            offsets = committed_offsets(table.metadata)
            self._check_offsets(offsets)
            if table.metadata.default_spec_id != spec_id:
                raise OffsetsMoved("the partitioning of the table has changed")
            if round.replaced:
                self._check_replaced(table)
            offsets |= {partition: each.next_offset for partition, each in round.ranges.items()}
            snapshot_id = self._try_commit(table, offsets, complete)
            if snapshot_id is not None:
                self._on_step("committed")
                result = CommitResult(
                    offsets,
                    round.rows,
                    len(round.files),
                    sum(each.file_size_in_bytes for each in round.files),
                    snapshot_id,
                )
                self._table, self._offsets, self._round = table, offsets, _Round()
                return result
            pause_thread(0.05 * 2 ** min(attempt, 5))
        raise TableError(
            f"the table of {self.settings.topic} was changed by others {MAX_ATTEMPTS} times in a row"
        )

    def _check_offsets(self, offsets: dict[int, int]) -> None:
        """Recognise a commit that is repeated, as after a crash, or of a former leader: OffsetsMoved if the
        table has the rows of this round, or others, already.
        """
        for partition, each in self._round.ranges.items():
            if offsets.get(partition) != each.expected:
                raise OffsetsMoved(
                    f"partition {partition} is at {offsets.get(partition)} in the table, and not at "
                    f"{each.expected} as this broker read it"
                )

    def _check_replaced(self, table: Table) -> None:
        """OffsetsMoved if the files that this round replaces are others by now."""
        present = {each.file.file_path for index in self._round.ranges for each in files_of(table, index)}
        if not all(each.file_path in present for each in self._round.replaced):
            raise OffsetsMoved("the files with keys of this commit were rewritten meanwhile")

    def _times(self, table: Table, complete: Collection[int] | None) -> dict[str, str]:
        """What a commit says of when partitions were read, and since when others are built."""
        read = committed_read_times(table.metadata)
        build = committed_build_times(table.metadata)
        for partition in self._round.ranges:
            if complete is None or partition in complete:
                read[partition] = self._now_ms
                build.pop(partition, None)
            elif partition in self._round.rebuilt or (partition not in read and partition not in build):
                build[partition] = self._now_ms
                read.pop(partition, None)
        return {READ_TIMES: offsets_text(read), BUILD_TIMES: offsets_text(build)}

    def _try_commit(
        self, table: Table, offsets: dict[int, int], complete: Collection[int] | None
    ) -> int | None:
        """Commit on top of these metadata. Return the snapshot, or None if others have changed the table."""
        text = offsets_text(offsets)
        transaction = table.transaction()
        noted = {OFFSETS: text}
        if self._is_latest:
            noted |= self._times(table, complete)
        update = transaction.update_snapshot(snapshot_properties={**noted, TOPIC_ID: self.settings.topic_id})
        with update.overwrite() if self._round.replaced else update.merge_append() as append:
            for each in self._round.replaced:
                append.delete_data_file(each)
            for each in self._round.files:
                append.append_data_file(each)
        transaction.set_properties(noted)
        self._on_step("manifests written")
        return append.snapshot_id if commit_once(table, transaction, append.snapshot_id) else None

    # The table itself

    def _load(self) -> Table:
        return self._catalog.load_table(self._identifier)

    def _use_older_name(self) -> None:
        """Go on with the table of this very topic that an older release has made."""
        from pyiceberg.exceptions import NoSuchTableError

        for identifier in self._older:
            try:
                properties = self._catalog.load_table(identifier).properties
            except NoSuchTableError:
                continue
            if properties.get(TOPIC_ID) == self.settings.topic_id:
                self._identifier, self._older = identifier, []

    def _load_or_create(self) -> Table:
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

        self._use_older_name()
        for _ in range(3):
            try:
                table = self._load()
            except NoSuchTableError:
                try:
                    return self._create()
                except TableAlreadyExistsError:
                    continue
            if table.properties.get(TOPIC_ID) == self.settings.topic_id:
                self._check_owner(table)
                return table
            self._set_aside(table)
        raise TableError(f"the table {self._shown} appears and disappears while it is opened")

    def _check_owner(self, table: Table) -> None:
        """TableError unless it is the table of this very topic."""
        properties = table.properties
        if TOPIC_ID not in properties:
            raise TableError(
                f"there is a table {self._shown} that Ottla has not made: rename it, or set table.namespace"
            )
        topic, cluster_id = properties.get(TOPIC), properties.get(CLUSTER_ID)
        if topic != self.settings.topic and cluster_id == self.settings.cluster_id:
            raise TableError(
                f"the table {self._shown} is of the topic {topic!r}: an older release has made it, and gave "
                "topics whose names differ only in '.', '-' and '_' one name. Set table.format=none for that "
                "topic and rename its table; with a table again, it gets a name of its own"
            )
        if cluster_id != self.settings.cluster_id:
            raise TableError(
                f"the table {self._shown} is of the topic {topic!r} of the cluster {cluster_id}: set another "
                "table.namespace for one of them"
            )
        if properties[TOPIC_ID] != self.settings.topic_id:
            raise OffsetsMoved(f"the table {self._shown} is of a topic of this name with another id")
        mode = properties.get(MODE, "append")
        if mode != self.settings.mode:
            raise TableError(
                f"the table {self._shown} has table.mode={mode} and the topic "
                f"table.mode={self.settings.mode}: set it back, or rename or drop the table to get another"
            )

    @property
    def _shown(self) -> str:
        return ".".join(self._identifier)

    def _set_aside(self, table: Table) -> None:
        """Rename the table of a topic of this name that was deleted: its records are not of this one."""
        properties = table.properties
        if TOPIC_ID not in properties or properties.get(CLUSTER_ID) != self.settings.cluster_id:
            self._check_owner(table)
        if properties.get(TOPIC) != self.settings.topic:
            self._check_owner(table)
        if int(properties.get(METADATA_OFFSET, "0")) > self.settings.metadata_offset:
            raise TableError(
                f"the table {self._shown} is of a newer topic of this name: the metadata of this broker are "
                "behind"
            )
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

        namespace, name = self._identifier
        # No table of a topic has four in a row, other than before its hash.
        old = (namespace, f"{name}____{_short(properties[TOPIC_ID])}")
        try:
            self._catalog.rename_table(self._identifier, old)
        except (NoSuchTableError, TableAlreadyExistsError):
            return  # another broker was faster
        _log.warning("the table of a deleted topic %s is %s from now on", self.settings.topic, ".".join(old))

    def _create_namespace(self) -> None:
        name = self._identifier[0]
        try:
            self._catalog.create_namespace_if_not_exists(name)
        except Exception:
            # Another process was a moment faster, of which each catalog tells in its own way.
            if not self._catalog.namespace_exists(name):
                raise

    def _create(self) -> Table:
        settings = self.settings
        fields = list(record_schema())
        if settings.schema_type in ("json", "avro", "protobuf"):
            from ottla.schemas.schema import make_schema

            typed = TypedColumns(make_schema("table.schema", settings.schema_type, settings.schema))
            fields += list(typed.arrow_schema())
        elif self._is_latest:
            fields.append(error_field())
        schema = _iceberg_schema(fields)
        self._create_namespace()
        location = self._location()
        table = self._catalog.create_table(
            self._identifier,
            schema,
            location=location,
            partition_spec=partition_spec("latest" if self._is_latest else settings.partition_by, schema),
            properties={
                **_PROPERTIES,
                MODE: settings.mode,
                TOPIC: settings.topic,
                TOPIC_ID: settings.topic_id,
                CLUSTER_ID: settings.cluster_id,
                METADATA_OFFSET: str(settings.metadata_offset),
                **({} if location is None else {LOCATION: location}),
            },
        )
        _log.info("the topic %s has the table %s", settings.topic, self._shown)
        self._on_step("table created")
        return table

    def _location(self) -> str | None:
        """A place of its own: another topic of this name, later, has another id, and a table that was renamed
        keeps its place. A REST catalog whose warehouse is a name chooses one.
        """
        catalog = self._catalog_settings
        if catalog.warehouse is None or (catalog.type == "rest" and "://" not in catalog.warehouse):
            return None
        base = f"file://{catalog.warehouse}" if catalog.is_local else catalog.warehouse.rstrip("/")
        namespace, name = self._identifier
        unique = SystemRandom().randbytes(4).hex()
        return f"{base}/{namespace}/{name}-{_short(self.settings.topic_id)}-{unique}"

    def _evolve(self, typed: TypedColumns) -> None:
        typed.unfit |= self._add_columns(typed.arrow_schema())

    def _add_columns(self, columns: Iterable[pa.Field]) -> set[str]:
        """Add the columns that the table does not have. One that it has with another type stays as it is, and
        gets no values; return the names of those.
        """
        import pyarrow as pa
        from pyiceberg.exceptions import CommitFailedException, ValidationError

        for _ in range(MAX_ATTEMPTS):
            table = self.table
            present = table.schema().as_arrow()
            cased = {each.lower(): each for each in present.names}
            try:
                unfit: set[str] = set()
                for wanted in columns:
                    if cased.get(wanted.name.lower(), wanted.name) != wanted.name:
                        # Engines ignore case, and could read neither.
                        _log.warning("the table %s has a column like %s", self._shown, wanted.name)
                        unfit.add(wanted.name)
                        continue
                    index = present.get_field_index(wanted.name)
                    if index >= 0 and same_type(present.field(index).type, wanted.type):
                        continue
                    try:
                        with table.update_schema() as update:
                            update.union_by_name(pa.schema([wanted]))
                    except (ValidationError, TypeError, ValueError):
                        _log.warning("the table %s has another type for %s", self._shown, wanted.name)
                        unfit.add(wanted.name)
                self._table = table
                return unfit
            except CommitFailedException:
                self._table = self._load()
        raise TableError(f"the columns of {self._shown} could not be changed: others change it all the time")


def commit_once(table: Table, transaction: Transaction, snapshot_id: int) -> bool:
    """Commit a transaction with one attempt. Return whether it got through: False means that it did not, and
    other errors that this is not known, which `snapshot_id` decides if the catalog can be asked.
    """
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertTableUUID

    requirements = (*transaction._requirements, AssertTableUUID(uuid=table.metadata.table_uuid))
    try:
        table._do_commit(updates=transaction._updates, requirements=requirements)
        return True
    except CommitFailedException:
        if table.catalog.load_table(table.name()).metadata.snapshot_by_id(snapshot_id) is not None:
            table.refresh()  # it was this very commit, whose first answer got lost
            return True
        for producer in transaction._snapshot_producers:
            producer._clean_all_uncommitted()
        return False
    except Exception:
        # A lost answer: what was written stays until it is old enough to be an orphan for sure.
        if table.refresh().metadata.snapshot_by_id(snapshot_id) is not None:
            return True
        raise


def _short(topic_id: str) -> str:
    return topic_id.replace("-", "")[:8]


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether types are the same but for the width of the lengths in memory."""

    def plain(kind: pa.DataType) -> str:
        return str(kind).replace("large_", "").replace("element:", "item:").replace("etc/utc", "UTC")

    return plain(one) == plain(other)


def _iceberg_schema(fields: list[pa.Field]) -> Schema:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import assign_fresh_schema_ids

    return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(pa.schema(fields)))
