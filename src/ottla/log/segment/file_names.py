"""The names of the files of a segment.

A segment is known by its base offset, written with twenty digits so that names sort as numbers do. A suffix
after the kind says what state the file is in: `.cleaned` while compaction writes it, `.swap` once it is
complete and about to replace others, `.deleted` once nothing refers to it any more.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_KINDS = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"


class SegmentFile(NamedTuple):
    """The parts of a name such as `00000000000000000042.timeindex.swap`."""

    offset: int
    kind: str
    suffix: str


_SEGMENT_FILE = re.compile(
    r"(\d{20})(\.(?:log|index|timeindex|txnindex|snapshot))(|\.cleaned|\.swap|\.deleted)", re.ASCII
)


def segment_file_name(offset: int, kind: str, suffix: str = "") -> str:
    return f"{offset:020d}{kind}{suffix}"


def parse_segment_file(name: str) -> SegmentFile | None:
    """The parts of a file name of a segment or a snapshot; None for any other file."""
    match = _SEGMENT_FILE.fullmatch(name)
    return None if match is None else SegmentFile(int(match[1]), match[2], match[3])
