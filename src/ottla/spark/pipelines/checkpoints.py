"""Read the checkpoints of a pipeline's flows: how far each has read, from the files that Spark keeps.

Under the project's storage every streaming flow has a directory, `_checkpoints/<target>/<flow>/<number>`; the
highest number is the one in use. In it, `offsets/N` says what batch N reads and `commits/N` that it is done.
A batch with the first and without the second is run again, with the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.spark.lag import positions
from ottla.spark.pipelines.progress import short_name
from ottla.spark.pipelines.project import CHECKPOINTS, Project, ProjectError

_MAX_DEPTH: Final = 6
_MAX_FILE: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a flow. `batch` is the last one that is done, None before the first; `offsets` are
    where the next one begins to read, by topic and partition, for those of its sources that read topics.
    """

    flow: str
    target: str
    number: int
    batch: int | None
    unfinished: int | None
    timestamp_ms: int | None
    offsets: dict[tuple[str, int], int]


def read_checkpoints(project: Project) -> list[Checkpoint]:
    """The checkpoint in use of every streaming flow, by name."""
    storage = project.storage_path
    if storage is None:
        raise ProjectError(f"{project.spec}: checkpoints in {project.storage} can only be read by Spark")
    root = storage / CHECKPOINTS
    found = [_checkpoint(root, directory) for directory in _in_use(root)]
    return sorted(found, key=lambda checkpoint: (checkpoint.flow, checkpoint.target))


def sink_checkpoints(root: Path) -> dict[str, int]:
    """The checkpoints of the flows into sinks, `SINK/FLOW` below `root`, with the number in use of each.
    Those of tables are deeper, below their catalog and database.
    """
    found: dict[str, int] = {}
    for flow in root.glob("*/*"):
        numbers = [each for each in flow.glob("[0-9]*") if each.name.isdecimal()]
        if any((each / "offsets").is_dir() for each in numbers):
            found[str(flow.relative_to(root))] = max(int(each.name) for each in numbers)
    return found


@dataclass(frozen=True, slots=True)
class FlowCheckpoint:
    """The checkpoint of a flow. One that was begun again and has planned nothing has no batches."""

    directory: Path
    has_batches: bool


def flow_checkpoints(root: Path) -> dict[tuple[str, str], FlowCheckpoint]:
    """The checkpoints of all flows, by the names of target and flow in small letters, without databases."""
    found: dict[tuple[str, str], FlowCheckpoint] = {}
    for flow in {directory.parent for directory in _in_use(root)}:
        newest = max(
            (each for each in flow.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name)
        )
        batches = newest / "offsets"
        has_batches = batches.is_dir() and any(each.name.isdecimal() for each in batches.iterdir())
        found[flow.parent.name.lower(), flow.name.lower()] = FlowCheckpoint(flow, has_batches)
    return found


def begin_checkpoints(root: Path, numbers: Mapping[str, int]) -> None:
    """Let flows begin again, with a checkpoint of this number each, as Spark does in a full refresh. One that
    has got there already is left alone.
    """
    known = sink_checkpoints(root)
    for flow, number in numbers.items():
        if known.get(flow, number) < number:
            (root / flow / str(number)).mkdir()


def _in_use(root: Path) -> Iterator[Path]:
    newest: dict[Path, Path] = {}
    for depth in range(2, _MAX_DEPTH):
        for offsets in root.glob("/".join(["*"] * depth) + "/offsets"):
            directory = offsets.parent
            if directory.name.isdecimal():
                known = newest.get(directory.parent)
                if known is None or int(known.name) < int(directory.name):
                    newest[directory.parent] = directory
    yield from newest.values()


def _checkpoint(root: Path, directory: Path) -> Checkpoint:
    *target, flow, number = directory.relative_to(root).parts
    planned = _last(directory / "offsets")
    done = _last(directory / "commits")
    # While a batch runs, use the offsets of the last one that is done.
    counted = done if done is not None and (directory / "offsets" / str(done)).exists() else planned
    timestamp_ms: int | None = None
    offsets: dict[tuple[str, int], int] = {}
    if counted is not None and done is not None:
        timestamp_ms, offsets = _read(directory / "offsets" / str(counted))
    elif planned is not None:
        timestamp_ms, ends = _read(directory / "offsets" / str(planned))
        offsets = dict.fromkeys(ends, 0)
    return Checkpoint(
        flow=flow,
        target=short_name(".".join(target)),
        number=int(number),
        batch=done,
        unfinished=planned if planned is not None and planned != done else None,
        timestamp_ms=timestamp_ms,
        offsets=offsets,
    )


def _last(directory: Path) -> int | None:
    if not directory.is_dir():
        return None
    return max((int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal()), default=None)


def _read(file: Path) -> tuple[int | None, dict[tuple[str, int], int]]:
    """Parse a file of the offset log: its version, a line about the batch, then a line for each source."""
    if file.stat().st_size > _MAX_FILE:
        raise ProjectError(f"{file} is too large for offsets")
    documents = [_json(line) for line in file.read_text().splitlines()[1:]]
    timestamp_ms: int | None = None
    found: dict[tuple[str, int], int] = {}
    for document in documents:
        if isinstance(document, dict) and "batchTimestampMs" in document:
            timestamp_ms = document["batchTimestampMs"]
        else:
            found |= positions(document) or {}
    return timestamp_ms, found


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # "-": a source without offsets yet
