"""What a micro-batch was made of: the offsets that it read, and the version of the code that read them.

Spark writes the offsets of a batch into its checkpoint before it runs the batch: `offsets/N` says where batch
N ends, and `offsets/N-1` where it begins. The driver reads both when it commits, and the decision keeps them.
That needs a checkpoint in a directory of the driver's machine; of one elsewhere the inputs are not known.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

CODE_VERSION: Final = "OTTLA_CODE_VERSION"
"""The environment variable with the version of the code; the option `codeVersion` takes precedence."""
MAX_INPUTS: Final = 4_000
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_TEXT: Final = 200
MAX_SHOWN: Final = 8
NAMED_BY_ROWS: Final = "the topics that its rows name"
BEGAN_AT: Final = "@from"
"""The name under which our source keeps where it began to read partitions that are new in a batch."""
TOPIC_IDS: Final = "@ids"
"""The name under which it keeps the topic ids."""
# All that it keeps beside the topics has names that no topic can have.
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class InputRange:
    """Records of one partition that a batch has read, `start` to `end` without `end`. `start` is -1 where the
    checkpoint does not say it: with Spark's own source, for a partition's first batch.
    """

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BatchLineage:
    """Where the rows of a batch come from. `inputs` is None if that is not known, and `remark` says why;
    `others` counts sources that are no topics, as tables. `target` is the topic that the query writes to,
    None if its rows name their topics. `digest` is of what the inputs do not say: the topic ids, and where
    the other sources were; empty in records of earlier releases.
    """

    flow: str = ""
    code_version: str = ""
    inputs: tuple[InputRange, ...] | None = None
    others: int = 0
    remark: str = ""
    target: str | None = None
    digest: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the inputs are all that the batch has read, each with its begin and end."""
        return bool(self.inputs) and not self.others and all(each.start >= 0 for each in self.inputs or ())

    def difference_to(self, now: BatchLineage) -> str | None:
        """How the same batch differs when it is repeated; None if it does not, as far as that is known."""
        if self.target != now.target:
            return f"it went to {self.target or NAMED_BY_ROWS}, not to {now.target or NAMED_BY_ROWS}"
        if self.inputs is not None and now.inputs is not None and self.inputs != now.inputs:
            return f"it was made of {_inputs_text(self.inputs)} then and is of {_inputs_text(now.inputs)} now"
        if self.digest and now.digest and self.digest != now.digest:
            return "its tables were at other positions then, or its topics have been created again"
        return None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"flow": self.flow, "code": self.code_version}
        if self.inputs is not None:
            document["inputs"] = [[each.topic, each.partition, each.start, each.end] for each in self.inputs]
        rest = {"others": self.others, "remark": self.remark, "target": self.target, "digest": self.digest}
        return {**document, **rest}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BatchLineage:
        ranges: tuple[InputRange, ...] | None = None
        if (inputs := document.get("inputs")) is not None:
            ranges = tuple(InputRange(str(t), int(p), int(s), int(e)) for t, p, s, e in inputs)
        return cls(
            str(document.get("flow", "")),
            str(document.get("code", "")),
            ranges,
            int(document.get("others", 0)),
            str(document.get("remark", "")),
            document.get("target"),
            str(document.get("digest", "")),
        )


@dataclass(frozen=True, slots=True)
class LineageSource:
    """What the driver knows of a query: its name, its checkpoint, the version of its code, the topic in which
    the lineage of all batches is kept, and the one that it writes to, if its option names one.
    """

    flow: str = ""
    checkpoint: str = ""
    code_version: str = ""
    topic: str = ""
    target: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LineageSource:
        given = {name.lower(): str(value).strip() for name, value in options.items()}
        version = given.get("codeversion") or os.environ.get(CODE_VERSION, "")
        return cls(
            given.get("queryname", "")[:MAX_TEXT],
            given.get("checkpointlocation", ""),
            version[:MAX_TEXT],
            given.get("lineagetopic", ""),
            given.get("topic") or None,
        )

    def of_batch(self, batch: int) -> BatchLineage:
        """Find what the batch has read. A checkpoint that cannot be read is no error."""
        directory = _local_directory(self.checkpoint)
        if directory is None:
            where = self.checkpoint or "an unknown place"
            return self._unknown(f"the checkpoint is in {where}, not in a directory of the driver")
        try:
            ends = _positions(directory / "offsets" / str(batch))
            starts = _positions(directory / "offsets" / str(batch - 1)) if batch else []
        except (OSError, ValueError) as error:
            return self._unknown(f"its checkpoint cannot be read: {error}")
        inputs: list[InputRange] = []
        beside: list[object] = []  # what the ranges do not say
        for number, end in enumerate(ends):
            before = starts[number] if number < len(starts) else None
            if isinstance(end, str):
                beside.append([before if isinstance(before, str) else None, end])
                continue
            beside.append(end.ids)
            # As the source reads: a topic that was created again begins where the batch says.
            known = {**(before.ends if isinstance(before, _SourceOffsets) else {}), **end.began_at}
            for (topic, partition), offset in sorted(end.ends.items()):
                begin = known.get((topic, partition), -1)
                if begin != offset and offset > 0:
                    inputs.append(InputRange(topic, partition, begin, offset))
        others = sum(isinstance(end, str) for end in ends)
        if len(inputs) > MAX_INPUTS:
            return self._unknown(f"the batch has read {len(inputs)} partitions")
        digest = hashlib.sha256(json.dumps(beside, sort_keys=True).encode()).hexdigest()[:16]
        return BatchLineage(
            self.flow, self.code_version, tuple(inputs), others, target=self.target, digest=digest
        )

    def _unknown(self, remark: str) -> BatchLineage:
        return BatchLineage(self.flow, self.code_version, remark=remark[:MAX_TEXT], target=self.target)


def _inputs_text(inputs: tuple[InputRange, ...]) -> str:
    shown = [f"{each.topic}-{each.partition} {each.start}..{each.end}" for each in inputs[:MAX_SHOWN]]
    return ", ".join(shown + ["..."] * (len(inputs) > MAX_SHOWN)) or "no records"


def _local_directory(location: str) -> Path | None:
    """The directory on this machine; None for another location, or none."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost") or not parts.path:
        return None
    return Path(unquote(parts.path) if parts.scheme else location)


@dataclass(frozen=True, slots=True)
class _SourceOffsets:
    """Where a source ends in a batch, and where it began to read partitions that it had not read before. Our
    source also keeps the topic ids.
    """

    ends: dict[tuple[str, int], int]
    began_at: dict[tuple[str, int], int]
    ids: Any = None


def _positions(file: Path) -> list[_SourceOffsets | str]:
    """The offsets of each source in a file of Spark's offset log; for a source that reads no topics, as it is
    written there.
    """
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{file} is too large")
    # The first line is the version of the format, the second is about the batch.
    return [_offsets(line) for line in file.read_text().splitlines()[2:]]


def _offsets(line: str) -> _SourceOffsets | str:
    try:
        document = json.loads(line)
    except ValueError:
        return _SourceOffsets({}, {}) if line == "-" else line  # a source without offsets yet
    if not isinstance(document, dict):
        return line
    ends = _by_partition({name: each for name, each in document.items() if _TOPIC.fullmatch(name)})
    if ends is None:
        return line
    return _SourceOffsets(ends, _by_partition(document.get(BEGAN_AT)) or {}, document.get(TOPIC_IDS))


def _by_partition(document: Any) -> dict[tuple[str, int], int] | None:
    """Offsets by topic and partition; None if the document is something else, as the position in a table."""
    if not isinstance(document, dict):
        return None
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if not partition.isdecimal() or not isinstance(offset, int):
                return None
            found[topic, int(partition)] = offset
    return found
