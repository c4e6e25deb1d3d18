"""The answers of the controller and the broker to changes of settings."""

import pytest
from tests.support.rows import for_each

from ottla.log.config.log_config import LogConfig
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.config.describe import ConfigValueSource, ConfigView
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.schema import NodeConfigSchema, check_broker_settings, log_config
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_configs import DescribeConfigsResourceResult
from ottla.records.types import TimestampType

TOPIC = ConfigResource(ConfigResourceType.TOPIC, "t")
GROUP = ConfigResource(ConfigResourceType.GROUP, "g")
METRICS = ConfigResource(ConfigResourceType.CLIENT_METRICS, "m")


def schema(**given: str) -> NodeConfigSchema:
    config = NodeConfig({name.replace("_", "."): value for name, value in given.items()})
    return NodeConfigSchema(lambda: config)


@for_each(
    ("resource", "settings", "code", "problem"),
    [
        (TOPIC, {"nonsense": "1"}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: nonsense"),
        (
            TOPIC,
            {"table.fromat": "iceberg"},
            ErrorCode.INVALID_CONFIG,
            "Unknown topic config name: table.fromat; did you mean table.format?",
        ),
        (TOPIC, {"retention.ms" * 999: "1"}, ErrorCode.INVALID_CONFIG, "Unknown topic config name: ret"),
        (TOPIC, {"retention.ms": "-2"}, ErrorCode.INVALID_CONFIG, "Value must be at least -1"),
        (
            TOPIC,
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            ErrorCode.INVALID_CONFIG,
            "min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (
            TOPIC,
            {"remote.storage.enable": "true"},
            ErrorCode.INVALID_CONFIG,
            "Set it to true in the settings of every broker, with rsm.config.storage.url",
        ),
        (
            TOPIC,
            {"leader.replication.throttled.replicas": "x"},
            ErrorCode.INVALID_CONFIG,
            "partition:broker",
        ),
        (GROUP, {"consumer.session.timeout.ms": "1"}, ErrorCode.INVALID_CONFIG, "group.consumer.min.session"),
        (
            GROUP,
            {"consumer.heartbeat.interval.ms": "99999"},
            ErrorCode.INVALID_CONFIG,
            "must be less than or equal to group.consumer.max.heartbeat.interval.ms",
        ),
        (GROUP, {"streams.num.standby.replicas": "9"}, ErrorCode.INVALID_CONFIG, "max.standby.replicas"),
        (GROUP, {"share.auto.offset.reset": "never"}, ErrorCode.INVALID_CONFIG, "latest, earliest"),
        (GROUP, {"nonsense": "1"}, ErrorCode.INVALID_CONFIG, "Unknown group config name: nonsense"),
        (METRICS, {"interval.ms": "5"}, ErrorCode.INVALID_REQUEST, "must be between 100 and 3600000"),
        (METRICS, {"match": "colour=red"}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern"),
        (METRICS, {"match": "client_id=["}, ErrorCode.INVALID_CONFIG, "Illegal client matching pattern"),
        (
            METRICS,
            {"nonsense": "1"},
            ErrorCode.INVALID_REQUEST,
            "Unknown client metrics configuration: nonsense",
        ),
    ],
)
def test_settings_that_are_refused(
    resource: ConfigResource, settings: dict[str, str], code: ErrorCode, problem: str
) -> None:
    with pytest.raises(KafkaError) as error:
        schema().validate(resource, settings, {})
    assert error.value.code is code
    assert problem in error.value.message


@pytest.mark.parametrize(
    ("resource", "settings"),
    [
        (TOPIC, {"cleanup.policy": "", "retention.ms": " 1000 ", "preallocate": "TRUE"}),
        (TOPIC, {"leader.replication.throttled.replicas": "*"}),
        (TOPIC, {"leader.replication.throttled.replicas": "0:1,1:2"}),
        (GROUP, {"share.auto.offset.reset": "by_duration:P1DT2H3M4.5S"}),
        (METRICS, {"match": "client_id=a.*,client_software_name=x", "metrics": "*"}),
    ],
)
def test_settings_that_are_taken(resource: ConfigResource, settings: dict[str, str]) -> None:
    schema().validate(resource, settings, {})


def test_other_settings_change_though_a_table_could_not_be_made_now(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"table.format": "iceberg", "table.schema.type": "registry"}
    with pytest.raises(KafkaError, match=r"table\.schema\.registry\.url"):
        schema().validate(TOPIC, table, {})
    schema().validate(TOPIC, {**table, "retention.ms": "5"}, table)
    monkeypatch.setattr("ottla.node.config.topic_table.find_spec", lambda _: None)
    with pytest.raises(KafkaError, match="needs pyiceberg"):
        schema().validate(TOPIC, {"table.format": "iceberg"}, {})
    schema().validate(
        TOPIC, {"table.format": "iceberg", "table.freshness.ms": "500"}, {"table.format": "iceberg"}
    )


def test_remote_storage_is_not_left_behind_by_switching_it_off() -> None:
    with_remote = schema(remote_log_storage_system_enable="true")
    with_remote.validate(TOPIC, {"remote.storage.enable": "true"}, {})
    with pytest.raises(KafkaError, match="without deleting remote data"):
        with_remote.validate(TOPIC, {"remote.storage.enable": "false"}, {"remote.storage.enable": "true"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cleanup.policy": "compact"}, "only supports topics with cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, "only supports topics with cleanup.policy=delete"),
        ({"retention.ms": "10", "local.retention.ms": "11"}, "not be more than retention.ms"),
        ({"retention.ms": "10", "local.retention.ms": "-1"}, "must not be -1 as retention.ms"),
        ({"retention.bytes": "10", "local.retention.bytes": "11"}, "not be more than retention.bytes"),
        ({"retention.bytes": "10", "local.retention.bytes": "-1"}, "must not be -1 as retention.bytes"),
        ({"remote.log.copy.disable": "true", "local.retention.ms": "5"}, "identical value"),
        ({"remote.log.copy.disable": "true", "local.retention.bytes": "5"}, "identical value"),
    ],
)
def test_settings_that_remote_storage_does_not_allow(settings: dict[str, str], message: str) -> None:
    with_remote = schema(remote_log_storage_system_enable="true")
    with pytest.raises(KafkaError, match=message):
        with_remote.validate(TOPIC, {"remote.storage.enable": "true", **settings}, {})
    if "remote.log.copy.disable" not in settings:
        with_remote.validate(TOPIC, settings, {})


def test_settings_that_remote_storage_allows() -> None:
    with_remote = schema(remote_log_storage_system_enable="true")
    for settings in (
        {"retention.ms": "10", "local.retention.ms": "-2"},
        {"retention.ms": "-1", "local.retention.ms": "-1"},
        {"retention.bytes": "-1", "local.retention.bytes": "5"},
        {"cleanup.policy": ""},
        {"remote.log.copy.disable": "true", "retention.ms": "5", "local.retention.ms": "5"},
    ):
        with_remote.validate(TOPIC, {"remote.storage.enable": "true", **settings}, {})
    with_remote.validate(
        TOPIC,
        {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
        {"remote.storage.enable": "true"},
    )


def test_the_value_in_effect_and_where_it_comes_from() -> None:
    found = {
        each.name: (each.value, each.source)
        for each in schema(log_retention_minutes="2", log_segment_bytes="2000000").topic_configs(
            {"cleanup.policy": "compact"},
            {"message.max.bytes": "5"},
            {"min.insync.replicas": "1", "message.max.bytes": "6"},
        )
    }
    assert found["cleanup.policy"] == ("compact", ConfigValueSource.TOPIC)
    assert found["max.message.bytes"] == ("5", ConfigValueSource.DYNAMIC_BROKER)
    assert found["min.insync.replicas"] == ("1", ConfigValueSource.DYNAMIC_DEFAULT_BROKER)
    assert found["retention.ms"] == ("120000", ConfigValueSource.STATIC_BROKER)
    assert found["segment.bytes"] == ("2000000", ConfigValueSource.STATIC_BROKER)
    assert found["flush.ms"] == (str(2**63 - 1), ConfigValueSource.DEFAULT)
    assert "internal.segment.bytes" not in found
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    ("settings", "per_broker", "problem"),
    [
        ({"num.partitions": "5"}, True, "Cannot update these configs dynamically: num.partitions"),
        ({"ssl.keystore.location": "/x"}, True, "only per-listener using the listener prefix"),
        (
            {"listeners": "PLAINTEXT://:1"},
            False,
            "at default cluster level: listeners",
        ),
        ({"message.max.bytes": "abc"}, True, "Not a number of type INT"),
        ({"log.cleaner.threads": "0"}, True, "value should be at least 1"),
        ({"background.threads": "50"}, True, "value should not be greater than double the current value"),
        ({"max.connections.per.ip": "0"}, True, "max.connections.per.ip.overrides"),
    ],
)
def test_settings_that_a_broker_cannot_take_over(
    settings: dict[str, str], per_broker: bool, problem: str
) -> None:
    with pytest.raises(KafkaError) as error:
        check_broker_settings(NodeConfig(), settings, per_broker=per_broker)
    assert error.value.code is ErrorCode.INVALID_REQUEST
    assert problem in error.value.message


def test_settings_that_a_broker_can_take_over() -> None:
    check_broker_settings(
        NodeConfig(),
        {"background.threads": "20", "message.max.bytes": "5", "no.such.setting": "x"},
        per_broker=True,
    )


def test_a_topics_log_runs_by_its_own_settings_over_those_of_the_broker() -> None:
    config = NodeConfig({"log.retention.hours": "1", "log.message.timestamp.type": "LogAppendTime"})
    assert log_config(config, {}) == LogConfig(
        retention_ms=3_600_000, message_timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    own = log_config(
        config,
        {
            "cleanup.policy": "compact,delete",
            "internal.segment.bytes": "100",
            "message.timestamp.type": "CreateTime",
            "retention.ms": "not a number",
        },
    )
    assert own.cleanup_policy == {"compact", "delete"}
    assert own.segment_bytes == 100
    assert own.message_timestamp_type is TimestampType.CREATE_TIME
    assert own.retention_ms == 3_600_000


def test_durability_is_that_of_the_topic_over_that_of_the_broker() -> None:
    config = NodeConfig({"log.durability": "disk"})
    assert log_config(config, {}).flush_due_messages == 1
    own = log_config(config, {"durability": "replicas", "flush.messages": "5"})
    assert (own.durability, own.flush_due_messages) == ("replicas", 5)
    assert log_config(NodeConfig(), {"durability": "disk"}).flush_due_messages == 1
    check_broker_settings(config, {"log.durability": "replicas"}, per_broker=False)
    with pytest.raises(KafkaError, match="must be one of: replicas, disk"):
        check_broker_settings(config, {"log.durability": "tape"}, per_broker=False)


def view(config: NodeConfig, *names: str) -> ConfigView:
    return ConfigView(config, names or None, synonyms=True, documentation=True)


def by_name(entries: list[DescribeConfigsResourceResult]) -> dict[str, DescribeConfigsResourceResult]:
    return {entry.name: entry for entry in entries}


def test_synonyms_say_where_a_value_could_have_come_from() -> None:
    config = NodeConfig(
        {"log.retention.hours": "5", "log.retention.ms": "7"},
        dynamic_default={"log.retention.ms": "8"},
        dynamic_broker={"log.retention.ms": "9"},
    )
    (entry,) = view(config, "retention.ms").topic({"retention.ms": "10"})
    assert [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("retention.ms", "10", ConfigValueSource.TOPIC),
        ("log.retention.ms", "9", ConfigValueSource.DYNAMIC_BROKER),
        ("log.retention.ms", "8", ConfigValueSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.ms", "7", ConfigValueSource.STATIC_BROKER),
        ("log.retention.hours", "5", ConfigValueSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigValueSource.DEFAULT),
    ]
    assert (entry.value, entry.config_source, entry.read_only) == ("10", ConfigValueSource.TOPIC, False)


def test_passwords_and_settings_of_unknown_type_are_not_shown() -> None:
    config = NodeConfig({"ssl.key.password": "xyzzy", "my.plugin.key": "also xyzzy"})
    entries = by_name(view(config).broker())
    for name in ("ssl.key.password", "my.plugin.key"):
        assert entries[name].value is None
        assert entries[name].is_sensitive
        assert all(synonym.value is None for synonym in entries[name].synonyms)
    assert "xyzzy" not in repr(entries)


def test_a_broker_lists_what_it_has_and_a_throttle_only_once_it_is_set() -> None:
    throttle = "leader.replication.throttled.rate"
    assert throttle not in by_name(view(NodeConfig()).broker())
    throttled = NodeConfig(dynamic_broker={throttle: "1000"})
    assert by_name(view(throttled).broker())[throttle].value == "1000"
    assert by_name(view(NodeConfig()).broker())["num.partitions"].read_only
    assert not by_name(view(NodeConfig()).broker())["message.max.bytes"].read_only
