"""The settings of a topic, and the broker settings that stand in for those it does not have."""

from __future__ import annotations

from typing import Final

from ottla.log.config.log_config import DURABILITIES
from ottla.node.config.definitions.config_def import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    MAX_LONG,
    MEDIUM,
    STRING,
    ConfigKey,
    InRange,
    Matches,
    RangeOr,
    ValidList,
    ValidString,
    config_def,
    key,
)

THROTTLED_REPLICAS: Final = Matches(r"\*|[0-9]+:[0-9]+", "partition:broker pairs, or * for all")

# fmt: off
TOPIC: Final[dict[str, ConfigKey]] = config_def(
    key("cleanup.policy", LIST, ("delete",), MEDIUM,
        "What becomes of old segments: delete them, compact them to the last value of each key, both, or "
        "(empty) neither.", ValidList(("compact", "delete")), synonyms=("log.cleanup.policy",)),
    key("compression.type", STRING, "producer", MEDIUM,
        "How the topic is compressed on disk: a codec, uncompressed, or producer, which keeps what the "
        "producer chose.",
        ValidString(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
        synonyms=("compression.type",)),
    key("compression.gzip.level", INT, -1, MEDIUM,
        "The level when compression.type is gzip; -1 is the codec's own default.",
        RangeOr(InRange(1, 9), -1), synonyms=("compression.gzip.level",)),
    key("compression.lz4.level", INT, 9, MEDIUM,
        "The level when compression.type is lz4.", InRange(1, 17), synonyms=("compression.lz4.level",)),
    key("compression.zstd.level", INT, 3, MEDIUM,
        "The level when compression.type is zstd.",
        InRange(-131_072, 22), synonyms=("compression.zstd.level",)),
    key("delete.retention.ms", LONG, 86_400_000, MEDIUM,
        "How long tombstones and transaction markers are kept after compaction has reached them. A reader "
        "that begins at the start must reach the end within it to see every deletion.",
        InRange(0), synonyms=("log.cleaner.delete.retention.ms",)),
    key("durability", STRING, "replicas", MEDIUM,
        "What holds an acknowledged record: replicas, the in-sync replicas, perhaps in memory alone, as with "
        "Apache Kafka; or disk, the disk of each of them, so that no loss of power loses it.",
        ValidString(DURABILITIES), internal=True, synonyms=("log.durability",)),
    key("errors.deadletterqueue.group.enable", BOOLEAN, False, MEDIUM,
        "Whether the topic may be the dead-letter topic of share groups."),
    key("file.delete.delay.ms", LONG, 60_000, MEDIUM,
        "How long a deleted segment's file stays on disk, for readers that still use it.",
        InRange(0), synonyms=("log.segment.delete.delay.ms",)),
    key("flush.messages", LONG, MAX_LONG, MEDIUM,
        "How many records a partition takes before it is flushed to the disk. Replication is the better "
        "guard; leave it unset.", InRange(1), synonyms=("log.flush.interval.messages",)),
    key("flush.ms", LONG, MAX_LONG, MEDIUM,
        "How long a record stays unflushed at most. Replication is the better guard; leave it unset.",
        InRange(0), synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms")),
    key("follower.replication.throttled.replicas", LIST, (), MEDIUM,
        "Followers whose fetching is throttled, as partition:broker pairs; * stands for all.",
        THROTTLED_REPLICAS),
    key("leader.replication.throttled.replicas", LIST, (), MEDIUM,
        "Leaders whose sending to followers is throttled, as partition:broker pairs; * stands for all.",
        THROTTLED_REPLICAS),
    key("index.interval.bytes", INT, 4096, MEDIUM,
        "How many bytes of records lie between two entries of the offset index.",
        InRange(0), synonyms=("log.index.interval.bytes",)),
    key("internal.segment.bytes", INT, None, MEDIUM,
        "As segment.bytes without its lower bound. For tests.", internal=True),
    key("local.retention.bytes", LONG, -2, MEDIUM,
        "How much of a tiered partition also stays on the local disk; -2 means as much as "
        "retention.bytes.", InRange(-2), synonyms=("log.local.retention.bytes",)),
    key("local.retention.ms", LONG, -2, MEDIUM,
        "How long tiered segments also stay on the local disk; -2 means as long as retention.ms.",
        InRange(-2), synonyms=("log.local.retention.ms",)),
    key("max.compaction.lag.ms", LONG, MAX_LONG, MEDIUM,
        "How long a record at most stays out of reach of compaction.",
        InRange(1), synonyms=("log.cleaner.max.compaction.lag.ms",)),
    key("min.compaction.lag.ms", LONG, 0, MEDIUM,
        "How long a record at least stays as written before compaction may touch it.",
        InRange(0), synonyms=("log.cleaner.min.compaction.lag.ms",)),
    key("max.message.bytes", INT, 1_048_588, MEDIUM,
        "The largest batch of records (after compression) that the topic takes.",
        InRange(0), synonyms=("message.max.bytes",)),
    key("message.timestamp.after.max.ms", LONG, 3_600_000, MEDIUM,
        "How far a producer's timestamp may lie ahead of the broker's clock.",
        InRange(0), synonyms=("log.message.timestamp.after.max.ms",)),
    key("message.timestamp.before.max.ms", LONG, MAX_LONG, MEDIUM,
        "How far a producer's timestamp may lie behind the broker's clock.",
        InRange(0), synonyms=("log.message.timestamp.before.max.ms",)),
    key("message.timestamp.type", STRING, "CreateTime", MEDIUM,
        "Whether a record's timestamp is the producer's (CreateTime) or the time of the append "
        "(LogAppendTime).",
        ValidString(("CreateTime", "LogAppendTime")), synonyms=("log.message.timestamp.type",)),
    key("min.cleanable.dirty.ratio", DOUBLE, 0.5, MEDIUM,
        "The share of a log that must be uncleaned before it is compacted.",
        InRange(0, 1), synonyms=("log.cleaner.min.cleanable.ratio",)),
    key("min.insync.replicas", INT, 1, MEDIUM,
        "How many in-sync replicas a partition needs before a write with acks=all is accepted.",
        InRange(1), synonyms=("min.insync.replicas",)),
    key("preallocate", BOOLEAN, False, MEDIUM,
        "Reserve a segment's space on the disk when it is created.", synonyms=("log.preallocate",)),
    key("remote.log.copy.disable", BOOLEAN, False, MEDIUM,
        "Stop uploading segments; what is in remote storage stays readable."),
    key("remote.log.delete.on.disable", BOOLEAN, False, MEDIUM,
        "Delete the topic's remote segments when tiered storage is turned off."),
    key("remote.storage.enable", BOOLEAN, False, MEDIUM,
        "Whether closed segments of the topic go to remote storage."),
    key("retention.bytes", LONG, -1, MEDIUM,
        "The size above which a partition's oldest segments are deleted; -1 sets no limit. It counts per "
        "partition.", synonyms=("log.retention.bytes",)),
    key("retention.ms", LONG, 604_800_000, MEDIUM,
        "How long a segment is kept before it may be deleted; -1 keeps it without limit.",
        InRange(-1), synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours")),
    key("segment.bytes", INT, 1_073_741_824, MEDIUM,
        "The size at which a segment is closed and a new one begun. Retention and compaction work on "
        "closed segments.", InRange(1_048_576), synonyms=("log.segment.bytes",)),
    key("segment.index.bytes", INT, 10_485_760, MEDIUM,
        "The size of an offset index at which its segment is closed.",
        InRange(4), synonyms=("log.index.size.max.bytes",)),
    key("segment.jitter.ms", LONG, 0, MEDIUM,
        "The most that is taken off segment.ms at random, so that segments do not all roll at once.",
        InRange(0), synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours")),
    key("segment.ms", LONG, 604_800_000, MEDIUM,
        "The age at which a segment is closed even if it is not full, so that retention can delete it.",
        InRange(1), synonyms=("log.roll.ms", "log.roll.hours")),
    key("table.format", STRING, "none", MEDIUM,
        "Whether the brokers keep an Iceberg table of the topic's committed records: iceberg, or none.",
        ValidString(("none", "iceberg")), internal=True),
    key("table.freshness.ms", LONG, 60_000, MEDIUM,
        "How often new records are committed to the topic's table.", InRange(100), internal=True),
    key("table.mode", STRING, "append", MEDIUM,
        "What the rows of the topic's table are: append, one for each record; or latest, one for each key of "
        "a compacted topic, with its latest value, until a tombstone deletes it. For a new table.",
        ValidString(("append", "latest")), internal=True),
    key("table.partition.by", STRING, "none", MEDIUM,
        "How a new table is partitioned: none, day or hour (of the records' timestamps), or field:NAME, a "
        "column of table.schema.", Matches(r"none|day|hour|field:\S+", "none, day, hour or field:NAME"),
        internal=True),
    key("table.schema", STRING, "", MEDIUM,
        "The schema of the records' values, as text: a table gets a column for each of its fields.",
        internal=True),
    key("table.schema.type", STRING, "none", MEDIUM,
        "What table.schema is: json (JSON Schema), avro or protobuf; or registry, where records begin with "
        "the id of their schema in table.schema.registry.url.",
        ValidString(("none", "json", "avro", "protobuf", "registry")), internal=True),
    key("unclean.leader.election.enable", BOOLEAN, False, MEDIUM,
        "Whether a replica that is not in sync may lead when no other is left; records may be lost.",
        synonyms=("unclean.leader.election.enable",)),
)
# fmt: on

DEAD_LETTER_ENABLE: Final = "errors.deadletterqueue.group.enable"
# Extensions of Ottla: what a topic's table is like. No log has these.
TABLE_SETTINGS: Final = tuple(name for name in TOPIC if name.startswith("table."))
# All that Apache Kafka does not have.
OWN_TOPIC_SETTINGS: Final = ("durability", *TABLE_SETTINGS)
