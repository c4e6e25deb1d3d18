"""The offsets at which reading begins and ends, as users write them and as Spark keeps them.

`OffsetLimit` is one end of what is read: the beginning or the end of partitions, offsets by partition (-2 is
earliest, -1 is latest), or timestamps. The JSON forms are those of Spark's own source. The offsets of a
stream have the same form, so that a checkpoint is readable for those who know Spark's. Under keys that no
topic can have they also hold the topic ids, which distinguish a topic that was deleted and created again, and
the start offsets of a batch in partitions that no earlier batch had: Spark keeps only the ends, and a batch
that is run again must begin where it began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ottla.protocol.names import TopicPartition, parse_uuid, uuid_text

EARLIEST = -2
LATEST = -1
IDS_KEY = "@ids"
BEGINS_KEY = "@from"
_OFFSETS_EXAMPLE = '{"orders": {"0": 23, "1": -2}}'
_ASSIGN_EXAMPLE = '{"orders": [0, 1]}'
# The largest values of the protocol.
_MAX_NUMBER = 2**63 - 1
_MAX_PARTITION = 2**31 - 1
_MAX_QUOTED = 500


class OffsetLimitKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMES = "times"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class OffsetLimit:
    """`by_partition` is used with OFFSETS and TIMES, `time_ms` with TIME."""

    kind: OffsetLimitKind
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The position of a stream: the next offset of each partition, and the topic ids where they are known.

    `begins` has the start offsets of the batch that ends here, in partitions that the previous offset did not
    have.
    """

    positions: Mapping[TopicPartition, int]
    ids: Mapping[str, bytes] = field(default_factory=dict)
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """The same offset always gives the same text: Spark compares texts."""
        found = _by_topic(self.positions)
        ids = {topic: uuid_text(self.ids[topic]) for topic in sorted(self.ids) if topic in found}
        if ids:
            found[IDS_KEY] = ids
        if self.begins:
            found[BEGINS_KEY] = _by_topic(self.begins)
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """Raises ValueError for an offset of another kind of source, whose checkpoint this is then."""
        if not all(isinstance(each, Mapping) for each in value.values()):
            raise ValueError(
                f"the checkpoint has the offset {json.dumps(value)[:200]}, which is not one of topics: the "
                "query, or the flow of this name, has read another kind of source until now. A query over "
                "another source needs a checkpoint of its own, and a flow a new name; it then reads from its "
                "startingOffsets"
            )
        return cls(
            _by_partition({t: p for t, p in value.items() if t not in (IDS_KEY, BEGINS_KEY)}),
            {topic: parse_uuid(text) for topic, text in value.get(IDS_KEY, {}).items()},
            _by_partition(value.get(BEGINS_KEY, {})),
        )


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return found


def _by_partition(value: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in value.items()
        for partition, offset in offsets.items()
    }


def parse_offsets_limit(option: str, text: str) -> OffsetLimit:
    """Parse `earliest`, `latest`, or offsets by partition in JSON."""
    plain = text.strip()
    if plain.lower() == "earliest":
        return OffsetLimit(OffsetLimitKind.EARLIEST)
    if plain.lower() == "latest":
        return OffsetLimit(OffsetLimitKind.LATEST)
    found = parse_by_partition(option, plain, _OFFSETS_EXAMPLE)
    for partition, offset in found.items():
        if offset < EARLIEST:
            raise ValueError(
                f"{option}: offset {offset} of {partition} is not an offset; -2 stands for earliest, "
                "-1 for latest"
            )
    return OffsetLimit(OffsetLimitKind.OFFSETS, found)


def parse_by_partition(option: str, text: str, example: str = _OFFSETS_EXAMPLE) -> dict[TopicPartition, int]:
    """Parse a number for each partition: `{"topic": {"0": 23}}`. A ValueError says what is wrong."""
    value = _parse_object(option, text, example)
    for key in (IDS_KEY, BEGINS_KEY):  # a copy from one of our checkpoints
        value.pop(key, None)
    found = {}
    for topic, numbers in value.items():
        if not isinstance(numbers, dict):
            raise ValueError(
                f"{option}: {topic!r} has {json.dumps(numbers)} where partitions should be, as in {example}"
            )
        for partition, number in numbers.items():
            if not _is_partition(partition) or not _is_number(number):
                raise ValueError(
                    f"{option}: {json.dumps(partition)}: {json.dumps(number)} of topic {topic!r} is not a "
                    f"partition and a number, as in {example}"
                )
            found[TopicPartition(topic, int(partition))] = number
    return found


def parse_assign(text: str) -> list[TopicPartition]:
    value = _parse_object("assign", text, _ASSIGN_EXAMPLE)
    found = []
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not all(
            _is_number(p) and 0 <= p <= _MAX_PARTITION for p in partitions
        ):
            raise ValueError(
                f"assign: {topic!r} has {json.dumps(partitions)} where a list of partitions should be, "
                f"as in {_ASSIGN_EXAMPLE}"
            )
        found += [TopicPartition(topic, partition) for partition in partitions]
    if not found:
        raise ValueError(f"assign names no partition; it looks like {_ASSIGN_EXAMPLE}")
    return sorted(set(found))


def _parse_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        quoted = text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"
        raise ValueError(f"{option}={quoted!r} is not JSON ({error}); it looks like {example}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{option}={text!r} is not an object by topic; it looks like {example}")
    return value


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is given twice")
        found[name] = value
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER


def _is_partition(text: str) -> bool:
    return text.isdecimal() and len(text) <= 10 and int(text) <= _MAX_PARTITION
