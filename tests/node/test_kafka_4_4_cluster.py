"""What Kafka 4.4 has added for clusters: levels of metadata.version, and controllers that are forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.support import kafka_libs
from tests.support.java import run_tool
from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes
from tests.support.wire import CLOSED, WireClient

from ottla.client.admin import Admin
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from ottla.protocol.messages.unregister_controller import (
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)
from ottla.runtime.runtime import Runtime
from ottla.testing.local_node import LocalNode


def by_admin(through: int, work: Callable[[Admin], Awaitable[None]]) -> Callable[[Runtime], Awaitable[None]]:
    async def run(runtime: Runtime) -> None:
        async with Admin(f"node{through}:9092", runtime=runtime) as admin:
            await work(admin)

    return run


def refused(controller: int, code: ErrorCode) -> Callable[[Admin], Awaitable[None]]:
    async def ask(admin: Admin) -> None:
        with pytest.raises(KafkaError) as error:
            await admin.cluster.unregister_controller(controller)
        assert error.value.code is code

    return ask


def unregister(controller: int) -> Callable[[Admin], Awaitable[None]]:
    return lambda admin: admin.cluster.unregister_controller(controller)


@pytest.mark.slow
@simulated()
async def test_a_controller_that_is_gone_is_forgotten_and_one_that_runs_registers_again(
    nodes: SimNodes,
) -> None:
    active = nodes.active
    assert active is not None
    through, gone = (id for id in nodes.roles if id != active)
    live = nodes.nodes[through]

    def controllers() -> set[int]:
        return set(live.image.cluster.controllers)

    await nodes.as_client(by_admin(through, refused(gone, ErrorCode.UNSUPPORTED_VERSION)))
    await nodes.as_client(
        by_admin(through, lambda admin: admin.cluster.update_features({"metadata.version": 33}))
    )
    await nodes.until(lambda: live.image.metadata_version.level == 33)
    await nodes.as_client(by_admin(through, refused(active, ErrorCode.INVALID_REQUEST)))
    await nodes.as_client(by_admin(through, refused(4711, ErrorCode.CONTROLLER_ID_NOT_REGISTERED)))
    # One that runs is registered again at once, by a new record.
    before = live.image.provenance.last_contained_offset
    await nodes.as_client(by_admin(through, unregister(through)))
    await nodes.until(
        lambda: live.image.provenance.last_contained_offset >= before + 2 and controllers() == {1, 2, 3}
    )
    nodes.kill(gone)
    await nodes.as_client(by_admin(through, unregister(gone)))
    await nodes.until(lambda: controllers() == {active, through})
    nodes.boot(gone)
    await nodes.until(lambda: controllers() == {1, 2, 3})


def test_who_may_not_alter_the_cluster_or_read_the_group_is_refused() -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer.class.name": authorizer, "super.users": "User:admin"}
    with LocalNode(settings) as node, WireClient(node.bootstrap_servers) as client:
        request = UnregisterControllerRequest(controller_id=1)
        answer = client.get(request, 0, UnregisterControllerResponse)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        update = StreamsGroupTopologyDescriptionUpdateRequest(group_id="app", member_id="m")
        refused = client.get(update, 0, StreamsGroupTopologyDescriptionUpdateResponse)
        assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_of_a_node_alone_nothing_is_forgotten() -> None:
    with LocalNode() as node, WireClient(node.bootstrap_servers) as client:
        for controller in (1, 0, -1, 2**31 - 1):
            answer = client.get(
                UnregisterControllerRequest(controller_id=controller), 0, UnregisterControllerResponse
            )
            assert answer.error_code == (
                ErrorCode.INVALID_REQUEST if controller == 1 else ErrorCode.UNSUPPORTED_VERSION
            )
            assert answer.error_message
        client.send_frame(b"\0\x5e\0\0\0\0\0\x01\xff\xff\0" + b"\0\0\0")  # half an id
        assert client.receive_frame() is None
        assert client.ask(UnregisterControllerRequest(controller_id=2), 0) is not CLOSED


@pytest.mark.kafka
@pytest.mark.exhaustive
def test_kafka_features_raises_the_levels_to_those_of_kafka_4_4() -> None:
    with LocalNode() as node:
        for feature, level in (("metadata.version", 33), ("share.version", 2)):
            raised = run_tool(
                "org.apache.kafka.tools.FeatureCommand",
                *("--bootstrap-server", node.bootstrap_servers),
                *("upgrade", "--feature", f"{feature}={level}"),
                bundle=kafka_libs.BROKER,
            )
            assert f"{feature} was upgraded to {level}." in raised.out
