"""What a node makes of its settings: types, ranges, precedence, synonyms, and what it refuses."""

from dataclasses import asdict

import pytest
from tests.support.rows import for_each

from ottla.coordinator.share.config import ShareCoordinatorConfig
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.log.cleaner.cleaner import CleanerConfig
from ottla.log.config.log_config import LogConfig
from ottla.log.producers.state_manager import ProducerStateManagerConfig
from ottla.log.scrub.scrubber import ScrubConfig
from ottla.metadata.log.metadata_log import MetadataLogConfig
from ottla.node.config.component_settings import (
    cleaner_config,
    metadata_log_config,
    producer_config,
    quorum_config,
    scrub_config,
)
from ottla.node.config.coordinator_settings import share_config, transaction_config
from ottla.node.config.definitions.config_def import ConfigError, ConfigType, UpdateMode, java_double
from ottla.node.config.definitions.group import CLIENT_METRICS, GROUP
from ottla.node.config.definitions.topic import TOPIC
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import BROKER, NodeConfig, broker_synonyms, unknown_names
from ottla.node.config.schema import log_config
from ottla.node.share.share_group_settings import share_group_settings
from ottla.node.share.share_partition import ShareGroupSettings
from ottla.protocol.security_protocol import SecurityProtocol
from ottla.raft.config import QuorumConfig


def test_defaults_pass_their_own_checks() -> None:
    for table in (BROKER, TOPIC, GROUP, CLIENT_METRICS):
        for key in table.values():
            assert key.parse(key.show(key.default)) == key.default, key.name


def test_parts_that_have_defaults_of_their_own_have_those_of_the_settings() -> None:
    alone = NodeConfig()
    assert log_config(alone, {}) == LogConfig()
    assert transaction_config(alone) == TransactionConfig()
    assert share_config(alone) == ShareCoordinatorConfig()
    assert share_group_settings(alone, {}, share_version=2) == ShareGroupSettings()
    assert quorum_config(alone) == QuorumConfig()
    assert metadata_log_config(alone) == MetadataLogConfig()
    assert asdict(producer_config(alone)) == asdict(ProducerStateManagerConfig())
    assert cleaner_config(alone) == CleanerConfig()
    assert scrub_config(alone) == ScrubConfig()


def test_every_setting_is_described() -> None:
    for table in (BROKER, TOPIC, GROUP, CLIENT_METRICS):
        for key in table.values():
            assert key.doc.endswith("."), key.name


def test_synonyms_of_topics_and_groups_are_broker_settings() -> None:
    for table in (TOPIC, GROUP):
        for key in table.values():
            for synonym in key.synonyms:
                assert synonym in BROKER
                assert BROKER[synonym].type in (key.type, ConfigType.INT, ConfigType.LONG), key.name


def test_listens_on_loopback_by_default() -> None:
    assert NodeConfig().listeners == (Endpoint("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 9092),)


def test_a_node_alone_needs_no_second_replica_for_its_internal_topics() -> None:
    alone = NodeConfig()
    assert alone.number("offsets.topic.replication.factor") == 1
    with_quorum = NodeConfig(
        {"controller.quorum.voters": "1@h:9093", "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"}
    )
    assert with_quorum.number("offsets.topic.replication.factor") == 3


@pytest.mark.parametrize(
    ("given", "expected_ms"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "2"}, 2 * 3_600_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 3 * 60_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_retention_wins(given: dict[str, str], expected_ms: int) -> None:
    config = NodeConfig(given)
    assert config.first_set("log.retention.ms") == expected_ms
    assert config.topic_defaults()["retention.ms"] == expected_ms


def test_topic_defaults_come_from_the_broker() -> None:
    defaults = NodeConfig({"log.segment.bytes": "2097152", "message.max.bytes": "99"}).topic_defaults()
    assert defaults["segment.bytes"] == 2097152
    assert defaults["max.message.bytes"] == 99
    assert defaults["flush.ms"] == 2**63 - 1
    assert defaults["cleanup.policy"] == ("delete",)
    assert set(defaults) == set(TOPIC)


@for_each(
    ("name", "value", "problem"),
    [
        ("num.partitions", "0", "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ("num.partitions", "many", "Not a number of type INT"),
        ("num.partitions", "9999999999", "Not a number of type INT"),
        ("auto.create.topics.enable", "yes", "Expected value to be either true or false"),
        ("compression.type", "brotli", "String must be one of: uncompressed, zstd"),
        ("compression.gzip.level", "0", "Value must be 1 to 9, or -1"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "Value must be no more than 1"),
        ("log.cleanup.policy", "archive", "compact, delete"),
        ("listeners", "127.0.0.1:9092", "expects NAME://host:port"),
        ("listeners", "PLAINTEXT://:99999", "0 to 65535"),
        ("listeners", "INTERNAL://:1", "listener.security.protocol.map"),
        ("listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2", "Each listener must have a different name"),
        (
            "advertised.listeners",
            "PLAINTEXT://0.0.0.0:9092",
            "cannot use the nonroutable meta-address",
        ),
        ("advertised.listeners", "SSL://host:9092", "Found SSL. The valid options"),
        (
            "broker.session.timeout.ms",
            "100",
            "must be greater than broker.heartbeat.interval.ms: they are 100",
        ),
        ("queued.max.request.bytes", "5", "must be larger or equal to socket.request.max.bytes"),
        ("controller.quorum.voters", "nonsense", "id@host:port"),
        ("max.connections.per.ip.overrides", "host", "host:count"),
        (
            "replica.selector.class",
            "com.example.Mine",
            "LeaderSelector, RackAwareReplicaSelector",
        ),
        ("broker.id", "7", None),
        ("log.retention.ms", "0", "must be unlimited (-1) or, greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name: str, value: str, problem: str | None) -> None:
    if problem is None:
        assert NodeConfig({name: value}).node_id == int(value)
        return
    with pytest.raises(ConfigError) as error:
        NodeConfig({name: value})
    assert problem in str(error.value)
    assert name in str(error.value)


def test_what_a_list_names_twice_counts_once() -> None:
    assert NodeConfig({"log.cleanup.policy": "delete, compact,delete"}).names("log.cleanup.policy") == (
        "delete",
        "compact",
    )


def test_a_password_is_never_shown() -> None:
    key = BROKER["ssl.key.password"]
    assert key.show("secret") is None
    assert "secret" not in str(key.error("secret", "too short"))


def test_dynamic_settings_lie_over_the_static_ones() -> None:
    static = NodeConfig({"message.max.bytes": "1000", "log.retention.hours": "1"})
    config, problems = static.with_dynamic(
        default={"message.max.bytes": "2000", "log.retention.ms": "5"}, broker={"message.max.bytes": "3000"}
    )
    assert problems == []
    assert config.number("message.max.bytes") == 3000
    assert config.topic_defaults()["retention.ms"] == 5
    assert static.number("message.max.bytes") == 1000


def test_dynamic_settings_that_cannot_be_used_are_named_and_left_out() -> None:
    config, problems = NodeConfig().with_dynamic(
        default={"num.partitions": "5", "message.max.bytes": "-1", "ssl.keystore.location": "/x"}, broker={}
    )
    assert config.number("num.partitions") == 1
    assert config.number("message.max.bytes") == 1048588
    assert len(problems) == 3
    assert "num.partitions is read-only" in problems[0]


def test_unknown_names_get_the_nearest_known_one() -> None:
    assert unknown_names(["log.retention.hour", "zookeeper.connect", "qqq", "num.partitions"]) == [
        "unknown setting log.retention.hour; did you mean log.retention.hours?",
        "unknown setting zookeeper.connect: Apache Kafka dropped it in 4.0; it is ignored",
        "unknown setting qqq; it is ignored",
    ]
    assert unknown_names(["table.catalog.warehose", "table.catalog.s3.role-arn", "table.catalog.uri"]) == [
        "unknown setting table.catalog.warehose; did you mean table.catalog.warehouse?"
    ]


def test_a_listener_may_have_settings_of_its_own() -> None:
    name = "listener.name.external.ssl.keystore.location"
    assert broker_synonyms(name) == (name, "ssl.keystore.location")
    assert NodeConfig({name: "/k"}).text(name) == "/k"


def test_ipv6_listeners() -> None:
    config = NodeConfig({"listeners": "PLAINTEXT://[::1]:9092"})
    assert config.listeners[0].host == "::1"
    assert str(config.listeners[0]) == "PLAINTEXT://[::1]:9092"


def test_the_controllers_listener_is_not_advertised() -> None:
    config = NodeConfig(
        {
            "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.quorum.voters": "1@localhost:9093",
        }
    )
    assert [endpoint.name for endpoint in config.advertised_listeners] == ["PLAINTEXT"]
    assert config.advertised_of_controller == config.listeners_of_controller


def test_what_is_advertised_of_the_controller_is_not_told_to_clients() -> None:
    """The file that comes with Apache Kafka advertises both."""
    settings = {
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": "PLAINTEXT://a.example:9092,CONTROLLER://b.example:9093",
        "controller.quorum.bootstrap.servers": "localhost:9093",
    }
    config = NodeConfig(settings)
    assert [str(each) for each in config.advertised_listeners] == ["PLAINTEXT://a.example:9092"]
    assert [str(each) for each in config.advertised_of_controller] == ["CONTROLLER://b.example:9093"]
    with pytest.raises(ConfigError, match=r"There must be at least one broker advertised listener"):
        NodeConfig(settings | {"advertised.listeners": "CONTROLLER://b.example:9093"})
    with pytest.raises(ConfigError, match=r"Found CONTROLLER\. The valid options"):
        NodeConfig({"advertised.listeners": settings["advertised.listeners"]})


def test_only_dynamic_settings_say_so() -> None:
    assert BROKER["message.max.bytes"].mode is UpdateMode.CLUSTER_WIDE
    assert BROKER["ssl.keystore.location"].mode is UpdateMode.PER_BROKER
    assert BROKER["num.partitions"].mode is UpdateMode.READ_ONLY


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"), (1.0, "1.0"), (1.7976931348623157e308, "1.7976931348623157E308"), (1e7, "1.0E7"),
        (12345678.5, "1.23456785E7"), (0.001, "0.001"), (0.0001, "1.0E-4"), (0.00012, "1.2E-4"),
        (-1e10, "-1.0E10"),
        (9999999.0, "9999999.0"), (1e-10, "1.0E-10"), (123456789012.0, "1.23456789012E11"), (0.0, "0.0"),
    ],
)  # fmt: skip
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert java_double(value) == text


def test_the_settings_of_a_broker_on_zookeeper_are_refused() -> None:
    of_zookeeper = {"broker.id": "1", "zookeeper.connect": "zk1:2181/kafka", "log.dirs": "/data"}
    with pytest.raises(ConfigError, match=r"zookeeper.connect is set.*`ottla zookeeper import`"):
        NodeConfig(of_zookeeper)
    assert NodeConfig(of_zookeeper | {"process.roles": "broker,controller"}).node_id == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"table.catalog.warehouse": "s3://bucket/tables"}, r"=s3://bucket/tables needs table.catalog.uri"),
        ({"table.catalog.warehouse": "s3://b", "table.catalog.uri": ""}, r"=s3://b needs table.catalog.uri"),
        ({"table.catalog.warehouse": "file://tables"}, r"=file://tables is no directory: set it to file:///"),
        ({"table.catalog.type": "rest"}, r"table.catalog.type=rest needs table.catalog.uri"),
        ({"table.catalog.type": "rest", "table.catalog.warehouse": "w"}, r"rest needs table.catalog.uri"),
    ],
)
def test_a_catalog_that_is_no_file_beside_its_tables_needs_an_address(
    given: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        NodeConfig(given)
    assert NodeConfig(given | {"table.catalog.uri": "http://catalog.example"}).is_broker
    of_controller = {
        "process.roles": "controller",
        "listeners": "CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "localhost:9093",
    }
    assert not NodeConfig(given | of_controller).is_broker
    assert NodeConfig({"table.catalog.warehouse": "file:///shared/tables"}).is_broker
