"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of all kinds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.protocol.messages import alter_configs as legacy
from ottla.protocol.messages import incremental_alter_configs
from ottla.protocol.messages.alter_configs import AlterConfigsRequest
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.kafka.scripts.kit import make_topic, script
from tests.support.differential import Session

UNKNOWN, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

# Settings of the two nodes that are compared must differ: where they are, and how large a test's node is.
OWN_SETTINGS = frozenset(
    {
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "num.io.threads",
        "num.network.threads",
        "process.roles",
    }
)


def _describe(
    kind: int,
    name: str,
    keys: Iterable[str] | None = None,
    *,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
    )
    return DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=documentation
    )


def _without_own_settings(answer: Any) -> None:
    for result in answer.results:
        for config in result.configs:
            if config.name in OWN_SETTINGS:
                config.value = None
                config.config_source = -1
                config.synonyms = []


@script
def describe_configs_of_topics(session: Session) -> None:
    make_topic(session, "configs-a", configs={"retention.ms": "5000", "cleanup.policy": "compact,delete"})
    make_topic(session, "configs-b")
    for version in session.versions(DescribeConfigsRequest):
        session.ask("all", _describe(TOPIC, "configs-a"), version)
        session.ask("all with synonyms", _describe(TOPIC, "configs-b", synonyms=True), version)
        keys = ["retention.ms", "segment.bytes", "no.such.setting"]
        session.ask("some", _describe(TOPIC, "configs-a", keys, synonyms=True), version)
        session.ask("none", _describe(TOPIC, "configs-a", []), version)
        session.ask("unknown topic", _describe(TOPIC, "configs-none"), version)
        session.ask("invalid topic", _describe(TOPIC, "a/b"), version)
        session.ask("no topic", _describe(TOPIC, ""), version)
        if version >= 3:
            described = _describe(TOPIC, "configs-a", ["retention.ms", "cleanup.policy"], documentation=True)
            session.ask("documentation", described, version)
        several = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC, resource_name=name, configuration_keys=["retention.ms"]
                )
                for name in ("configs-a", "configs-b", "configs-a", "configs-none")
            ]
        )
        session.ask("several", several, version)


@script
def describe_configs_of_brokers(session: Session) -> None:
    for version in session.versions(DescribeConfigsRequest):
        session.ask("all", _describe(BROKER, "1", synonyms=True), version, edit=_without_own_settings)
        session.ask("cluster default", _describe(BROKER, "", synonyms=True), version)
        session.ask("some", _describe(BROKER, "1", ["log.retention.ms", "no.such"], synonyms=True), version)
        for name in ("2", "-1", "one"):
            session.ask(f"broker {name!r}", _describe(BROKER, name), version)
        for kind in (UNKNOWN, 1, 3, 99, -1):
            session.ask(f"resource type {kind}", _describe(kind, "1"), version)


@script
def describe_configs_of_groups_and_metrics(session: Session) -> None:
    for version in session.versions(DescribeConfigsRequest):
        session.ask("group", _describe(GROUP, "configs-group", synonyms=True), version)
        session.ask("no group", _describe(GROUP, ""), version)
        session.ask("metrics", _describe(CLIENT_METRICS, "configs-metrics", synonyms=True), version)
        session.ask("no metrics", _describe(CLIENT_METRICS, ""), version)
        session.ask("logger of another broker", _describe(BROKER_LOGGER, "2"), version)


def _alter(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def _await_setting(session: Session, kind: int, name: str, key: str, value: str | None) -> None:
    """Waits until a change of a setting has reached the broker."""

    def reached(answer: DescribeConfigsResponse) -> bool:
        return [config.value for config in answer.results[0].configs] == [value]

    session.until(_describe(kind, name, [key]), DescribeConfigsResponse, reached)


@script
def incremental_alter_configs_of_topics(session: Session) -> None:
    for version in session.versions(IncrementalAlterConfigsRequest):
        topic = f"alter-{version}"
        make_topic(session, topic, configs={"retention.ms": "5000"})

        def ask(
            label: str,
            *changes: tuple[str, int, str | None],
            name: str = topic,
            kind: int = TOPIC,
            validate_only: bool = False,
            version: int = version,
        ) -> None:
            session.ask(label, _alter(kind, name, *changes, validate_only=validate_only), version)

        ask("validate", ("retention.ms", SET, "6000"), validate_only=True)
        ask("set", ("retention.ms", SET, "7000"), ("segment.bytes", SET, "2000000"))
        ask("append", ("cleanup.policy", APPEND, "compact"))
        ask("append what is there", ("cleanup.policy", APPEND, "compact"))
        ask("subtract", ("cleanup.policy", SUBTRACT, "delete"))
        ask("subtract what is not there", ("cleanup.policy", SUBTRACT, "delete"))
        ask("append two", ("leader.replication.throttled.replicas", APPEND, "0:1,1:1"))
        ask("delete", ("segment.bytes", DELETE, None))
        ask("delete with a value", ("retention.ms", DELETE, "1"))
        ask("delete what is not set", ("segment.ms", DELETE, None))
        ask("delete unknown", ("no.such.setting", DELETE, None))
        ask("set unknown", ("no.such.setting", SET, "1"))
        ask("set null", ("retention.ms", SET, None))
        ask("set invalid", ("retention.ms", SET, "soon"))
        ask("set out of range", ("segment.bytes", SET, "1"))
        ask("append to a number", ("retention.ms", APPEND, "1"))
        ask("append null", ("cleanup.policy", APPEND, None))
        ask("append invalid", ("cleanup.policy", APPEND, "keep"))
        ask("one key twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        ask("one key set and deleted", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
        ask("no change")
        ask("unknown topic", ("retention.ms", SET, "1"), name="alter-none")
        ask("invalid topic", ("retention.ms", SET, "1"), name="a/b")
        ask("no topic", ("retention.ms", SET, "1"), name="")
        for kind in (UNKNOWN, 1, 3, 99):
            ask(f"resource type {kind}", ("retention.ms", SET, "1"), kind=kind)
        ask("last", ("retention.bytes", SET, "12345"))
        _await_setting(session, TOPIC, topic, "retention.bytes", "12345")
        keys = ["retention.ms", "segment.bytes", "cleanup.policy", "leader.replication.throttled.replicas"]
        session.ask("in the end", _describe(TOPIC, topic, keys, synonyms=True))
        resource = _alter(TOPIC, topic, ("retention.ms", SET, "9")).resources[0]
        session.ask(
            "one topic twice", IncrementalAlterConfigsRequest(resources=[resource, resource]), version
        )
        session.ask("no resources", IncrementalAlterConfigsRequest(resources=[]), version)


@script
def incremental_alter_configs_of_brokers(session: Session) -> None:
    for version in session.versions(IncrementalAlterConfigsRequest):

        def ask(label: str, name: str, *changes: tuple[str, int, str | None], version: int = version) -> None:
            session.ask(label, _alter(BROKER, name, *changes), version)

        ask("this broker", "1", ("log.cleaner.threads", SET, "2"))
        _await_setting(session, BROKER, "1", "log.cleaner.threads", "2")
        ask("cluster", "", ("log.cleaner.threads", SET, "3"), ("log.retention.ms", SET, "999999"))
        _await_setting(session, BROKER, "", "log.retention.ms", "999999")
        keys = ["log.cleaner.threads", "log.retention.ms", "log.retention.hours"]
        session.ask("then", _describe(BROKER, "1", keys, synonyms=True))
        session.ask("then the cluster", _describe(BROKER, "", synonyms=True))
        ask("read only", "1", ("node.id", SET, "5"))
        ask("read only for the cluster", "", ("log.dirs", SET, "/nowhere"))
        ask("only for a broker", "", ("listeners", SET, "PLAINTEXT://:0"))
        ask("unknown", "1", ("no.such.setting", SET, "5"))
        ask("invalid", "1", ("log.retention.ms", SET, "soon"))
        ask("out of range", "1", ("log.cleaner.threads", SET, "0"))
        ask("another broker", "2", ("log.retention.ms", SET, "1"))
        ask("not a number", "one", ("log.retention.ms", SET, "1"))
        ask("undo", "1", ("log.cleaner.threads", DELETE, None), ("no.such.setting", DELETE, None))
        ask(
            "undo for the cluster",
            "",
            ("log.cleaner.threads", DELETE, None),
            ("log.retention.ms", DELETE, None),
        )
        _await_setting(session, BROKER, "1", "log.cleaner.threads", "1")
        session.ask("in the end", _describe(BROKER, "1", keys, synonyms=True))


@script
def incremental_alter_configs_of_groups_and_metrics(session: Session) -> None:
    def ask(label: str, kind: int, name: str, *changes: tuple[str, int, str | None]) -> None:
        session.ask(label, _alter(kind, name, *changes))

    ask("group", GROUP, "alter-group", ("consumer.session.timeout.ms", SET, "50000"))
    _await_setting(session, GROUP, "alter-group", "consumer.session.timeout.ms", "50000")
    session.ask("group then", _describe(GROUP, "alter-group", synonyms=True))
    ask("group out of range", GROUP, "alter-group", ("consumer.session.timeout.ms", SET, "1"))
    ask("group unknown", GROUP, "alter-group", ("no.such.setting", SET, "1"))
    ask("group without a name", GROUP, "", ("consumer.session.timeout.ms", SET, "50000"))
    ask("metrics", CLIENT_METRICS, "alter-metrics", ("interval.ms", SET, "5000"), ("metrics", SET, "a.b"))
    ask("metrics out of range", CLIENT_METRICS, "alter-metrics", ("interval.ms", SET, "1"))
    ask("metrics without a name", CLIENT_METRICS, "", ("interval.ms", SET, "5000"))
    ask("metrics unknown", CLIENT_METRICS, "alter-metrics", ("no.such.setting", SET, "1"))
    ask("metrics match", CLIENT_METRICS, "alter-metrics", ("match", SET, "client_id=a.*"))
    ask("metrics wrong match", CLIENT_METRICS, "alter-metrics", ("match", SET, "colour=red"))
    _await_setting(session, CLIENT_METRICS, "alter-metrics", "match", "client_id=a.*")
    session.ask("metrics then", _describe(CLIENT_METRICS, "alter-metrics", synonyms=True))

    def ours(answer: Any) -> None:
        resources = answer.config_resources
        mine = {"alter-group", "alter-metrics"}
        answer.config_resources = [each for each in resources if each.resource_name in mine]

    for version in session.versions(ListConfigResourcesRequest):
        for kinds in [[]] if version == 0 else [[], [GROUP], [CLIENT_METRICS, GROUP], [BROKER], [99]]:
            session.ask(f"list {kinds}", ListConfigResourcesRequest(resource_types=kinds), version, edit=ours)
    for kind, name, key in (
        (GROUP, "alter-group", "consumer.session.timeout.ms"),
        (CLIENT_METRICS, "alter-metrics", "interval.ms"),
        (CLIENT_METRICS, "alter-metrics", "metrics"),
        (CLIENT_METRICS, "alter-metrics", "match"),
    ):
        ask(f"undo {key}", kind, name, (key, DELETE, None))


@script
def alter_configs(session: Session) -> None:
    """The old request replaces all settings of a resource."""
    for version in session.versions(AlterConfigsRequest):
        topic = f"replace-{version}"
        make_topic(session, topic, configs={"retention.ms": "5000", "segment.bytes": "2000000"})

        def ask(
            label: str,
            values: dict[str, str | None],
            *,
            name: str = topic,
            kind: int = TOPIC,
            validate_only: bool = False,
            version: int = version,
        ) -> None:
            configs = [_legacy_entry(key, value) for key, value in values.items()]
            resource = _legacy_resource(kind, name, configs)
            session.ask(
                label, AlterConfigsRequest(resources=[resource], validate_only=validate_only), version
            )

        ask("validate", {"retention.ms": "1"}, validate_only=True)
        ask("replace", {"retention.bytes": "777"})
        _await_setting(session, TOPIC, topic, "retention.bytes", "777")
        session.ask("then", _describe(TOPIC, topic, ["retention.ms", "segment.bytes", "retention.bytes"]))
        ask("unknown", {"no.such.setting": "1"})
        ask("invalid", {"retention.ms": "soon"})
        ask("null", {"retention.ms": None})
        ask("unknown topic", {"retention.ms": "1"}, name="replace-none")
        ask("no topic", {"retention.ms": "1"}, name="")
        ask("unknown broker", {"log.retention.ms": "1"}, name="9", kind=BROKER)
        ask("resource type 99", {"retention.ms": "1"}, kind=99)
        ask("nothing", {})


def _legacy_entry(name: str, value: str | None) -> legacy.AlterableConfig:
    return legacy.AlterableConfig(name=name, value=value)


def _legacy_resource(
    kind: int, name: str, configs: list[legacy.AlterableConfig]
) -> legacy.AlterConfigsResource:
    return legacy.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
