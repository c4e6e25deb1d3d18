"""A consumer's settings, with Kafka's names, meanings and defaults."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ottla.client.settings import ClientConfig
from ottla.records.types import MAX_DECOMPRESSED_BYTES

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
GROUP_PROTOCOLS = ("classic", "consumer")
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


class Reset(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """Where to begin without a valid offset; `back_ms` is for BY_DURATION."""

    reset: Reset
    back_ms: int = 0


def parse_reset(text: str) -> ResetPolicy:
    """Parse `auto.offset.reset`.

    >>> parse_reset("by_duration:PT1H30M").back_ms
    5400000
    """
    name, colon, duration = text.lower().partition(":")
    if not colon and name in ("earliest", "latest", "none"):
        return ResetPolicy(Reset(name))
    match = _DURATION.fullmatch(duration.upper()) if name == "by_duration" else None
    if match is None or not any(match.groups()):
        raise ValueError(
            f"auto.offset.reset={text!r}: allowed are earliest, latest, none, "
            "and by_duration: with an ISO 8601 duration, as in by_duration:PT1H"
        )
    parts = {unit: float(amount) for unit, amount in match.groupdict().items() if amount}
    units = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}
    return ResetPolicy(Reset.BY_DURATION, int(sum(parts[unit] * units[unit] for unit in parts)))


@dataclass(frozen=True, slots=True)
class ConsumerConfig(ClientConfig):
    """Two settings are Ottla's: `prefetch_max_bytes`, fetched bytes that may wait for `poll`, over all
    partitions; and `max_decompressed_bytes`, what a batch may inflate to. A poll ends when what it has
    decompressed passes `fetch_max_bytes`.
    """

    client_id: str | None = "ottla-consumer"
    client_rack: str = ""
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = "classic"
    group_remote_assignor: str | None = None
    partition_assignment_strategy: str | Iterable[str] = ("range", "cooperative-sticky")
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    isolation_level: str = "read_uncommitted"
    check_crcs: bool = True
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    prefetch_max_bytes: int = 64 * 1024 * 1024
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    default_api_timeout_ms: int = 60_000
    allow_auto_create_topics: bool = True
    exclude_internal_topics: bool = True

    def __post_init__(self) -> None:
        parse_reset(self.auto_offset_reset)
        for name, allowed in (("isolation_level", ISOLATION_LEVELS), ("group_protocol", GROUP_PROTOCOLS)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name.replace('_', '.')}={getattr(self, name)!r}: allowed are {', '.join(allowed)}"
                )
        for name in (
            "fetch_max_bytes",
            "max_partition_fetch_bytes",
            "max_decompressed_bytes",
            "max_poll_records",
            "prefetch_max_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', '.')}={getattr(self, name)} must be at least 1")
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise ValueError(
                f"fetch.max.wait.ms={self.fetch_max_wait_ms} must be below "
                f"request.timeout.ms={self.request_timeout_ms}"
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat.interval.ms={self.heartbeat_interval_ms} must be below "
                f"session.timeout.ms={self.session_timeout_ms}"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise ValueError("group.instance.id needs a group.id")

    @property
    def reset_policy(self) -> ResetPolicy:
        return parse_reset(self.auto_offset_reset)

    @property
    def read_committed(self) -> bool:
        return self.isolation_level == "read_committed"
