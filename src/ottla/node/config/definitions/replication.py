"""The settings of replication and of fetches."""

from __future__ import annotations

from typing import Final

from ottla.node.config.definitions.config_def import (
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LONG,
    MAX_LONG,
    MEDIUM,
    STRING,
    ConfigKey,
    InRange,
    config_def,
    key,
)

# fmt: off
REPLICATION: Final[dict[str, ConfigKey]] = config_def(
    key("default.replication.factor", INT, 1, MEDIUM,
        "The replicas of a topic that is created without a count."),
    key("min.insync.replicas", INT, 1, HIGH,
        "How many in-sync replicas a partition needs before a write with acks=all is accepted.",
        InRange(1), mode=CLUSTER_WIDE),
    key("unclean.leader.election.enable", BOOLEAN, False, HIGH,
        "Whether a replica that is not in sync may lead when no other is left; records may be lost.",
        mode=CLUSTER_WIDE),
    key("unclean.leader.election.interval.ms", LONG, 300_000, MEDIUM,
        "How often the controller looks for partitions that need an unclean election.",
        InRange(1), internal=True),
    key("auto.leader.rebalance.enable", BOOLEAN, True, HIGH,
        "Whether the controller moves leadership back to the preferred replicas by itself."),
    key("leader.imbalance.check.interval.seconds", LONG, 300, HIGH,
        "How often the controller looks for partitions not led by their preferred replica, in seconds.",
        InRange(1)),
    key("controlled.shutdown.enable", BOOLEAN, True, MEDIUM,
        "Hand leadership over before the node stops."),
    key("controller.socket.timeout.ms", INT, 30_000, MEDIUM,
        "How long a request between broker and controller may take."),
    key("replica.lag.time.max.ms", LONG, 30_000, HIGH,
        "A follower that has not caught up for this long leaves the in-sync set."),
    key("replica.socket.timeout.ms", INT, 30_000, HIGH,
        "How long a follower waits on the network for its leader; at least replica.fetch.wait.max.ms."),
    key("replica.socket.receive.buffer.bytes", INT, 65_536, HIGH,
        "SO_RCVBUF of the connections by which followers fetch."),
    key("replica.fetch.max.bytes", INT, 1_048_576, MEDIUM,
        "How much of one partition a follower asks for at a time; the first batch comes even if it is "
        "larger.", InRange(0)),
    key("replica.fetch.response.max.bytes", INT, 10_485_760, MEDIUM,
        "How much a follower asks for at a time over all partitions; the first batch comes even if it is "
        "larger.", InRange(0)),
    key("replica.fetch.wait.max.ms", INT, 500, HIGH,
        "How long a leader may hold a follower's fetch that finds nothing; well below "
        "replica.lag.time.max.ms."),
    key("replica.fetch.min.bytes", INT, 1, HIGH,
        "How much a follower's fetch waits for."),
    key("replica.fetch.backoff.ms", INT, 1000, MEDIUM,
        "How long a follower rests after a fetch of a partition failed.", InRange(0)),
    key("num.replica.fetchers", INT, 1, HIGH,
        "How many fetchers a follower runs for each leader.", InRange(1), mode=CLUSTER_WIDE),
    key("num.replica.alter.log.dirs.threads", INT, None, HIGH,
        "How many replicas are copied between data directories at the same time; the number of "
        "directories when unset."),
    key("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, HIGH,
        "How often the high watermarks are written down."),
    key("replica.selector.class", STRING, None, MEDIUM,
        "How a replica is chosen for a consumer that names its rack: empty reads from the leader, "
        "RackAwareReplicaSelector from the nearest."),
    key("fetch.purgatory.purge.interval.requests", INT, 1000, MEDIUM,
        "How many finished fetches may linger among the waiting ones in Apache Kafka. Ottla removes them "
        "at once."),
    key("producer.purgatory.purge.interval.requests", INT, 1000, MEDIUM,
        "How many finished produce requests may linger among the waiting ones in Apache Kafka. Ottla "
        "removes them at once."),
    key("delete.records.purgatory.purge.interval.requests", INT, 1, MEDIUM,
        "How many finished DeleteRecords requests may linger among the waiting ones in Apache Kafka. "
        "Ottla removes them at once."),
    key("share.fetch.purgatory.purge.interval.requests", INT, 1000, MEDIUM,
        "How many finished share fetches may linger among the waiting ones in Apache Kafka. Ottla removes "
        "them at once."),
    key("max.incremental.fetch.session.cache.slots", INT, 1000, MEDIUM,
        "How many incremental fetch sessions are kept for clients.", InRange(0)),
    key("fetch.max.bytes", INT, 57_671_680, MEDIUM,
        "The most a fetch answer holds, whatever the client asks for; the first batch comes even if it is "
        "larger.", InRange(1024)),
    key("leader.replication.throttled.rate", LONG, MAX_LONG, MEDIUM,
        "Bytes per second that leaders send to throttled followers.", InRange(0), mode=CLUSTER_WIDE),
    key("follower.replication.throttled.rate", LONG, MAX_LONG, MEDIUM,
        "Bytes per second that throttled followers fetch.", InRange(0), mode=CLUSTER_WIDE),
    key("replica.alter.log.dirs.io.max.bytes.per.second", LONG, MAX_LONG, MEDIUM,
        "Bytes per second for copying replicas between data directories.", InRange(0), mode=CLUSTER_WIDE),
)
# fmt: on
