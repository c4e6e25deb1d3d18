"""How far a stream is behind its topics, from the progress that Spark reports of its queries.

Spark's own Kafka source has that as metrics of its own; a source in Python cannot report metrics, only the
latest offsets, which are in the progress of each batch beside the end of the batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")


def behind_latest(progress: Any) -> dict[str, float]:
    """How many offsets each partition is behind: the smallest, the largest and the mean number, under the
    names of the metrics of Spark's own Kafka source. Takes `StreamingQuery.lastProgress`, or its JSON as a
    dict; without topics the answer is empty.

    >>> source = {"endOffset": {"t": {"0": 3, "1": 4}}, "latestOffset": {"t": {"0": 10, "1": 5}}}
    >>> behind_latest({"sources": [source]})
    {'minOffsetsBehindLatest': 1, 'maxOffsetsBehindLatest': 7, 'avgOffsetsBehindLatest': 4.0}
    """
    report = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    behind: list[int] = []
    for source in report.get("sources") or ():
        latest = positions(_document(source.get("latestOffset"))) or {}
        ends = positions(_document(source.get("endOffset"))) or {}
        behind += [max(offset - ends.get(partition, 0), 0) for partition, offset in latest.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


def lag_of(source: Mapping[str, Any]) -> int | None:
    """How many offsets a source is behind its latest; None if it reports no offsets, as files."""
    return distance(_document(source.get("endOffset")), _document(source.get("latestOffset")))


def distance(low: Any, high: Any) -> int | None:
    """The total distance between two JSON documents of offsets by topic and partition.

    >>> distance({"t": {"0": 3, "1": 4}}, {"t": {"0": 10, "1": 4, "2": 5}})
    12
    """
    ends, begins = positions(high), positions(low)
    if ends is None:
        return None
    return sum(max(end - (begins or {}).get(partition, 0), 0) for partition, end in ends.items())


def positions(document: Any) -> dict[tuple[str, int], int] | None:
    """Offsets by topic and partition, of our source or of Spark's own; None if the document has none.

    >>> positions({"t": {"0": 3}, "$ids": {"t": "abc"}})
    {('t', 0): 3}
    """
    if not isinstance(document, dict):
        return None
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in document.items():
        if not _TOPIC.fullmatch(topic):
            continue  # our source keeps more under names that no topic can have
        if not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if not partition.isdecimal() or not isinstance(offset, int):
                return None
            found[topic, int(partition)] = offset
    return found


def _document(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
