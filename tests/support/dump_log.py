"""What Apache Kafka's `DumpLogSegments` says of a partition's files, as objects.

The tool is the judge of our files, so nothing it says is dropped: a line that is neither data nor one of the
remarks known to be harmless counts as a complaint. Harmless is only that the first offset of a segment is not
zero, and, where the test says that the log was compacted, that offsets have gaps and that the time index
names a batch that stays without records (the tool compares it with their timestamps, Kafka's cleaner as ours
with the batch's). Keys and values must be printable text, as the tool prints them as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.java_driver import JavaDriver

TOOL = "org.apache.kafka.tools.DumpLogSegments"
DUMPED_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

_PAIR = re.compile(r"(\w+): (\[.*?\]|\S+)")
_HARMLESS = re.compile(
    r"^(Log starting offset|Snapshot end offset): |^KRaft bootstrap | (passed sanity check|is empty)\.$"
)
# What a heading announces follows in lines of their own.
_HEADING = re.compile(r"Non-consecutive offsets in |Found timestamp mismatch in ")
_EMPTY_BATCH = re.compile(r"  Index timestamp: \d+, log timestamp: -1")
_GAP = re.compile(r"  (-?\d+) is followed by (\d+)")


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    offset: int
    timestamp: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: tuple[str, ...]
    key: str | None
    payload: str | None
    control: str | None
    coordinator_epoch: int | None


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    transactional: bool
    control: bool
    delete_horizon_ms: int | None
    position: int
    timestamp_type: str
    max_timestamp: int
    size: int
    codec: str
    valid: bool
    records: list[DumpedRecord] = field(default_factory=list)


@dataclass(slots=True)
class Dump:
    """All that the tool printed: batches by log file, entries by index and snapshot file, complaints."""

    batches: dict[str, list[DumpedBatch]] = field(default_factory=dict)
    entries: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    @property
    def all_batches(self) -> list[DumpedBatch]:
        return [batch for name in sorted(self.batches) for batch in self.batches[name]]

    @property
    def records(self) -> list[DumpedRecord]:
        """The data records, in the order of the log."""
        return [record for batch in self.all_batches if not batch.control for record in batch.records]

    @property
    def markers(self) -> list[DumpedRecord]:
        return [record for batch in self.all_batches if batch.control for record in batch.records]


def files_of(directory: Path) -> list[Path]:
    """The files of a partition that the tool can read, in order."""
    return sorted(each for each in directory.iterdir() if each.suffix in DUMPED_SUFFIXES)


def dump(driver: JavaDriver, files: Iterable[Path], *options: str, compacted: bool = False) -> Dump:
    """Runs the tool with deep iteration over `files` and reads what it prints."""
    names = [str(each) for each in files]
    result = driver.tool(TOOL, "--print-data-log", *options, "--files", ",".join(names))
    found = Dump()
    _read_output(result.out.splitlines(), found)
    _read_remarks(result.err.splitlines(), found, compacted=compacted)
    return found


def check_directory(driver: JavaDriver, directory: Path, *, compacted: bool = False) -> Dump:
    """Everything the tool can check in a partition's folder; fails on any complaint, returns the contents."""
    files = files_of(directory)
    indexes = [each for each in files if each.suffix in (".index", ".timeindex")]
    for option in ("--index-sanity-check", "--verify-index-only"):
        checked = dump(driver, indexes, option, compacted=compacted)
        assert checked.complaints == [], (option, directory)
    found = dump(driver, files, "--deep-iteration", compacted=compacted)
    assert found.complaints == [], directory
    return found


def _read_output(lines: Sequence[str], found: Dump) -> None:
    name = ""
    for line in lines:
        if line.startswith("Dumping "):
            name = line.rsplit("/", 1)[-1]
            if name.endswith((".log", ".checkpoint")):
                found.batches[name] = []
            else:
                found.entries[name] = []
        elif line.startswith("baseOffset: "):
            batch = _batch(line)
            found.batches[name].append(batch)
            if not batch.valid:
                found.complaints.append(f"{name}: {line}")
        elif line.startswith("| offset: "):
            found.batches[name][-1].records.append(_record(line))
        elif line.startswith(("offset: ", "timestamp: ", "version: ", "producerId: ")):
            found.entries[name].append({key: _number(value) for key, value in _PAIR.findall(line)})
        elif line and _HARMLESS.search(line) is None:
            found.complaints.append(f"{name}: {line}")


def _read_remarks(lines: Sequence[str], found: Dump, *, compacted: bool) -> None:
    for line in lines:
        gap = _GAP.fullmatch(line)
        if gap is not None:
            harmless = compacted or int(gap[1]) == -1
        else:
            harmless = _HEADING.match(line) is not None or (
                compacted and _EMPTY_BATCH.fullmatch(line) is not None
            )
        if not harmless:
            found.complaints.append(line)


def _batch(line: str) -> DumpedBatch:
    values = dict(_PAIR.findall(line))
    horizon = re.search(r"deleteHorizonMs: OptionalLong\[(\d+)\]", line)
    timestamp = re.search(r"(CreateTime|LogAppendTime|NoTimestampType): (-?\d+)", line)
    assert timestamp is not None, line
    return DumpedBatch(
        base_offset=int(values["baseOffset"]),
        last_offset=int(values["lastOffset"]),
        count=int(values["count"]),
        base_sequence=int(values["baseSequence"]),
        last_sequence=int(values["lastSequence"]),
        producer_id=int(values["producerId"]),
        producer_epoch=int(values["producerEpoch"]),
        leader_epoch=int(values["partitionLeaderEpoch"]),
        transactional=values["isTransactional"] == "true",
        control=values["isControl"] == "true",
        delete_horizon_ms=int(horizon[1]) if horizon is not None else None,
        position=int(values["position"]),
        timestamp_type=timestamp[1],
        max_timestamp=int(timestamp[2]),
        size=int(values["size"]),
        codec=values["compresscodec"],
        valid=values["isvalid"] == "true",
    )


def _record(line: str) -> DumpedRecord:
    # The contents come last and may hold anything, so what precedes them is read apart from them.
    head, key, payload = line, None, None
    if (found := re.search(r" headerKeys: \[.*?\](?= key: | payload: |$)", line)) is not None:
        head, contents = line[: found.end()], line[found.end() :]
        matched = re.fullmatch(r"(?: key: (?P<key>.*?))?(?: payload: (?P<payload>.*))?", contents, re.DOTALL)
        assert matched is not None, line
        key, payload = matched["key"], matched["payload"]
    values = dict(_PAIR.findall(head))
    timestamp = re.search(r"(?:CreateTime|LogAppendTime|NoTimestampType): (-?\d+)", head)
    assert timestamp is not None, line
    header_keys = values["headerKeys"][1:-1]
    return DumpedRecord(
        offset=int(values["offset"]),
        timestamp=int(timestamp[1]),
        key_size=int(values["keySize"]),
        value_size=int(values["valueSize"]),
        sequence=int(values["sequence"]),
        header_keys=tuple(header_keys.split(",")) if header_keys else (),
        key=key,
        payload=payload,
        control=values.get("endTxnMarker"),
        coordinator_epoch=int(values["coordinatorEpoch"]) if "coordinatorEpoch" in values else None,
    )


def _number(text: str) -> int:
    matched = re.search(r"-?\d+", text)
    # An OptionalLong without a value is Kafka's -1.
    return int(matched[0]) if matched is not None else -1
