"""The names of the directories of partitions.

A partition's directory is `topic-partition`, with `.<unique id>-delete`, `-future`, `-stray` or
`-damaged-stray` behind it in those states. The last one is ours: what was set aside because it is damaged.
Apache Kafka takes it for a stray, which it leaves alone; any other name would end its start.
"""

from __future__ import annotations

import re
from enum import Enum

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition

MAX_DIR_NAME_BYTES = 255
"""The longest name that the usual file systems take."""


class DirKind(Enum):
    """The state of a partition's directory, by the suffix of its name."""

    CURRENT = ""
    DELETE = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"
    DAMAGED = "-damaged-stray"


REMOTE_LOG_INDEX_CACHE = "remote-log-index-cache"
"""A directory beside those of partitions, with parts of remote segments: Kafka's name."""

_MOVED_DIR = re.compile(r"(\S+)-(\d+)\.(\S+?)(-delete|-future|-damaged-stray|-stray)", re.ASCII)
_CURRENT_DIR = re.compile(r"(.+)-(\d+)", re.ASCII)


def dir_name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def moved_dir_name(partition: TopicPartition, kind: DirKind, unique_id: bytes) -> str:
    """Name the directory of a log that is to be deleted, is stray, or is to replace another one. The topic is
    cut where the name would be too long for a file system.
    """
    tail = f"-{partition.partition}.{unique_id.hex()}{kind.value}"
    return partition.topic[: MAX_DIR_NAME_BYTES - len(tail)] + tail


def parse_dir_name(name: str) -> tuple[TopicPartition, DirKind]:
    """The partition and the state of a directory; KAFKA_STORAGE_ERROR for a name that is neither."""
    for kind in (DirKind.DELETE, DirKind.FUTURE, DirKind.DAMAGED, DirKind.STRAY):
        if name.endswith(kind.value):
            match = _MOVED_DIR.fullmatch(name)
            break
    else:
        kind = DirKind.CURRENT
        match = _CURRENT_DIR.fullmatch(name)
    if match is None or int(match[2]) > 0x7FFF_FFFF:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the directory {name!r} is not named topic-partition, nor topic-partition.id-delete, -future or "
            "-stray; move what is not a partition out of the log directory",
        )
    return TopicPartition(match[1], int(match[2])), kind
