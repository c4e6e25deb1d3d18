"""Read what is in a topic's table from its files, and leave the rest to the brokers.

The border is exact: a snapshot of the table says, for each partition, which offset follows its last row. Rows
below it come from the files of that snapshot, and records from it on from the brokers, so each record is read
once, however far the table gets meanwhile. The table has what consumers of committed records see, so that is
what such a read returns throughout.

The driver plans files; a task reads some of them with pyarrow alone, which skips what lies outside its
offsets. No broker sends a record that is in the table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.client.admin.configs import ConfigsAdmin, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition, uuid_text
from ottla.spark.source.client import source_client
from ottla.spark.source.columns import arrow_schema
from ottla.spark.source.options import ReadFrom, SourceOptions
from ottla.tables.settings import BROKER_SETTINGS, CATALOG_PREFIX, CatalogSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table


log = logging.getLogger(__name__)

_BATCH_ROWS: Final = 65_536
_COLUMNS: Final = {"timestampType": "timestamp_type"}


class TableFileGone(RuntimeError):
    """A file that a task was to read is no longer there."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Files that one task reads, and which offsets of each partition. `is_exact`: all their rows are in."""

    topic: str
    paths: tuple[str, ...]
    bounds: Mapping[int, tuple[int, int]]
    is_exact: bool
    properties: Mapping[str, str]


class TopicFiles:
    """The table of one topic, at one snapshot."""

    def __init__(self, topic: str, table: Table) -> None:
        from ottla.tables.offsets import committed_offsets

        self.topic: Final = topic
        self._table: Final = table
        self.offsets: Final[dict[int, int]] = committed_offsets(table.metadata)

    def first_at(self, time_ms: int) -> dict[int, int]:
        """The first offset of each partition with this timestamp or a later one, where there is one."""
        from datetime import UTC, datetime, timedelta

        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
        scan = self._table.scan(
            row_filter=f"timestamp >= '{moment.isoformat()}'", selected_fields=("partition", "offset")
        )
        found = scan.to_arrow().group_by("partition").aggregate([("offset", "min")]).to_pylist()
        return {each["partition"]: each["offset_min"] for each in found}

    def ranges(self, bounds: Mapping[int, tuple[int, int]], max_bytes: int) -> list[FileRange]:
        """The files that have offsets within the bounds, in tasks of about `max_bytes`."""
        from pyiceberg.conversions import from_bytes
        from pyiceberg.types import IntegerType, LongType

        schema = self._table.schema()
        partition_id = schema.find_field("partition").field_id
        offset_id = schema.find_field("offset").field_id
        whole: list[tuple[str, int]] = []
        cut: list[tuple[str, int]] = []
        for task in self._table.scan().plan_files():
            if task.delete_files:
                raise ValueError(
                    f"rows of the table of {self.topic} were deleted by position: read it with "
                    "readFrom=brokers, or rewrite its files"
                )
            file = task.file

            def limit(values: Any, id: int, kind: Any) -> int | None:
                data = (values or {}).get(id)
                return None if data is None else int(from_bytes(kind, data))

            lowest = limit(file.lower_bounds, offset_id, LongType())
            highest = limit(file.upper_bounds, offset_id, LongType())
            first = limit(file.lower_bounds, partition_id, IntegerType())
            last = limit(file.upper_bounds, partition_id, IntegerType())
            if lowest is None or highest is None or first is None or last is None:
                cut.append((file.file_path, file.file_size_in_bytes))
                continue
            wanted = [bounds[each] for each in range(first, last + 1) if each in bounds]
            if not any(start <= highest and end > lowest for start, end in wanted):
                continue
            is_whole = all(
                self._has_all(each, bounds.get(each), lowest, highest) for each in range(first, last + 1)
            )
            (whole if is_whole else cut).append((file.file_path, file.file_size_in_bytes))
        properties = dict(self._table.io.properties)
        return [
            FileRange(self.topic, paths, dict(bounds), is_exact, properties)
            for files, is_exact in ((whole, True), (cut, False))
            for paths in _tasks(files, max_bytes)
        ]

    def _has_all(self, partition: int, bounds: tuple[int, int] | None, lowest: int, highest: int) -> bool:
        """Whether the bounds have all rows of a partition that a file with these offsets may have: what a
        file says of its offsets is of all its partitions together.
        """
        known = self.offsets.get(partition, 0)
        if bounds is None:
            return not known
        start, end = bounds
        return start <= lowest and (end > highest or end >= known)


def _tasks(files: list[tuple[str, int]], max_bytes: int) -> Iterator[tuple[str, ...]]:
    paths: list[str] = []
    size = 0
    for path, each in files:
        if paths and size + each > max_bytes:
            yield tuple(paths)
            paths, size = [], 0
        paths.append(path)
        size += each
    if paths:
        yield tuple(paths)


def find_tables(options: SourceOptions, ids: Mapping[str, bytes]) -> dict[str, TopicFiles]:
    """The tables of these topics. With readFrom=table a topic without one is an error."""
    try:
        from pyiceberg.exceptions import NoSuchTableError
    except ImportError:
        if options.read_from is ReadFrom.TABLE:
            raise ValueError(
                "readFrom=table: the package pyiceberg is missing: pip install 'ottla[tables]'"
            ) from None
        log.info("tables are not used: the package pyiceberg is missing")
        return {}
    from ottla.tables.catalog import has_catalog, open_catalog
    from ottla.tables.topic_table import MODE, TOPIC_ID, table_identifiers

    settings = _catalog_settings(options)
    found: dict[str, TopicFiles] = {}
    catalog = open_catalog(settings) if has_catalog(settings) else None
    for topic, topic_id in ids.items():
        table = None
        for identifier in table_identifiers(settings, topic):
            if catalog is None:
                break
            try:
                table = catalog.load_table(identifier)
            except NoSuchTableError:
                continue
            if table.properties.get(TOPIC_ID) == uuid_text(topic_id):
                break
        if table is not None and table.properties.get(MODE) == "latest":
            # It has not every record that a consumer sees.
            if options.read_from is ReadFrom.TABLE:
                raise ValueError(
                    f"readFrom=table: the table of topic {topic} has the latest values by key only "
                    "(table.mode=latest): read it as an Iceberg table, or use readFrom=auto"
                )
        elif table is not None and table.properties.get(TOPIC_ID) == uuid_text(topic_id):
            found[topic] = TopicFiles(topic, table)
        elif options.read_from is ReadFrom.TABLE:
            raise ValueError(
                f"readFrom=table: topic {topic} has no table: set its table.format, or use readFrom=auto"
            )
    return found


def _catalog_settings(options: SourceOptions) -> CatalogSettings:
    """The catalog that the options name, else that of the brokers. Its namespace is theirs."""
    client = source_client(options.connection)

    async def ask() -> dict[str, str | None]:
        view = await client.cluster.refresh(topics=[])
        admin = ConfigsAdmin(client.caller(options.api_timeout_ms))
        try:
            shown = await admin.describe(ResourceType.BROKER, str(min(view.brokers)), keys=BROKER_SETTINGS)
        except KafkaError as error:
            if not options.catalog or error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            return {}
        return {name: each.value for name, each in shown.items()}

    try:
        return CatalogSettings.from_broker(client.call(ask()), dict(options.catalog))
    except ValueError as error:
        raise ValueError(
            f"{error}: set the options {CATALOG_PREFIX}uri and {CATALOG_PREFIX}warehouse"
        ) from None


def read_files(options: SourceOptions, what: FileRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files that are within the bounds, in batches that fit Spark's schema."""
    import pyarrow.parquet as pq

    columns = options.columns
    stored = [_COLUMNS.get(name, name) for name in columns if name != "topic"]
    needed = stored if what.is_exact else list(dict.fromkeys([*stored, "partition", "offset"]))
    for path in what.paths:
        filesystem, name = _filesystem(path, what.properties)
        try:
            opened = filesystem.open_input_file(name)
        except FileNotFoundError:
            raise TableFileGone(
                f"a file of the table of {what.topic} is gone: since the read was planned, the table was "
                "dropped, or its files were merged and the snapshot has expired; read again, or use "
                f"readFrom=brokers ({path})"
            ) from None
        with pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=needed or ["partition"]):
                rows = batch if what.is_exact else _within(batch, what.bounds)
                if rows.num_rows:
                    yield _shape(rows, columns, what.topic)


def _within(batch: pa.RecordBatch, bounds: Mapping[int, tuple[int, int]]) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    partitions, offsets = batch.column("partition"), batch.column("offset")
    kept = pa.repeat(pa.scalar(False), batch.num_rows)
    for partition in pc.unique(partitions).to_pylist():
        if partition in bounds:
            start, end = bounds[partition]
            inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
            kept = pc.or_(kept, pc.and_(pc.equal(partitions, partition), inside))
    return batch.filter(kept)


def _shape(batch: pa.RecordBatch, columns: tuple[str, ...], topic: str) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(columns)
    arrays = []
    for field in schema:
        if field.name == "topic":
            arrays.append(pa.repeat(pa.scalar(topic, field.type), batch.num_rows))
            continue
        array = batch.column(batch.schema.get_field_index(_COLUMNS.get(field.name, field.name)))
        arrays.append(_headers(array, field.type) if field.name == "headers" else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(array: pa.ListArray, kind: pa.DataType) -> pa.Array:
    """Headers as Spark's source has them: null for a record without."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs = array.flatten()
    entries = pa.StructArray.from_arrays(
        [pairs.field(0).cast(pa.string()), pairs.field(1).cast(pa.binary())], fields=list(kind.value_type)
    )
    sizes = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(sizes.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    none = pc.equal(sizes, 0)
    return pa.ListArray.from_arrays(offsets, entries, type=kind, mask=none)


def _filesystem(path: str, properties: Mapping[str, str]) -> tuple[Any, str]:
    from pyarrow import fs

    if path.startswith("file://"):
        return fs.LocalFileSystem(), path.removeprefix("file://")
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = PyArrowFileIO(dict(properties))
    scheme, netloc, name = io.parse_location(path, io.properties)
    return io.fs_by_scheme(scheme, netloc), name


def bounds_of(
    files: TopicFiles, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[int, tuple[int, int]]:
    """What of the wanted offsets is in the table, by partition."""
    found: dict[int, tuple[int, int]] = {}
    for partition, first in start.items():
        if partition.topic == files.topic:
            last = min(end[partition], files.offsets.get(partition.partition, 0))
            if first < last:
                found[partition.partition] = (first, last)
    return found
