"""The small text files beside the data: checkpoints of offsets, topic ids, the mark of a clean shutdown.

All are replaced as a whole, so that a crash leaves the old content or the new one. Kafka's formats: a
checkpoint is a version, the number of entries and one entry per line; `partition.metadata` has lines of keys
and values. The caller decides what a damaged checkpoint means: none of them holds data that the log itself
does not.

One bit may turn a digit into another, and a log start into one that deletes records. So each entry ends with
its checksum, in blanks, which Kafka does not read: sixteen spaces and tabs. An entry without any was written
by Kafka, or by hand, and is not checked.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ottla.protocol.names import TopicPartition, parse_uuid, uuid_text
from ottla.runtime.disk import Disk, read_file, write_file
from ottla.runtime.pool import thread_lock

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
DAMAGE_REPORT = "damage-report"
TIERED_LOG = "tiered-log"
"""An empty file in the directory of a log whose first records may be in remote storage only."""
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

_VERSION = 0
# Each byte as eight blanks.
_BLANKS = tuple("".join(" \t"[byte >> bit & 1] for bit in range(8)) for byte in range(256))
_MAX_OFFSET = (1 << 63) - 1


class CorruptCheckpoint(Exception):
    """The content of the file is damaged."""


def encode_entries(lines: Iterable[str], *, sealed: bool = True) -> bytes:
    """A file of these lines; `sealed`: with their checksums."""
    entries = [line + _seal(line) if sealed else line for line in lines]
    return "\n".join([str(_VERSION), str(len(entries)), *entries, ""]).encode()


def _seal(line: str) -> str:
    """The checksum of a line, in blanks."""
    checksum = zlib.crc32(line.encode())
    return _BLANKS[checksum & 0xFF] + _BLANKS[checksum >> 8 & 0xFF]


def _is_whole(line: str) -> bool:
    """Whether a line has no checksum, or the right one."""
    entry = line.rstrip()
    return entry == line or entry + _seal(entry) == line


def decode_entries(data: bytes, path: str) -> list[list[str]]:
    """The entries, each split at its blanks. An empty file has none: Kafka makes the file before it writes
    it.
    """
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise CorruptCheckpoint(f"{path} is not text") from None
    if lines and not lines[-1]:
        lines.pop()
    if not lines:
        return []
    if lines[0] != str(_VERSION):
        raise CorruptCheckpoint(f"{path} begins with {lines[0][:40]!r}, not with the version {_VERSION}")
    entries = [line.split() for line in lines[2:]]
    if len(lines) > 1 and lines[1] != str(len(entries)):
        raise CorruptCheckpoint(f"{path} has {len(entries)} entries, but says that it has {lines[1][:40]!r}")
    for line in lines[2:]:
        if not _is_whole(line):
            raise CorruptCheckpoint(
                f"{path} has the entry {line.rstrip()[:80]!r}, but its checksum is another's"
            )
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return encode_entries(_offset_line(tp, at) for tp, at in offsets.items())


def _offset_line(tp: TopicPartition, offset: int) -> str:
    return f"{tp.topic} {tp.partition} {offset}"


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    write_file(disk, path, encode_offsets(offsets))


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The checkpointed offsets; none where there is no file, CorruptCheckpoint where it is damaged."""
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return {}
    offsets = {}
    for entry in decode_entries(data, path):
        try:
            topic, partition, text = entry
            offset = int(text)
            if not 0 <= offset <= _MAX_OFFSET:
                raise ValueError(f"there is no offset {offset}")
            offsets[TopicPartition(topic, int(partition))] = offset
        except ValueError:
            raise CorruptCheckpoint(f"{path} has the entry {' '.join(entry)[:80]!r}") from None
    return offsets


class OffsetCheckpoint:
    """A checkpoint of offsets, and what is known to be in it after a crash.

    Most writes are periodic and may take their time: after `begin` the content is collected, `stage` notes
    it, `StagedOffsets.write` puts it beside the file and `StagedOffsets.sync_name` makes the change of names
    durable, both in any thread, with `install` between them on the event loop. Those who do so hold the lock
    `staging`, or they would overtake each other again and again. `write` does it all at once, for those that
    cannot wait, and wins over what is staged or collected.
    """

    __slots__ = ("_disk", "_durable", "_version", "offsets", "path", "staging")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        # What the file holds.
        self.offsets: dict[TopicPartition, int] = {}
        # True if a crash would not bring an older content back.
        self._durable = True
        self._version = 0
        self.staging = asyncio.Lock()

    def load(self) -> None:
        """Read the file; CorruptCheckpoint where it is damaged, which then counts as empty."""
        self.offsets = {}
        self.offsets = read_offsets(self._disk, self.path)

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the content, durably. Should that fail, the file may hold either."""
        self.drop_staged()
        if self._durable and offsets == self.offsets:
            return
        self._durable = False
        write_offsets(self._disk, self.path, offsets)
        self.offsets = dict(offsets)
        self._durable = True

    def drop_staged(self) -> None:
        """Prevent the installation of content that was staged before a change that it does not contain."""
        self._version += 1

    def begin(self) -> int:
        """Begin to collect other content, which may take several turns; return the version to stage it as."""
        self._version += 1
        return self._version

    def is_newest(self, version: int) -> bool:
        """Whether nothing was written since that content began to be collected."""
        return version == self._version

    def stage(self, offsets: dict[TopicPartition, int], version: int) -> StagedOffsets | None:
        """Begin to replace the content; None if that is what the file holds, or if something was written
        since the content began to be collected.
        """
        if version != self._version or (self._durable and offsets == self.offsets):
            return None
        return StagedOffsets(self._disk, self.path, offsets, version)

    def install(self, staged: StagedOffsets) -> bool:
        """Give what is staged the file's name, unless something newer was written since."""
        if staged.version != self._version:
            return False
        self._durable = False
        self._disk.rename(staged.temporary, self.path)
        self.offsets = staged.offsets
        return True

    def on_synced(self, staged: StagedOffsets) -> None:
        if staged.version == self._version:
            self._durable = True

    def may_hold_above(self, partition: TopicPartition, offset: int) -> bool:
        """True if the file, or an older content that a crash may bring back, can be above `offset`."""
        return not self._durable or self.offsets.get(partition, 0) > offset

    def holds(self, partition: TopicPartition, offset: int) -> bool:
        """True if the file holds exactly this offset, also after a crash."""
        return self._durable and self.offsets.get(partition) == offset

    def may_hold_below(self, partition: TopicPartition, offset: int) -> bool:
        return not self._durable or self.offsets.get(partition, 0) < offset


@dataclass(frozen=True, slots=True)
class StagedOffsets:
    disk: Disk
    path: str
    offsets: dict[TopicPartition, int]
    version: int

    @property
    def temporary(self) -> str:
        # With the version in its name: another one may be written at the same time.
        return f"{self.path}.{self.version}.staged.tmp"

    def drop(self) -> None:
        """Remove what was written and is not installed."""
        with suppress(FileNotFoundError):
            self.disk.unlink(self.temporary)

    def write(self) -> None:
        file = self.disk.open(self.temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(encode_offsets(self.offsets), 0)
            file.sync()
        finally:
            file.close()

    def sync_name(self) -> None:
        self.disk.sync_dir(posixpath.dirname(self.path))


class LogWithHighWatermark(Protocol):
    topic_partition: TopicPartition
    high_watermark: int
    is_closed: bool


class HighWatermarkCheckpoint:
    """The high watermarks of a directory's logs, collected and written by what has moved.

    A log whose high watermark moves puts itself into `moved`; one that stands still costs nothing. A lost
    write costs a follower a longer truncation check, and never a record. But a high watermark of a former log
    of the same name would count records as committed that are not, so it goes before a new log has records.
    """

    __slots__ = (
        "_changed",
        "_disk",
        "_gone",
        "_is_written",
        "_known",
        "_lines",
        "_staged",
        "_writing",
        "moved",
        "path",
    )

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        # Logs whose high watermark is not in the file, in the order in which they moved.
        self.moved: dict[LogWithHighWatermark, None] = {}
        # What is to be staged next: logs that are gone, and then high watermarks.
        self._gone: list[TopicPartition] = []
        self._changed: dict[TopicPartition, int] = {}
        # What was staged and not written, in order: any thread that writes takes all of it.
        self._staged: deque[tuple[list[TopicPartition], dict[TopicPartition, int]]] = deque()
        self._writing = thread_lock()
        # The lines of the file, as of the last write; only the write itself changes them.
        self._lines: dict[TopicPartition, str] = {}
        self._is_written = True
        # Logs of which the file may have a line.
        self._known: set[TopicPartition] = set()

    def load(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Begin with what the file holds."""
        self._lines.update((tp, _offset_line(tp, at)) for tp, at in offsets.items())
        self._known.update(offsets)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop logs that are not in this directory any more, and are closed."""
        for tp in partitions:
            self._changed.pop(tp, None)
            self._gone.append(tp)

    def knows(self, partition: TopicPartition) -> bool:
        """Whether the file may have a high watermark of this log."""
        return partition in self._known

    def on_forgotten(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that a write ended which was staged after these were dropped."""
        self._known.difference_update(partitions)

    def collect(self, limit: int) -> bool:
        """Read the high watermarks of so many logs that have moved; True if there are more."""
        for log in list(islice(self.moved, limit)):
            del self.moved[log]
            if not log.is_closed:
                self._changed[log.topic_partition] = log.high_watermark
                self._known.add(log.topic_partition)
        return bool(self.moved)

    def stage(self) -> Callable[[], None] | None:
        """Return what writes the high watermarks that were collected, in any thread; None if the file holds
        them.
        """
        if not self._changed and not self._gone and self._is_written:
            return None
        self._staged.append((self._gone, self._changed))
        self._gone, self._changed = [], {}
        self._is_written = False
        return self._write

    def _write(self) -> None:
        with self._writing:
            self._is_written = False
            while self._staged:
                gone, changed = self._staged.popleft()
                for tp in gone:
                    self._lines.pop(tp, None)
                self._lines.update((tp, _offset_line(tp, at)) for tp, at in changed.items())
            write_file(self._disk, self.path, encode_entries(self._lines.values()))
            self._is_written = not self._staged


def encode_topic_id(topic_id: bytes) -> bytes:
    return f"version: {_VERSION}\ntopic_id: {uuid_text(topic_id)}".encode()


def write_topic_id(disk: Disk, path: str, topic_id: bytes) -> None:
    write_file(disk, path, encode_topic_id(topic_id))


def read_topic_id(disk: Disk, path: str) -> bytes | None:
    """The topic id of a `partition.metadata`; None where there is no file."""
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        return None
    values = dict(line.partition(":")[::2] for line in data.decode("utf-8", "replace").splitlines())
    if values.get("version", "").strip() != str(_VERSION):
        raise CorruptCheckpoint(f"{path} is not of version {_VERSION}")
    try:
        return parse_uuid(values.get("topic_id", "").strip())
    except ValueError as error:
        raise CorruptCheckpoint(str(error)) from None


def write_damage_report(disk: Disk, dir: str, report: str) -> None:
    """Note in a partition's directory that its log is damaged: the next load checks every batch of it, even
    if the log directory was shut down cleanly.
    """
    write_file(disk, posixpath.join(dir, DAMAGE_REPORT), f"{report}\n".encode())


def read_damage_report(disk: Disk, dir: str) -> str | None:
    """Why the log in a partition's directory is not served; None if it is not known to be damaged."""
    try:
        return read_file(disk, posixpath.join(dir, DAMAGE_REPORT)).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None


def mark_tiered_log(disk: Disk, dir: str) -> None:
    """Note that records before the first segment of a log are not missing, but in remote storage. The caller
    syncs the name.
    """
    disk.open(posixpath.join(dir, TIERED_LOG), create=True).close()


def is_marked_tiered_log(disk: Disk, dir: str) -> bool:
    return disk.exists(posixpath.join(dir, TIERED_LOG))


def write_clean_shutdown(disk: Disk, dir: str, broker_epoch: int) -> None:
    """Write the mark that every file of the directory is complete, with the epoch of the broker."""
    payload = json.dumps({"version": str(_VERSION), "broker_epoch": str(broker_epoch)}, separators=(",", ":"))
    write_file(disk, posixpath.join(dir, CLEAN_SHUTDOWN), payload.encode())


def read_clean_shutdown(disk: Disk, dir: str) -> int | None:
    """The broker epoch of the last shutdown if that was clean, -1 if it was clean but has no epoch."""
    try:
        payload = json.loads(read_file(disk, posixpath.join(dir, CLEAN_SHUTDOWN)))
        return int(payload["broker_epoch"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return -1
