"""The table of APIs: every route resolves to code of the right form, and agrees with Kafka's API table."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

from tests.support.rows import for_each

import ottla.node.api.handlers
from ottla.node.api.response_errors import error_for_each_part
from ottla.node.api.routes import ROUTES, ApiRoute, Forwarding, OnFailure
from ottla.protocol.api import API, ListenerType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, PartitionResult, TopicPartitions
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.share_group_describe import DescribedGroup, ShareGroupDescribeRequest

every_route = for_each("route", ROUTES.values(), ids=lambda route: route.name)


def modules(route: ApiRoute) -> set[str]:
    return {route.module_name(kind) for kind in route.listeners}


def test_every_handler_has_a_route() -> None:
    found = {
        f"ottla.node.api.handlers.{each.name}"
        for each in pkgutil.iter_modules(ottla.node.api.handlers.__path__)
    }
    assert set().union(*map(modules, ROUTES.values())) == found


@every_route
def test_a_route_agrees_with_the_api_table(route: ApiRoute) -> None:
    api = API[route.api.key]
    assert api.name == route.name
    assert route.listeners == api.listeners
    forwarded = ListenerType.BROKER in route.listeners and api.forwardable
    assert (route.forwarding is not Forwarding.NONE) == forwarded


@every_route
def test_a_route_resolves_to_a_documented_handler_of_its_request(route: ApiRoute) -> None:
    for kind in route.listeners:
        handle = route.load_handler(kind)
        context, request = inspect.signature(handle).parameters.values()
        # A request that may be forwarded has no connection.
        assert context.annotation == ("ApiRequestContext" if route.api.forwardable else "RequestContext")
        assert request.annotation == route.api.request_class.__name__
    for name in modules(route):
        assert import_module(name).__doc__, name


@every_route
def test_a_failure_of_the_whole_request_is_answered_as_the_route_says(route: ApiRoute) -> None:
    for kind in route.listeners:
        failure_response = route.load_failure_response(kind)
        response = failure_response(route.api.request_class(), ErrorCode.UNKNOWN_SERVER_ERROR, "why")
        if route.on_failure is OnFailure.CLOSE:
            assert response is None
            assert not hasattr(route.api.response_class(), "error_code")
        else:
            assert isinstance(response, route.api.response_class)
        if route.on_failure is OnFailure.ERROR_CODE:
            assert getattr(response, "error_code", None) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_error_for_each_part_names_what_the_request_names() -> None:
    topics = [
        OffsetCommitRequestTopic(
            name="orders", partitions=[OffsetCommitRequestPartition(partition_index=3, committed_offset=7)]
        )
    ]
    response = error_for_each_part(OffsetCommitRequest(group_id="g", topics=topics), 16, "why")
    assert response == OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name="orders", partitions=[OffsetCommitResponsePartition(partition_index=3, error_code=16)]
            )
        ]
    )
    # Ids, and a part whose own error says enough.
    described = error_for_each_part(ShareGroupDescribeRequest(group_ids=["g"]), 16, "why")
    assert described.groups == [DescribedGroup(group_id="g", error_code=16, error_message="why")]
    # At the top too.
    elected = error_for_each_part(
        ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="orders", partitions=[3])]), 41, "why"
    )
    [result] = elected.replica_election_results
    assert (elected.error_code, result.topic) == (41, "orders")
    assert result.partition_result == [PartitionResult(partition_id=3, error_code=41, error_message="why")]


@every_route
def test_modules_define_nothing_that_their_route_does_not_use(route: ApiRoute) -> None:
    for name in modules(route):
        module = import_module(name)
        assert hasattr(module, "failure_response") == (route.on_failure is OnFailure.HANDLER)
        assert hasattr(module, "decide") == route.decides_locally


def test_no_response_that_another_node_may_have_given_is_cached() -> None:
    assert [route.name for route in ROUTES.values() if route.cached] == ["Metadata"]
    assert all(route.forwarding is Forwarding.NONE for route in ROUTES.values() if route.cached)
