"""Tiered storage."""

from __future__ import annotations

from typing import Final

from ottla.node.config.definitions.config_def import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    LONG,
    LOW,
    MAX_LONG,
    MEDIUM,
    NON_EMPTY,
    STRING,
    ConfigKey,
    InRange,
    config_def,
    key,
)

# fmt: off
REMOTE: Final[dict[str, ConfigKey]] = config_def(
    key("remote.log.storage.system.enable", BOOLEAN, False, MEDIUM,
        "Whether tiered storage is available to topics."),
    key("remote.log.storage.manager.class.name", STRING, None, MEDIUM,
        "What keeps remote segments in Apache Kafka. Ottla ignores it; rsm.config.storage.url is the store.",
        NON_EMPTY),
    key("remote.log.storage.manager.class.path", STRING, None, MEDIUM,
        "The class path of the storage manager in Apache Kafka. Ottla ignores it."),
    key("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", MEDIUM,
        "Settings with this prefix are handed to the storage manager.", NON_EMPTY),
    key("remote.log.metadata.manager.class.name", STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", MEDIUM,
        "What keeps the metadata of remote segments in Apache Kafka. Ottla ignores it, and keeps them in "
        "__remote_log_metadata as this class does.", NON_EMPTY),
    key("remote.log.metadata.manager.class.path", STRING, None, MEDIUM,
        "The class path of the metadata manager in Apache Kafka. Ottla ignores it."),
    key("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", MEDIUM,
        "Settings with this prefix are handed to the metadata manager.", NON_EMPTY),
    key("remote.log.metadata.manager.listener.name", STRING, None, MEDIUM,
        "The listener by which the metadata manager reaches the brokers in Apache Kafka. Ottla ignores it, "
        "and uses that of the brokers.", NON_EMPTY),
    key("remote.log.metadata.custom.metadata.max.bytes", INT, 128, LOW,
        "How many bytes of its own a storage manager may keep with each segment.", InRange(0)),
    key("remote.log.index.file.cache.total.size.bytes", LONG, 1_073_741_824, LOW,
        "How much disk the cache of remote indexes may take.", InRange(1), mode=CLUSTER_WIDE),
    key("remote.log.index.file.cache.ttl.ms", LONG, 900_000, LOW,
        "How long an unused index of a remote segment stays in the cache.", InRange(-1), internal=True),
    key("remote.log.manager.thread.pool.size", INT, 2, MEDIUM,
        "The threads of tiered storage in Apache Kafka. Ottla ignores it: copies and deletions have limits "
        "of their own.", InRange(1)),
    key("remote.log.manager.copier.thread.pool.size", INT, 10, MEDIUM,
        "Uploads that run at the same time.", InRange(1), mode=CLUSTER_WIDE),
    key("remote.log.manager.expiration.thread.pool.size", INT, 10, MEDIUM,
        "Deletions of expired remote segments that run at the same time.", InRange(1), mode=CLUSTER_WIDE),
    key("remote.log.manager.follower.thread.pool.size", INT, 2, MEDIUM,
        "The threads for followers in Apache Kafka. Ottla ignores it: followers hear of what was copied, "
        "and look for nothing.", InRange(1), mode=CLUSTER_WIDE),
    key("remote.log.manager.task.interval.ms", LONG, 30_000, LOW,
        "How often Apache Kafka looks for segments to upload and to delete. Ottla ignores it: both are done "
        "when there is something to do.", InRange(1)),
    key("remote.log.manager.task.retry.backoff.ms", LONG, 500, LOW,
        "The first pause before a failed task is tried again.", InRange(1), internal=True),
    key("remote.log.manager.task.retry.backoff.max.ms", LONG, 30_000, LOW,
        "The longest pause before a failed task is tried again.", InRange(1), internal=True),
    key("remote.log.manager.task.retry.jitter", DOUBLE, 0.2, LOW,
        "The share of randomness in those pauses.", InRange(0, 0.5), internal=True),
    key("remote.log.manager.copy.max.bytes.per.second", LONG, MAX_LONG, MEDIUM,
        "The rate that uploads stay under.", InRange(1), mode=CLUSTER_WIDE),
    key("remote.log.manager.copy.quota.window.num", INT, 11, MEDIUM,
        "How many windows are kept to measure uploads.", InRange(1)),
    key("remote.log.manager.copy.quota.window.size.seconds", INT, 1, MEDIUM,
        "The length of one window of uploads, in seconds.", InRange(1)),
    key("remote.log.manager.fetch.max.bytes.per.second", LONG, MAX_LONG, MEDIUM,
        "The rate that reads of remote segments stay under.", InRange(1), mode=CLUSTER_WIDE),
    key("remote.log.manager.fetch.quota.window.num", INT, 11, MEDIUM,
        "How many windows are kept to measure remote reads.", InRange(1)),
    key("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, MEDIUM,
        "The length of one window of remote reads, in seconds.", InRange(1)),
    key("remote.log.reader.threads", INT, 10, MEDIUM,
        "Remote reads that run at the same time.", InRange(1), mode=CLUSTER_WIDE),
    key("remote.log.reader.max.pending.tasks", INT, 100, MEDIUM,
        "Remote reads that may wait; further ones are refused.", InRange(1)),
    key("remote.fetch.max.wait.ms", INT, 500, MEDIUM,
        "How long a fetch may wait for a remote segment.", InRange(1), mode=CLUSTER_WIDE),
    key("remote.list.offsets.request.timeout.ms", LONG, 30_000, MEDIUM,
        "How long a search for an offset by time may wait for remote segments.",
        InRange(1), mode=CLUSTER_WIDE),
    key("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, MEDIUM,
        "Whether a new follower begins behind what is already in remote storage, and leaves out what its "
        "leader still has on the disk too.", mode=CLUSTER_WIDE),
)
# fmt: on
