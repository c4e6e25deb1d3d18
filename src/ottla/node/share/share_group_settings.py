"""The settings of a share group that the leaders of its partitions use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ottla.node.config.definitions.group import GROUP
from ottla.node.config.node_config import NodeConfig
from ottla.node.share.share_partition import ShareGroupSettings

# The level of share.version from which on there are dead letters.
_DEAD_LETTERS_SINCE: Final = 2
_DURATION: Final = re.compile(
    r"by_duration:P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)(?:\.([0-9]+))?S)?)?",
    re.IGNORECASE,
)


def share_group_settings(
    config: NodeConfig, overrides: Mapping[str, str], *, share_version: int
) -> ShareGroupSettings:
    """Return a group's settings: `overrides` are its own, and the node's hold for the rest. A number outside
    of the bounds that the node has by now counts as the nearest within them. Below share.version 2 there are
    no dead letters.
    """

    def number(name: str) -> int:
        text = overrides.get(name)
        if text is None:
            return config.number(f"group.{name}")
        value = GROUP[name].parse(text)
        assert isinstance(value, int), (name, value)
        rest = name.removeprefix("share.")
        return min(
            max(value, config.number(f"group.share.min.{rest}")), config.number(f"group.share.max.{rest}")
        )

    def own(name: str) -> object:
        key = GROUP[name]
        return key.parse(overrides[name]) if name in overrides else key.default

    def own_number(name: str) -> int:
        value = own(name)
        assert isinstance(value, int), (name, value)
        return value

    return ShareGroupSettings(
        record_lock_duration_ms=number("share.record.lock.duration.ms"),
        delivery_count_limit=number("share.delivery.count.limit"),
        partition_max_record_locks=number("share.partition.max.record.locks"),
        renew_acknowledge_enable=own("share.renew.acknowledge.enable") is True,
        read_committed=own("share.isolation.level") == "read_committed",
        auto_offset_reset=str(own("share.auto.offset.reset")).lower(),
        retry_backoff_ms=own_number("share.retry.backoff.ms"),
        retry_backoff_max_ms=own_number("share.retry.backoff.max.ms"),
        dead_letter_topic=str(own("errors.deadletterqueue.topic.name")).strip()
        if share_version >= _DEAD_LETTERS_SINCE
        else "",
        dead_letters_copy_records=own("errors.deadletterqueue.copy.record.enable") is True,
    )


def reset_duration_ms(auto_offset_reset: str) -> int | None:
    """The time span of `by_duration:`, in milliseconds; None of another reset.

    >>> reset_duration_ms("by_duration:P1DT2H3M4.5S")
    93784500
    >>> reset_duration_ms("latest") is None
    True
    """
    found = _DURATION.fullmatch(auto_offset_reset)
    if found is None:
        return None
    days, hours, minutes, seconds, fraction = (text or "0" for text in found.groups())
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(fraction.ljust(3, "0")[:3])
