"""Altering configs: set, delete, append, subtract, replace, and what is refused."""

from __future__ import annotations

import pytest

from ottla.metadata.controller.configs import OpType
from ottla.metadata.controller.state import ControllerRequestContext
from ottla.metadata.image.entities import CLUSTER_DEFAULT, ConfigResource, ConfigResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_configs import (
    AlterableConfig as LegacyConfig,
)
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
)
from ottla.protocol.messages.alter_configs import (
    AlterConfigsResource as LegacyResource,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.metadata_records import ClearElrRecord
from tests.metadata.controller_harness import ControllerHarness

ORDERS = ConfigResource(ConfigResourceType.TOPIC, "orders")
BROKER = ConfigResource(ConfigResourceType.BROKER, "0")
Outcome = tuple[int, str | None]


def alter(
    world: ControllerHarness,
    resource: ConfigResource,
    *changes: tuple[str, OpType | int, str | None],
    validate_only: bool = False,
    context: ControllerRequestContext | None = None,
) -> Outcome:
    configs = [
        AlterableConfig(name=name, config_operation=int(op), value=value) for name, op, value in changes
    ]
    asked = AlterConfigsResource(resource_type=resource.type, resource_name=resource.name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=validate_only)
    result = world.controller.incremental_alter_configs(request, context or ControllerRequestContext())
    [response] = world.do(result).responses
    return response.error_code, response.error_message


def replace(world: ControllerHarness, resource: ConfigResource, **values: str | None) -> Outcome:
    configs = [LegacyConfig(name=name.replace("_", "."), value=value) for name, value in values.items()]
    asked = LegacyResource(resource_type=resource.type, resource_name=resource.name, configs=configs)
    [response] = world.do(world.controller.alter_configs(AlterConfigsRequest(resources=[asked]))).responses
    return response.error_code, response.error_message


OK: Outcome = (ErrorCode.NONE, None)


@pytest.fixture
def world() -> ControllerHarness:
    made = ControllerHarness()
    made.create("orders", partitions=1, replicas=1)
    return made


def test_set_and_delete(world: ControllerHarness) -> None:
    assert alter(world, ORDERS, ("retention.ms", OpType.SET, "1"), ("segment.bytes", OpType.SET, "2")) == OK
    assert world.image.config(ORDERS) == {"retention.ms": "1", "segment.bytes": "2"}
    assert alter(world, ORDERS, ("retention.ms", OpType.DELETE, None)) == OK
    assert world.image.config(ORDERS) == {"segment.bytes": "2"}


def test_setting_what_is_set_writes_nothing_for_a_topic_but_reloads_a_broker(
    world: ControllerHarness,
) -> None:
    alter(world, ORDERS, ("retention.ms", OpType.SET, "1"))
    before = world.next_offset
    alter(world, ORDERS, ("retention.ms", OpType.SET, "1"))
    assert world.next_offset == before
    alter(world, BROKER, ("ssl.keystore.location", OpType.SET, "/k"))
    alter(world, BROKER, ("ssl.keystore.location", OpType.SET, "/k"))
    assert world.next_offset == before + 2


def test_append_starts_from_the_default_and_subtract_takes_away(world: ControllerHarness) -> None:
    assert alter(world, ORDERS, ("cleanup.policy", OpType.APPEND, "compact")) == OK
    assert world.image.config(ORDERS)["cleanup.policy"] == "delete,compact"
    assert alter(world, ORDERS, ("cleanup.policy", OpType.APPEND, "compact")) == OK
    assert world.image.config(ORDERS)["cleanup.policy"] == "delete,compact"
    assert alter(world, ORDERS, ("cleanup.policy", OpType.SUBTRACT, "delete")) == OK
    assert world.image.config(ORDERS)["cleanup.policy"] == "compact"


def test_only_lists_are_appended_to(world: ControllerHarness) -> None:
    code, message = alter(world, ORDERS, ("retention.ms", OpType.APPEND, "1"))
    assert code == ErrorCode.INVALID_CONFIG
    assert message == "Can't APPEND to key retention.ms because its type is not LIST. Use SET."


def test_one_bad_config_fails_the_resource(world: ControllerHarness) -> None:
    code, _ = alter(world, ORDERS, ("retention.ms", OpType.SET, "1"), ("no.such", OpType.SET, "1"))
    assert code == ErrorCode.INVALID_CONFIG
    assert world.image.config(ORDERS) == {}


def test_validate_only(world: ControllerHarness) -> None:
    assert alter(world, ORDERS, ("retention.ms", OpType.SET, "1"), validate_only=True) == OK
    assert world.image.config(ORDERS) == {}


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (ConfigResource(ConfigResourceType.TOPIC, "ghost"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ConfigResource(ConfigResourceType.TOPIC, ""), ErrorCode.INVALID_REQUEST),
        (ConfigResource(ConfigResourceType.TOPIC, "a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ConfigResource(ConfigResourceType.BROKER, "7"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (ConfigResource(ConfigResourceType.BROKER, "seven"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(ConfigResourceType.BROKER, "-1"), ErrorCode.INVALID_REQUEST),
        (ConfigResource(ConfigResourceType.GROUP, ""), ErrorCode.INVALID_REQUEST),
        (ConfigResource(ConfigResourceType.CLIENT_METRICS, ""), ErrorCode.INVALID_REQUEST),
        (ConfigResource(99, "x"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_that_cannot_be_altered(
    world: ControllerHarness, resource: ConfigResource, code: ErrorCode
) -> None:
    assert alter(world, resource, ("retention.ms", OpType.SET, "1"))[0] == code


@pytest.mark.parametrize(
    "resource",
    [
        CLUSTER_DEFAULT,
        BROKER,
        ConfigResource(ConfigResourceType.GROUP, "readers"),
        ConfigResource(ConfigResourceType.CLIENT_METRICS, "metrics"),
    ],
)
def test_every_kind_of_resource_is_kept(world: ControllerHarness, resource: ConfigResource) -> None:
    assert alter(world, resource, ("some.config", OpType.SET, "1")) == OK
    assert world.image.config(resource)["some.config"] == "1"


def test_malformed_changes(world: ControllerHarness) -> None:
    twice = alter(world, ORDERS, ("retention.ms", OpType.SET, "1"), ("retention.ms", OpType.SET, "2"))
    assert twice == (ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    null = alter(world, ORDERS, ("retention.ms", OpType.SET, None))
    assert null == (ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms")
    assert alter(world, ORDERS, ("retention.ms", 9, "1"))[0] == ErrorCode.INVALID_REQUEST
    assert alter(world, BROKER, ("x", OpType.SET, "y" * 40_000))[0] == ErrorCode.INVALID_CONFIG


def test_a_resource_may_appear_once(world: ControllerHarness) -> None:
    asked = AlterConfigsResource(
        resource_type=ORDERS.type,
        resource_name=ORDERS.name,
        configs=[AlterableConfig(name="retention.ms", config_operation=0, value="1")],
    )
    request = IncrementalAlterConfigsRequest(resources=[asked, asked])
    responses = world.do(world.controller.incremental_alter_configs(request)).responses
    assert {response.error_message for response in responses} == {"Each resource must appear at most once."}
    assert world.image.config(ORDERS) == {}


def test_the_old_request_replaces_everything(world: ControllerHarness) -> None:
    alter(world, ORDERS, ("segment.bytes", OpType.SET, "2"))
    assert replace(world, ORDERS, retention_ms="9") == OK
    assert world.image.config(ORDERS) == {"retention.ms": "9"}
    assert replace(world, ORDERS) == OK
    assert world.image.config(ORDERS) == {}
    assert replace(world, ORDERS, retention_ms=None)[0] == ErrorCode.INVALID_REQUEST


def test_who_may_not_alter_configs(world: ControllerHarness) -> None:
    forbidden = ControllerRequestContext(allowed=lambda operation, kind, name: False)
    for resource, code in (
        (ORDERS, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (BROKER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ConfigResource(ConfigResourceType.GROUP, "g"), ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ):
        assert alter(world, resource, ("retention.ms", OpType.SET, "1"), context=forbidden)[0] == code


class TestMinInsyncReplicasBesideEligibleLeaders:
    def test_the_bootstrap_sets_one_for_the_cluster(self, world: ControllerHarness) -> None:
        assert world.image.config(CLUSTER_DEFAULT) == {"min.insync.replicas": "1"}

    def test_it_is_one_setting_of_the_cluster(self, world: ControllerHarness) -> None:
        of_a_broker = alter(world, BROKER, ("min.insync.replicas", OpType.SET, "2"))
        assert of_a_broker == (
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled. Set it for topics or "
            "for the whole cluster.",
        )
        removal = alter(world, CLUSTER_DEFAULT, ("min.insync.replicas", OpType.DELETE, None))
        assert removal == (
            ErrorCode.INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled. Set another value "
            "instead.",
        )
        assert alter(world, CLUSTER_DEFAULT, ("min.insync.replicas", OpType.SET, "2")) == OK

    def test_changing_it_clears_the_eligible_sets(self, world: ControllerHarness) -> None:
        alter(world, ORDERS, ("min.insync.replicas", OpType.SET, "2"))
        assert world.log[-1] == ClearElrRecord(topic_name="orders")
        alter(world, CLUSTER_DEFAULT, ("min.insync.replicas", OpType.SET, "2"))
        assert world.log[-1] == ClearElrRecord(topic_name="")
