"""The state of a table, as its metadata have it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ottla.tables.offsets import committed_offsets
from ottla.tables.topic_table import MODE, TOPIC, TOPIC_ID

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    id: int
    committed_ms: int
    operation: str
    added_rows: int
    added_files: int


@dataclass(frozen=True, slots=True)
class TableInfo:
    """`offsets` has the offset that follows the last row, by partition of the topic."""

    name: str
    topic: str | None
    topic_id: str | None
    location: str
    metadata_location: str
    mode: str
    partitioning: str
    columns: dict[str, str]
    rows: int
    files: int
    bytes: int
    offsets: dict[int, int]
    committed_ms: int | None
    snapshots: list[SnapshotInfo]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe_table(table: Table) -> TableInfo:
    metadata = table.metadata
    current = metadata.current_snapshot()
    summary = current.summary if current is not None else None

    def total(name: str) -> int:
        return 0 if summary is None else int(summary.get(name) or 0)

    columns = {field.name: str(field.field_type) for field in table.schema().fields}
    fields = [
        f"{field.transform}({table.schema().find_column_name(field.source_id)})"
        for field in table.spec().fields
    ]
    return TableInfo(
        name=".".join(table.name()),
        topic=table.properties.get(TOPIC),
        topic_id=table.properties.get(TOPIC_ID),
        location=metadata.location,
        metadata_location=table.metadata_location,
        mode=table.properties.get(MODE, "append"),
        partitioning=", ".join(fields) or "none",
        columns=columns,
        rows=total("total-records"),
        files=total("total-data-files"),
        bytes=total("total-files-size"),
        offsets=committed_offsets(metadata),
        committed_ms=None if current is None else current.timestamp_ms,
        snapshots=[
            SnapshotInfo(
                each.snapshot_id,
                each.timestamp_ms,
                "" if each.summary is None else each.summary.operation.value,
                0 if each.summary is None else int(each.summary.get("added-records") or 0),
                0 if each.summary is None else int(each.summary.get("added-data-files") or 0),
            )
            for each in sorted(metadata.snapshots, key=lambda each: each.timestamp_ms)
        ],
    )
