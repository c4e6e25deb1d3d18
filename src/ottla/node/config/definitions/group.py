"""The settings of groups and of client metrics subscriptions."""

from __future__ import annotations

from typing import Final

from ottla.node.config.definitions.config_def import (
    BOOLEAN,
    INT,
    LIST,
    MEDIUM,
    STRING,
    ConfigKey,
    InRange,
    Matches,
    ValidList,
    ValidString,
    config_def,
    key,
)

OFFSET_RESET: Final = Matches(
    r"latest|earliest|by_duration:(?i:P(?!$)([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?)",
    "latest, earliest or by_duration:PnDTnHnMn.nS",
)

# fmt: off
GROUP: Final[dict[str, ConfigKey]] = config_def(
    key("consumer.assignment.interval.ms", INT, 1000, MEDIUM,
        "The least time between two assignments of the group.",
        InRange(0), synonyms=("group.consumer.assignment.interval.ms",)),
    key("consumer.heartbeat.interval.ms", INT, 5000, MEDIUM,
        "How often a member sends a heartbeat.",
        InRange(1), synonyms=("group.consumer.heartbeat.interval.ms",)),
    key("consumer.session.timeout.ms", INT, 45_000, MEDIUM,
        "A member that is not heard from for this long is removed.",
        InRange(1), synonyms=("group.consumer.session.timeout.ms",)),
    key("errors.deadletterqueue.copy.record.enable", BOOLEAN, False, MEDIUM,
        "Whether a dead letter of the share group has key, value and headers of its record, or only the "
        "headers that say which record it is."),
    key("errors.deadletterqueue.topic.name", STRING, "", MEDIUM,
        "The topic that gets the records which the share group could not process; empty for none. It takes "
        "share.version 2."),
    key("share.assignment.interval.ms", INT, 1000, MEDIUM,
        "The least time between two assignments of the group.",
        InRange(0), synonyms=("group.share.assignment.interval.ms",)),
    key("share.auto.offset.reset", STRING, "latest", MEDIUM,
        "Where the share group begins on a partition: latest, earliest, or by_duration: and an ISO 8601 "
        "time span back from now.", OFFSET_RESET),
    key("share.delivery.count.limit", INT, 5, MEDIUM,
        "How often a record is delivered before it counts as unprocessable.",
        InRange(2), synonyms=("group.share.delivery.count.limit",)),
    key("share.heartbeat.interval.ms", INT, 5000, MEDIUM,
        "How often a member sends a heartbeat.", InRange(1), synonyms=("group.share.heartbeat.interval.ms",)),
    key("share.isolation.level", STRING, "read_uncommitted", MEDIUM,
        "Whether records of open and aborted transactions are delivered.",
        ValidString(("read_committed", "read_uncommitted"))),
    key("share.partition.max.record.locks", INT, 2000, MEDIUM,
        "How many records of one partition may be in delivery at once.",
        InRange(100), synonyms=("group.share.partition.max.record.locks",)),
    key("share.record.lock.duration.ms", INT, 30_000, MEDIUM,
        "How long a consumer holds a record before it is delivered to another.",
        InRange(1000), synonyms=("group.share.record.lock.duration.ms",)),
    key("share.renew.acknowledge.enable", BOOLEAN, True, MEDIUM,
        "Whether a consumer may renew its hold on a record."),
    key("share.retry.backoff.max.ms", INT, 0, MEDIUM,
        "The longest time that a released record waits: above share.retry.backoff.ms, the wait is doubled "
        "with each delivery up to this, and spread by a fifth.", InRange(0, 86_400_000)),
    key("share.retry.backoff.ms", INT, 0, MEDIUM,
        "How long a record that a consumer has released waits before it is delivered again; 0 is not at all, "
        "as in Kafka.", InRange(0, 86_400_000)),
    key("share.session.timeout.ms", INT, 45_000, MEDIUM,
        "A member that is not heard from for this long is removed.",
        InRange(1), synonyms=("group.share.session.timeout.ms",)),
    key("streams.assignment.interval.ms", INT, 1000, MEDIUM,
        "The least time between two assignments of the group.",
        InRange(0), synonyms=("group.streams.assignment.interval.ms",)),
    key("streams.heartbeat.interval.ms", INT, 5000, MEDIUM,
        "How often a member sends a heartbeat.",
        InRange(1), synonyms=("group.streams.heartbeat.interval.ms",)),
    key("streams.initial.rebalance.delay.ms", INT, 3000, MEDIUM,
        "How long the first assignment of the empty group waits for more members.",
        InRange(0), synonyms=("group.streams.initial.rebalance.delay.ms",)),
    key("streams.num.standby.replicas", INT, 0, MEDIUM,
        "How many standby replicas each task gets.",
        InRange(0), synonyms=("group.streams.num.standby.replicas",)),
    key("streams.session.timeout.ms", INT, 45_000, MEDIUM,
        "A member that is not heard from for this long is removed.",
        InRange(1), synonyms=("group.streams.session.timeout.ms",)),
)

CLIENT_METRICS: Final[dict[str, ConfigKey]] = config_def(
    key("interval.ms", INT, 300_000, MEDIUM,
        "How often the clients that match push their metrics."),
    key("match", LIST, (), MEDIUM,
        "Which clients push, as name=pattern pairs over client_id, client_instance_id, "
        "client_software_name, client_software_version, client_source_address and client_source_port.",
        ValidList()),
    key("metrics", LIST, (), MEDIUM,
        "Prefixes of the names of the metrics that are pushed; * stands for all.", ValidList()),
)
# fmt: on
