"""A share consumer's settings, with Kafka's names, meanings and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.settings import ClientConfig
from ottla.protocol.share import ShareAcquireMode

ACQUIRE_MODES: Final = {
    "batch_optimized": ShareAcquireMode.BATCH_OPTIMIZED,
    "record_limit": ShareAcquireMode.RECORD_LIMIT,
}
ACKNOWLEDGEMENT_MODES: Final = ("implicit", "explicit")
_OF_THE_GROUP: Final = "it belongs to the group: `ottla configs alter --group GROUP --set {setting}=...`"
# Settings of a consumer that a share consumer cannot have, and where they are.
_ELSEWHERE: Final = {
    "auto.offset.reset": _OF_THE_GROUP.format(setting="share.auto.offset.reset"),
    "isolation.level": _OF_THE_GROUP.format(setting="share.isolation.level"),
    "session.timeout.ms": _OF_THE_GROUP.format(setting="share.session.timeout.ms"),
    "heartbeat.interval.ms": _OF_THE_GROUP.format(setting="share.heartbeat.interval.ms"),
    "enable.auto.commit": "records are acknowledged one by one: share.acknowledgement.mode says by whom",
    "auto.commit.interval.ms": "records are acknowledged one by one: share.acknowledgement.mode says by whom",
    "group.instance.id": "a share group has no static members",
    "group.protocol": "a share group has a protocol of its own",
    "group.remote.assignor": "a share group has one assignor, on the broker",
    "partition.assignment.strategy": "a share group has one assignor, on the broker",
    "max.partition.fetch.bytes": "fetch.max.bytes limits a fetch",
}


def refuse_consumer_settings(given: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that only other consumers have, and say what there is instead."""
    for name in given:
        why = _ELSEWHERE.get(name.replace("_", "."))
        if why is not None:
            raise ValueError(f"there is no setting {name!r} for a share consumer: {why}")


@dataclass(frozen=True, slots=True)
class ShareConsumerConfig(ClientConfig):
    """Where a group begins, which records it sees and how long locks last are settings of the group, the same
    for all members: `share.auto.offset.reset`, `share.isolation.level`, `share.record.lock.duration.ms`.
    """

    group_id: str = ""
    client_id: str | None = "ottla-share-consumer"
    client_rack: str = ""
    share_acknowledgement_mode: str = "implicit"
    share_acquire_mode: str = "batch_optimized"
    check_crcs: bool = True
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    default_api_timeout_ms: int = 60_000
    allow_auto_create_topics: bool = True

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("a share consumer needs a group.id")
        for name, allowed in (
            ("share_acknowledgement_mode", ACKNOWLEDGEMENT_MODES),
            ("share_acquire_mode", tuple(ACQUIRE_MODES)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name.replace('_', '.')}={getattr(self, name)!r}: allowed are {', '.join(allowed)}"
                )
        for name in ("fetch_max_bytes", "max_poll_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', '.')}={getattr(self, name)} must be at least 1")
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise ValueError(
                f"fetch.max.wait.ms={self.fetch_max_wait_ms} must be below "
                f"request.timeout.ms={self.request_timeout_ms}"
            )

    @property
    def is_explicit(self) -> bool:
        return self.share_acknowledgement_mode == "explicit"

    @property
    def acquire_mode(self) -> ShareAcquireMode:
        return ACQUIRE_MODES[self.share_acquire_mode]
