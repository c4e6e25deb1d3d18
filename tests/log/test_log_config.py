"""The settings of a topic."""

from __future__ import annotations

import pytest

from ottla.log.config.log_config import LONG_MAX, SETTING_NAMES, LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import Codec, TimestampType
from tests.support.rows import for_each


def test_the_defaults_are_kafkas() -> None:
    texts = LogConfig().to_settings()
    assert texts["segment.bytes"] == "1073741824"
    assert texts["segment.index.bytes"] == "10485760"
    assert texts["retention.ms"] == "604800000"
    assert texts["max.message.bytes"] == "1048588"
    assert texts["cleanup.policy"] == "delete"
    assert texts["message.timestamp.type"] == "CreateTime"
    assert texts["message.timestamp.after.max.ms"] == "3600000"
    assert texts["min.cleanable.dirty.ratio"] == "0.5"
    assert texts["flush.messages"] == str(LONG_MAX)
    assert texts["durability"] == "replicas"
    assert len(SETTING_NAMES) == 33 + 1, "those of Kafka, and durability"


def test_every_setting_can_be_read_back() -> None:
    config = LogConfig(
        cleanup_policy=frozenset({"compact", "delete"}),
        message_timestamp_type=TimestampType.LOG_APPEND_TIME,
        leader_replication_throttled_replicas=("0:101", "1:102"),
        preallocate=True,
        min_cleanable_dirty_ratio=0.25,
    )
    assert LogConfig.from_settings(config.to_settings()) == config


def test_settings_go_over_those_of_the_broker() -> None:
    broker = LogConfig(retention_ms=1000, segment_ms=500)
    topic = LogConfig.from_settings({"retention.ms": "-1"}, broker)
    assert (topic.retention_ms, topic.segment_ms) == (-1, 500)


@for_each(
    ("name", "text"),
    [
        ("segment.bytes", "1048575"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "1e6"),
        ("segment.bytes", "١٢٣٤٥٦٧"),
        ("retention.ms", "-2"),
        ("retention.ms", "9" * 30),
        ("retention.ms", "--1"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("cleanup.policy", "compact,purge"),
        ("compression.type", "none"),
        ("compression.gzip.level", "0"),
        ("message.timestamp.type", "createtime"),
        ("preallocate", "yes"),
        ("leader.replication.throttled.replicas", "0-101"),
        ("min.insync.replicas", "0"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, text: str) -> None:
    with pytest.raises(KafkaError) as refused:
        LogConfig.from_settings({name: text})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert name in refused.value.message
    assert repr(text) in refused.value.message


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(KafkaError, match=r"message\.downconversion\.enable"):
        LogConfig.from_settings({"message.downconversion.enable": "true"})


def test_the_least_lag_must_not_exceed_the_greatest() -> None:
    with pytest.raises(
        KafkaError, match=r"min\.compaction\.lag\.ms=10 is greater than max\.compaction\.lag\.ms=5"
    ):
        LogConfig.from_settings({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


def test_the_codec_of_the_broker_brings_its_level() -> None:
    assert LogConfig().target_codec is None
    config = LogConfig.from_settings({"compression.type": "zstd", "compression.zstd.level": "7"})
    assert (config.target_codec, config.target_level) == (Codec.ZSTD, 7)
    assert LogConfig(compression_type="uncompressed").target_codec is Codec.NONE


def test_a_compacted_topic_rolls_within_its_greatest_lag() -> None:
    lag = {"max_compaction_lag_ms": 10, "segment_ms": 100}
    assert LogConfig(cleanup_policy=frozenset({"compact"}), **lag).max_segment_ms == 10
    assert LogConfig(**lag).max_segment_ms == 100
