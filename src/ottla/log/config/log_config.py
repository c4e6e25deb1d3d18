"""The configuration of a topic's log: Kafka's names, defaults and limits.

`LogConfig` holds the values that are in force for one topic: its own settings over those of the broker. A
field is named as the setting, with `_` for `.`; `LogConfig.from_settings` reads the texts in which settings
arrive and says which value is wrong and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import Codec, TimestampType

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1

AS_RETENTION = -2
"""The value of `local.retention.*` that stands for that of `retention.*`."""

DURABILITIES = ("replicas", "disk")

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    max_message_bytes: int = 1024 * 1024 + 12
    index_interval_bytes: int = 4096
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    unclean_leader_election_enable: bool = False
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    preallocate: bool = False
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    remote_storage_enable: bool = False
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    durability: str = "replicas"
    """`disk`: what counts as replicated has been synced."""

    # What follows from the settings; plain values, since every append reads them.
    compact: bool = field(init=False, repr=False, compare=False)
    delete: bool = field(init=False, repr=False, compare=False)
    flush_due_messages: int = field(init=False, repr=False, compare=False)
    """With so many records that are not synced, appends wait for a sync, and so does the high watermark."""
    max_segment_ms: int = field(init=False, repr=False, compare=False)
    """How long a segment may take appends: a compacted topic must also honour its greatest lag."""
    target_codec: Codec | None = field(init=False, repr=False, compare=False)
    """The codec that the broker compresses with; None where the producer's choice stands."""
    target_level: int | None = field(init=False, repr=False, compare=False)
    is_remote: bool = field(init=False, repr=False, compare=False)
    """Whether a part of the log may be in remote storage only, below its first segment here."""
    copies_to_remote: bool = field(init=False, repr=False, compare=False)
    """Whether segments leave the disk only once they are in remote storage."""
    retention_ms_here: int = field(init=False, repr=False, compare=False)
    """How long segments stay on this disk."""
    retention_bytes_here: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        compact = "compact" in self.cleanup_policy
        lag_ms = self.max_compaction_lag_ms
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        derived: dict[str, Any] = {
            "compact": compact,
            "delete": "delete" in self.cleanup_policy,
            "flush_due_messages": 1 if self.durability == "disk" else self.flush_messages,
            "max_segment_ms": min(lag_ms, self.segment_ms) if compact and lag_ms > 0 else self.segment_ms,
            "target_codec": _CODECS[self.compression_type],
            "target_level": levels.get(self.compression_type),
            "is_remote": self.remote_storage_enable and not compact,
        }
        copies = derived["is_remote"] and not self.remote_log_copy_disable
        derived["copies_to_remote"] = copies
        for name, local, whole in (
            ("retention_ms_here", self.local_retention_ms, self.retention_ms),
            ("retention_bytes_here", self.local_retention_bytes, self.retention_bytes),
        ):
            derived[name] = local if copies and local != AS_RETENTION else whole
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], base: LogConfig | None = None) -> LogConfig:
        """The values of `base` (Kafka's defaults if None) with `settings` over them, by Kafka's names.

        >>> LogConfig.from_settings({"cleanup.policy": "compact", "retention.ms": "-1"}).compact
        True
        """
        values: dict[str, Any] = {}
        for name, text in settings.items():
            parse = _PARSERS.get(name)
            if parse is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown topic config {name!r}")
            values[field_name(name)] = parse(name, text)
        config = replace(base or cls(), **values)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"min.compaction.lag.ms={config.min_compaction_lag_ms} is greater than "
                f"max.compaction.lag.ms={config.max_compaction_lag_ms}",
            )
        return config

    def to_settings(self) -> dict[str, str]:
        """Every value as the text that `from_settings` reads, by Kafka's names."""
        return {name: _text(getattr(self, field_name(name))) for name in SETTING_NAMES}


_CODECS: dict[str, Codec | None] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}

Parser = Callable[[str, str], Any]


def setting_name(field: str) -> str:
    return field.replace("_", ".")


def field_name(setting: str) -> str:
    return setting.replace(".", "_")


def _bad(name: str, text: str, allowed: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"invalid value {text!r} for {name}: it must be {allowed}")


_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


def _whole(low: int, high: int) -> Parser:
    def parse(name: str, text: str) -> int:
        if _WHOLE.fullmatch(text.strip()) is None:
            raise _bad(name, text, "a whole number")
        value = int(text)
        if not low <= value <= high:
            raise _bad(name, text, f"at least {low} and at most {high}")
        return value

    return parse


def _ratio(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _bad(name, text, "a number from 0 to 1") from None
    if not 0 <= value <= 1:
        raise _bad(name, text, "a number from 0 to 1")
    return value


def _boolean(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise _bad(name, text, "true or false")


def _one_of(choices: Mapping[str, Any], *, keep_name: bool = False) -> Parser:
    def parse(name: str, text: str) -> Any:
        if text not in choices:
            raise _bad(name, text, "one of " + ", ".join(choices))
        return text if keep_name else choices[text]

    return parse


def _policy(name: str, text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not policies <= {"compact", "delete"}:
        raise _bad(name, text, "compact, delete, or both with a comma between them")
    return policies


def _throttled_replicas(name: str, text: str) -> tuple[str, ...]:
    replicas = tuple(part.strip() for part in text.split(",") if part.strip())
    if replicas == ("*",):
        return replicas
    for replica in replicas:
        partition, _, broker = replica.partition(":")
        if not (partition.isdigit() and broker.isdigit()):
            raise _bad(name, text, "* or a list of partition:broker pairs, such as 0:101,0:102")
    return replicas


def _gzip_level(name: str, text: str) -> int:
    level: int = _whole(-1, 9)(name, text)
    if level == 0:
        raise _bad(name, text, "-1, or from 1 to 9")
    return level


_INT = _whole(0, INT_MAX)
_LONG = _whole(0, LONG_MAX)

_PARSERS: dict[str, Parser] = {
    "segment.bytes": _whole(1024 * 1024, INT_MAX),
    "segment.ms": _whole(1, LONG_MAX),
    "segment.jitter.ms": _LONG,
    "segment.index.bytes": _whole(4, INT_MAX),
    "flush.messages": _whole(1, LONG_MAX),
    "flush.ms": _LONG,
    "retention.bytes": _whole(-LONG_MAX, LONG_MAX),
    "retention.ms": _whole(-1, LONG_MAX),
    "max.message.bytes": _INT,
    "index.interval.bytes": _INT,
    "file.delete.delay.ms": _LONG,
    "delete.retention.ms": _LONG,
    "min.compaction.lag.ms": _LONG,
    "max.compaction.lag.ms": _whole(1, LONG_MAX),
    "min.cleanable.dirty.ratio": _ratio,
    "cleanup.policy": _policy,
    "unclean.leader.election.enable": _boolean,
    "min.insync.replicas": _whole(1, INT_MAX),
    "compression.type": _one_of(_CODECS, keep_name=True),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": _whole(1, 17),
    "compression.zstd.level": _whole(-131072, 22),
    "preallocate": _boolean,
    "message.timestamp.type": _one_of(_TIMESTAMP_TYPES),
    "message.timestamp.before.max.ms": _LONG,
    "message.timestamp.after.max.ms": _LONG,
    "leader.replication.throttled.replicas": _throttled_replicas,
    "follower.replication.throttled.replicas": _throttled_replicas,
    "remote.storage.enable": _boolean,
    "local.retention.ms": _whole(-2, LONG_MAX),
    "local.retention.bytes": _whole(-2, LONG_MAX),
    "remote.log.copy.disable": _boolean,
    "remote.log.delete.on.disable": _boolean,
    "durability": _one_of(dict.fromkeys(DURABILITIES), keep_name=True),
}

SETTING_NAMES = tuple(sorted(_PARSERS))
"""The topic configs by Kafka's names."""

assert {field_name(name) for name in _PARSERS} == {each.name for each in fields(LogConfig) if each.init}


def _text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case TimestampType():
            return next(name for name, kind in _TIMESTAMP_TYPES.items() if kind is value)
        case frozenset():
            return ",".join(sorted(value))
        case tuple():
            return ",".join(value)
        case _:
            return str(value)
