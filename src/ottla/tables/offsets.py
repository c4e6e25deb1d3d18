"""How far a table has got in each partition of its topic: in the summary of the snapshot that got there.

The newest summary that has the offsets, from the current snapshot back through its parents, is what counts:
so a table that is rolled back to an older snapshot is filled again from there, and a snapshot of another
program, which rewrites files and knows nothing of offsets, changes nothing. Where expiry has removed all that
had them, the property of the table stands in; it is written in the same commits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.tables.errors import TableError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


OFFSETS: Final = "ottla.offsets"
# When each partition was read to its end, in milliseconds; only tables of latest values have it.
READ_TIMES: Final = "ottla.read-times"
# Since when a partition is read from its start and has not got to its end; then it has no time above.
BUILD_TIMES: Final = "ottla.build-times"


def committed_offsets(metadata: TableMetadata) -> dict[int, int]:
    """The offset of the next record to come, by partition; a partition that has none yet is not there."""
    return _newest(metadata, OFFSETS)


def committed_read_times(metadata: TableMetadata) -> dict[int, int]:
    """When each partition was last read up to the end of its log, in wall-clock milliseconds."""
    return _newest(metadata, READ_TIMES)


def committed_build_times(metadata: TableMetadata) -> dict[int, int]:
    """When the partitions that are being built were begun, in wall-clock milliseconds."""
    return _newest(metadata, BUILD_TIMES)


def noted_times(metadata: TableMetadata) -> dict[str, str]:
    """What a commit that changes no row has to say of the times; nothing if the table has none."""
    found = {name: _newest(metadata, name) for name in (READ_TIMES, BUILD_TIMES)}
    return {name: offsets_text(times) for name, times in found.items()} if any(found.values()) else {}


def _newest(metadata: TableMetadata, name: str) -> dict[int, int]:
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    at = metadata.current_snapshot_id
    while at is not None and (snapshot := by_id.pop(at, None)) is not None:
        if snapshot.summary is not None and (text := snapshot.summary.get(name)) is not None:
            return parse_offsets(text)
        at = snapshot.parent_snapshot_id
    if metadata.current_snapshot_id is None:
        return {}
    return parse_offsets(metadata.properties.get(name, "{}"))


def parse_offsets(text: str) -> dict[int, int]:
    """
    >>> parse_offsets('{"0":5,"1":7}')
    {0: 5, 1: 7}
    """
    try:
        return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
    except (AttributeError, TypeError, ValueError):
        raise TableError(
            f"the offsets of the table cannot be read: {text[:80]!r}; run `ottla tables repair`"
        ) from None


def offsets_text(offsets: Mapping[int, int]) -> str:
    """
    >>> offsets_text({1: 7, 0: 5})
    '{"0":5,"1":7}'
    """
    return json.dumps({str(each): offsets[each] for each in sorted(offsets)}, separators=(",", ":"))
