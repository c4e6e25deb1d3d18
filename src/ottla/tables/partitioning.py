"""How a table is partitioned, and what happens where that would be too fine.

A write makes a file for each partition of the table that its rows are in. Producers decide how many those
are: a field may have a million values, and timestamps may be anywhere. Where one write would make more than
`MAX_FILES`, the table gets a coarser partitioning for what comes from then on: buckets of the field, or
months and years of the timestamp; if none is coarse enough, none. Iceberg keeps the partitioning of each
file, so all rows stay readable, and merging gives the old files the new one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from ottla.tables.columns import record_schema
from ottla.tables.errors import OffsetsMoved

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.transforms import Transform


_log = logging.getLogger(__name__)
# Files of one write.
MAX_FILES: Final = 256
_BUCKETS: Final = 64


def partition_spec(partition_by: str, schema: Schema) -> PartitionSpec:
    """The partitioning of a new table: none, day, hour, field:NAME, or latest, by partition of the topic."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

    transform: Transform[Any, Any]
    match partition_by:
        case "none":
            return PartitionSpec()
        case "latest":
            column, transform, name = "partition", IdentityTransform(), "partition"
        case "day":
            column, transform, name = "timestamp", DayTransform(), "day"
        case "hour":
            column, transform, name = "timestamp", HourTransform(), "hour"
        case _:
            column = partition_by.removeprefix("field:")
            if column.lower() in {each.name.lower() for each in record_schema()}:
                column = f"field_{column}"
            transform, name = IdentityTransform(), f"by_{column}"
    source = schema.find_field(column)
    return PartitionSpec(
        PartitionField(source_id=source.field_id, field_id=1000, transform=transform, name=name)
    )


def crowded_field(table: Table, rows: pa.Table) -> PartitionField | None:
    """The field of the partitioning for whose values a write of these rows would make too many files."""
    if rows.num_rows <= MAX_FILES:
        return None
    for field in table.spec().fields:
        if _values(table, field.source_id, field.transform, rows) > MAX_FILES:
            return field
    return None


def _values(table: Table, source_id: int, transform: Transform[Any, Any], rows: pa.Table) -> int:
    """How many values of a transform rows have."""
    import pyarrow.compute as pc

    source = table.schema().find_field(source_id)
    column = rows.column(source.name)
    return int(pc.count_distinct(transform.pyarrow_transform(source.field_type)(column), mode="all").as_py())


def coarsen(table: Table, field: PartitionField, rows: pa.Table) -> None:
    """Give the table the next coarser partitioning that these rows do not make too many files with."""
    from pyiceberg.exceptions import CommitFailedException

    column = table.schema().find_column_name(field.source_id)
    assert column is not None
    chosen: tuple[str, Transform[Any, Any]] | None = None
    source_type = table.schema().find_field(field.source_id).field_type
    for name, transform in _coarser(field.transform, column):
        if not transform.can_transform(source_type):
            continue
        if _values(table, field.source_id, transform, rows) <= MAX_FILES:
            chosen = name, transform
            break
    try:
        with table.update_spec() as update:
            update.remove_field(field.name)
            if chosen is not None:
                update.add_field(column, chosen[1], chosen[0])
    except CommitFailedException as error:
        raise OffsetsMoved(f"the table was changed while its partitioning was: {error}") from None
    _log.warning(
        "the table %s was partitioned by %s of %s, which has more than %d values in one commit: from now on "
        "it is partitioned by %s",
        ".".join(table.name()),
        field.transform,
        column,
        MAX_FILES,
        "nothing" if chosen is None else f"{chosen[1]} of it",
    )


def _coarser(transform: Transform[Any, Any], column: str) -> list[tuple[str, Transform[Any, Any]]]:
    from pyiceberg.transforms import BucketTransform, DayTransform, MonthTransform, YearTransform

    times: list[tuple[str, Transform[Any, Any]]] = [
        ("day", DayTransform()),
        ("month", MonthTransform()),
        ("year", YearTransform()),
    ]
    match str(transform):
        case "hour":
            return times
        case "day":
            return times[1:]
        case "month":
            return times[2:]
        case "identity":
            return [(f"{column}_bucket", BucketTransform(_BUCKETS))]
        case _:
            return []
