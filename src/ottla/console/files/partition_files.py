"""The files of a partition as the console shows them: segments with their indexes, epochs, producers; and the
content of each. All of it runs in the pool, is bounded, and changes nothing.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, Final

from ottla.console.messages.secrets import hide_secrets
from ottla.log.dump.dump import NotReadable, Row, RowKind, batch_headers, dump_file, file_kind
from ottla.log.dump.internal_records import DECODABLE_TOPICS
from ottla.log.leader_epoch_cache import LEADER_EPOCH_CHECKPOINT
from ottla.log.segment.file_names import INDEX, LOG, SEGMENT_KINDS, SNAPSHOT, parse_segment_file
from ottla.log.segment.offset_index import ENTRY as OFFSET_ENTRY
from ottla.protocol.errors import KafkaError
from ottla.records.batch import BatchHeader
from ottla.runtime.disk import Disk

MAX_FILES: Final = 10_000
MAX_PRODUCERS: Final = 200
MAX_EPOCHS: Final = 1_000
MAX_ROWS: Final = 1_000
MAX_TEXT: Final = 4_096
# What is read over at most to come to the rows that are asked for.
_MAX_SKIPPED: Final = 2_000_000


def partition_files(disk: Disk, directory: str) -> dict[str, Any]:
    """The files of a partition's directory, by segments; the newest producers and the epochs."""
    names = sorted(disk.list_dir(directory))
    problems: list[str] = []
    if len(names) > MAX_FILES:
        problems.append(f"{len(names)} files, of which the last {MAX_FILES} are shown")
        names = names[-MAX_FILES:]
    by_segment: dict[int, list[dict[str, Any]]] = {}
    others: list[dict[str, Any]] = []
    for name in names:
        path = posixpath.join(directory, name)
        try:
            if disk.is_dir(path):
                continue
            file = {"name": name, "kind": shown_kind(name), "sizeBytes": disk.size(path)}
        except OSError:
            continue  # it is gone by now
        parsed = parse_segment_file(name)
        if parsed is not None and parsed.kind in SEGMENT_KINDS and not parsed.suffix:
            by_segment.setdefault(parsed.offset, []).append(file)
        else:
            others.append(file)
    bases = sorted(by_segment)
    segments = [
        _segment(disk, directory, base, by_segment[base], following)
        for base, following in zip_longest(bases, bases[1:])
    ]
    return {
        "directory": directory,
        "sizeBytes": sum(each["sizeBytes"] for each in segments),
        "segments": segments,
        "files": others,
        "epochs": _epochs(disk, directory, names),
        "producers": _producers(disk, directory, names),
        "problems": problems,
    }


def shown_kind(name: str) -> str:
    kind = file_kind(name)
    return "other" if kind is None else kind.lstrip(".").removeprefix("-") or "other"


def _segment(
    disk: Disk,
    directory: str,
    base: int,
    files: list[dict[str, Any]],
    following: int | None,
) -> dict[str, Any]:
    modified = end = None
    try:
        modified = disk.mtime_ms(posixpath.join(directory, f"{base:020d}{LOG}"))
        end = end_offset(disk, directory, base) if following is None else following
    except OSError:
        pass
    return {
        "baseOffset": base,
        "endOffset": end,
        "active": following is None,
        "sizeBytes": sum(each["sizeBytes"] for each in files if each["kind"] == "log"),
        "modifiedMs": modified,
        "files": files,
    }


def indexed_position(disk: Disk, directory: str, base: int, offset: int) -> int:
    """A position in a segment at or before a batch, by its index; 0 if the index does not help."""
    path = posixpath.join(directory, f"{base:020d}{INDEX}")
    found = 0
    try:
        file = disk.open(path, writable=False)
    except OSError:
        return 0
    try:
        low, high = 0, file.size() // OFFSET_ENTRY.size
        while low < high:
            middle = (low + high) // 2
            data = file.pread(OFFSET_ENTRY.size, middle * OFFSET_ENTRY.size)
            if len(data) < OFFSET_ENTRY.size:
                high = middle
                continue
            relative, position = OFFSET_ENTRY.unpack(data)
            # Space that was allocated in advance is zeros.
            if (relative, position) == (0, 0) or base + relative > offset:
                high = middle
            else:
                low, found = middle + 1, position
    finally:
        file.close()
    return found


def batches_from(
    disk: Disk, directory: str, base: int, position: int
) -> Iterator[tuple[int, BatchHeader | KafkaError]]:
    """The batches of a segment from a position on that an index has named."""
    file = disk.open(posixpath.join(directory, f"{base:020d}{LOG}"), writable=False)
    try:
        yield from batch_headers(file, position)
    finally:
        file.close()


def end_offset(disk: Disk, directory: str, base: int) -> int:
    """The offset after the last batch of a segment."""
    end = base
    start = indexed_position(disk, directory, base, 2**62)
    for _, header in islice(batches_from(disk, directory, base, start), _MAX_SKIPPED):
        if isinstance(header, BatchHeader):
            end = header.last_offset + 1
    return end


def _epochs(disk: Disk, directory: str, names: list[str]) -> list[dict[str, Any]]:
    if LEADER_EPOCH_CHECKPOINT not in names:
        return []
    rows = _entries(disk, posixpath.join(directory, LEADER_EPOCH_CHECKPOINT), MAX_EPOCHS)
    return [{"epoch": each["leaderEpoch"], "startOffset": each["startOffset"]} for each in rows]


def _producers(disk: Disk, directory: str, names: list[str]) -> list[dict[str, Any]]:
    """The producers of the newest snapshot."""
    snapshots = [name for name in names if name.endswith(SNAPSHOT)]
    if not snapshots:
        return []
    return [
        {
            "producerId": each["producerId"],
            "producerEpoch": each["producerEpoch"],
            "lastSequence": each["lastSequence"],
            "lastOffset": each["lastOffset"],
            "lastTimestamp": each["lastTimestamp"],
            "currentTxnFirstOffset": each["currentTxnFirstOffset"],
        }
        for each in _entries(disk, posixpath.join(directory, snapshots[-1]), MAX_PRODUCERS)
    ]


def _entries(disk: Disk, path: str, most: int) -> list[dict[str, Any]]:
    try:
        rows = islice(dump_file(disk, path), most)
        return [row.data for row in rows if row.kind is RowKind.ENTRY]
    except (OSError, NotReadable):
        return []


@dataclass(frozen=True, slots=True)
class FileRows:
    rows: list[dict[str, Any]]
    next: int | None


def read_rows(
    disk: Disk,
    directory: str,
    name: str,
    *,
    position: int,
    after: int,
    limit: int,
    records: bool,
    topic: str,
) -> FileRows:
    """The rows of a file from the row with the number `after` on, in a log counted from the batch at
    `position`. FileNotFoundError if the directory has no such file; NotReadable if it is no file of a
    partition.
    """
    if name not in disk.list_dir(directory):
        raise FileNotFoundError(name)
    path = posixpath.join(directory, name)
    decode = topic if topic in DECODABLE_TOPICS else None
    if after > _MAX_SKIPPED:
        raise NotReadable(
            f"only the first {_MAX_SKIPPED} rows of a file are shown here; use `ottla log dump`"
        )
    dumped = dump_file(disk, path, records=records, decode=decode, position=position)
    found = list(islice(dumped, after, after + limit + 1))
    rows = [{"kind": row.kind.value, "data": _flat(row)} for row in found[:limit]]
    return FileRows(rows, after + limit if len(found) > limit else None)


def _flat(row: Row) -> dict[str, Any]:
    data = row.data
    if isinstance(decoded := data.get("decoded"), dict) and isinstance(decoded.get("value"), dict):
        data = {**data, "decoded": {**decoded, "value": hide_secrets(decoded["value"])}}
    return {name: _plain(value) for name, value in data.items()}


def _plain(value: Any) -> Any:
    """A value as JSON has it; data that are no text as hexadecimal digits."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value[:MAX_TEXT])
        try:
            text = data.decode()
            return text if text.isprintable() else data.hex()
        except UnicodeDecodeError:
            return data.hex()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=_plain, ensure_ascii=False)[:MAX_TEXT]
    return str(value)[:MAX_TEXT]
