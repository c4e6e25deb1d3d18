"""Keeping a table in order: small files merged, old snapshots expired, files that no snapshot has removed.

A merge replaces files by one with the same rows, sorted by partition and offset. It is committed like an
append, on top of metadata in which all the replaced files still are, and is tried again on newer ones if
others have committed meanwhile. A snapshot that expires only leaves the metadata; its files go once no other
snapshot has them and they are old, like those of a commit that a crash ended: nothing young is ever removed,
as it may be part of a commit under way.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ottla.runtime.clock import pause_thread
from ottla.tables.errors import TableError
from ottla.tables.offsets import OFFSETS, committed_offsets, noted_times, offsets_text
from ottla.tables.settings import MaintenanceSettings
from ottla.tables.topic_table import LOCATION, MAX_ATTEMPTS, MODE, TOPIC_ID, commit_once

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table


_log = logging.getLogger(__name__)
# Merges of one run: the next one continues.
_MAX_MERGES: Final = 16
_MAX_MERGED_FILES: Final = 512
# Rows of one merge in memory: files may inflate.
_MAX_MERGED_BYTES: Final = 256 * 1024 * 1024
# Where writers of Iceberg put files, below the place of a table.
_OURS: Final = ("data/", "metadata/")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def maintain(table: Table, settings: MaintenanceSettings, now_ms: int) -> dict[str, Any]:
    """Do all that is due."""
    merged = compact(table, settings.target_bytes, settings.min_files)
    expired = expire(table, settings.snapshot_retention_ms, settings.snapshot_max_count, now_ms)
    removed = remove_orphans(table, settings.orphan_min_age_ms, now_ms)
    return {"merged": merged, "expired": expired, "removed": removed}


def compact(table: Table, target_bytes: int, min_files: int) -> int:
    """Merge the small files of each partition of the table that has enough of them. Return how many went."""
    merged = 0
    for tasks in _groups(table, target_bytes, min_files)[:_MAX_MERGES]:
        merged += _merge(table, tasks)
    return merged


def _groups(table: Table, target_bytes: int, min_files: int) -> list[list[FileScanTask]]:
    """Files to merge, by partition of the table, in the order of their names, up to the target."""
    small: dict[Any, list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        file = task.file
        if not task.delete_files and file.file_size_in_bytes < target_bytes * 3 // 4:
            # Those of an earlier partitioning get the present one.
            is_current = file.spec_id == table.metadata.default_spec_id
            small[repr(file.partition) if is_current else ""].append(task)
    groups: list[list[FileScanTask]] = []
    for tasks in small.values():
        if len(tasks) < min_files:
            continue
        tasks.sort(key=lambda each: each.file.file_path)
        group: list[FileScanTask] = []
        size = 0
        for task in tasks:
            size += task.file.file_size_in_bytes
            if group and (size > target_bytes or len(group) >= _MAX_MERGED_FILES):
                groups.append(group)
                group, size = [], task.file.file_size_in_bytes
            group.append(task)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def _merge(table: Table, tasks: list[FileScanTask]) -> int:
    import pyarrow as pa
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files

    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    parts: list[pa.Table] = []
    for task in tasks:
        parts.append(scan.to_table([task]))
        if sum(each.nbytes for each in parts) > _MAX_MERGED_BYTES:
            break
    tasks = tasks[: len(parts)]
    if len(tasks) < 2:
        return 0
    rows = pa.concat_tables(parts, promote_options="permissive")
    by = ("partition", "key", "offset") if table.properties.get(MODE) == "latest" else ("partition", "offset")
    rows = rows.sort_by([(name, "ascending") for name in by])
    files = list(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))
    before = sum(each.file.record_count for each in tasks)
    assert sum(each.record_count for each in files) == rows.num_rows == before, (rows.num_rows, before)
    replaced = [each.file for each in tasks]
    for attempt in range(MAX_ATTEMPTS):
        if attempt:
            pause_thread(0.05 * 2 ** min(attempt, 5))
            table.refresh()
        # Those of a plan may be gone even at the first attempt, if an earlier merge of it had to refresh.
        present = {each.file.file_path for each in table.scan().plan_files()}
        if not all(each.file_path in present for each in replaced):
            break  # another program has rewritten them
        if _replace(table, replaced, files):
            return len(replaced)
    for each in files:
        table.io.delete(each.file_path)
    return 0


def _replace(table: Table, replaced: list[DataFile], files: list[DataFile]) -> bool:
    noted = {OFFSETS: offsets_text(committed_offsets(table.metadata)), **noted_times(table.metadata)}
    transaction = table.transaction()
    summary = {**noted, TOPIC_ID: table.properties.get(TOPIC_ID, "")}
    with transaction.update_snapshot(snapshot_properties=summary).overwrite() as overwrite:
        for each in replaced:
            overwrite.delete_data_file(each)
        for each in files:
            overwrite.append_data_file(each)
    return commit_once(table, transaction, overwrite.snapshot_id)


def expire(table: Table, retention_ms: int, max_count: int, now_ms: int) -> int:
    """Have the snapshots go that are older, or more, than is kept. Return how many went."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

    snapshots = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms)
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [
        each.snapshot_id
        for index, each in enumerate(snapshots)
        if each.snapshot_id not in kept
        and (each.timestamp_ms < now_ms - retention_ms or index < len(snapshots) - max_count)
    ]
    if not old:
        return 0
    # The current snapshot may be one of another program, and the offsets in a parent that goes now.
    noted = {OFFSETS: offsets_text(committed_offsets(table.metadata)), **noted_times(table.metadata)}
    unchanged = AssertRefSnapshotId.model_validate(
        {"ref": "main", "snapshot-id": table.metadata.current_snapshot_id}
    )
    try:
        with table.transaction() as transaction:
            transaction._stage((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}),), (unchanged,))
            transaction.set_properties(noted)
    except CommitFailedException:
        return 0  # the next run
    return len(old)


def remove_orphans(table: Table, min_age_ms: int, now_ms: int, *, dry_run: bool = False) -> int:
    """Remove old files in the table's place that no snapshot has. Return how many went."""
    from pyarrow.fs import FileSelector, FileType

    location = table.metadata.location
    if location != table.properties.get(LOCATION):
        return 0  # the catalog, or another program, has chosen the place, and others may share it
    # What is listed before the metadata are read, and is in none of them, was no part of the table since.
    io: Any = table.io
    scheme, netloc, path = io.parse_location(location, io.properties)
    listed = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, recursive=True))
    table.refresh()
    used = {io.parse_location(each, io.properties)[2] for each in _used_files(table)}
    newest = _EPOCH + timedelta(milliseconds=now_ms - min_age_ms)
    removed = 0
    for info in listed:
        if info.type is not FileType.File or info.mtime is None or info.mtime >= newest:
            continue
        if info.path not in used and info.path.startswith(_OURS, len(path) + 1):
            removed += 1
            if not dry_run:
                io.delete(f"{scheme}://{info.path}")
    return removed


def _used_files(table: Table) -> set[str]:
    metadata = table.metadata
    used = {table.metadata_location, *(each.metadata_file for each in metadata.metadata_log)}
    used |= {each.statistics_path for each in metadata.statistics}
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        used.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                used |= {entry.data_file.file_path for entry in entries}
    return used | seen


@dataclass(slots=True)
class RowCheck:
    """What the rows of a table say. `last` is the greatest offset, by partition."""

    rows: int = 0
    duplicates: int = 0
    last: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    offsets_are_lost: bool = False


def check_rows(table: Table) -> RowCheck:
    """Look at all rows of a table: whether a record is there twice, and how far each partition is."""
    found = RowCheck()
    try:
        found.offsets = committed_offsets(table.metadata)
    except TableError:
        found.offsets_are_lost = True
    rows = table.scan(selected_fields=("partition", "offset")).to_arrow()
    found.rows = rows.num_rows
    counts = [("offset", "max"), ("offset", "count"), ("offset", "count_distinct")]
    for each in rows.group_by("partition").aggregate(counts).to_pylist():
        found.last[each["partition"]] = each["offset_max"]
        found.duplicates += each["offset_count"] - each["offset_count_distinct"]
    if table.properties.get(MODE) == "latest":
        found.duplicates += _repeated_keys(table)
    found.offsets_are_lost |= any(partition not in found.offsets for partition in found.last)
    return found


def _repeated_keys(table: Table) -> int:
    """How many rows of a table of latest values have a key that another row has, too."""
    rows = table.scan(row_filter="key is not null", selected_fields=("partition", "key")).to_arrow()
    return int(rows.num_rows - rows.group_by(["partition", "key"]).aggregate([]).num_rows)


def repair_offsets(table: Table) -> dict[int, int]:
    """Make the offsets of the table from its rows, and note them. Return them."""
    found = check_rows(table)
    offsets = dict(found.offsets)
    for partition, last in found.last.items():
        offsets[partition] = max(offsets.get(partition, 0), last + 1)
    text = offsets_text(offsets)
    transaction = table.transaction()
    summary = {OFFSETS: text, TOPIC_ID: table.properties.get(TOPIC_ID, "")}
    with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
        pass
    transaction.set_properties({OFFSETS: text})
    if not commit_once(table, transaction, append.snapshot_id):
        raise TableError("the table was changed meanwhile: try again")
    return offsets
