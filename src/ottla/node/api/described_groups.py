"""What the APIs that describe groups of the newer protocols have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.coordinator.runtime.effects import CoordinatorOperation
from ottla.node.api.context import RequestContext
from ottla.node.api.deduplication import deduplicate_long
from ottla.node.api.group_requests import check_group, check_group_id
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.turns import Turns


class DescribeRequest(Protocol):
    """A request that names groups to describe."""

    group_ids: list[str]
    include_authorized_operations: bool


class AnyDescribedGroup(Protocol):
    """A group in the response."""

    authorized_operations: int


G = TypeVar("G", bound=AnyDescribedGroup)


def describe_groups(
    context: RequestContext,
    request: DescribeRequest,
    operation: Callable[[str], CoordinatorOperation[G]],
    failed: Callable[[str, KafkaError], G],
    topics_of: Callable[[G], Iterable[str]],
    denied: str,
) -> Awaitable[list[G]]:
    """Describe the groups of a request, as `operation` has the coordinator do it.

    A group is `failed` where it cannot be described, or has topics (`topics_of`) that the client may not
    describe, with the message `denied`.
    """
    turns = Turns(context.broker.runtime.clock)

    async def describe() -> list[G]:
        # All are submitted before any is awaited: what a few are described as is of one moment.
        tickets = []
        for group_id in deduplicate_long(request.group_ids):
            tickets.append((group_id, _submit(context, group_id, operation)))
            await turns.pause_if_due()
        groups = []
        for group_id, ticket in tickets:
            await turns.pause_if_due()
            try:
                if isinstance(ticket, KafkaError):
                    raise ticket.again()
                group = await ticket
                if not all(_may_describe(context, topic) for topic in topics_of(group)):
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, denied)
            except KafkaError as error:
                group = failed(group_id, error)
            else:
                if request.include_authorized_operations:
                    group.authorized_operations = context.authorized_operations(
                        AclResourceType.GROUP, group_id
                    )
            groups.append(group)
        return groups

    return describe()


def _submit(
    context: RequestContext, group_id: str, operation: Callable[[str], CoordinatorOperation[G]]
) -> Ticket[G] | KafkaError:
    try:
        check_group(context, group_id, AclOperation.DESCRIBE)
        check_group_id(group_id)
    except KafkaError as error:
        return error.again()
    return context.broker.coordinators.groups.submit(group_id, operation(group_id))


def _may_describe(context: RequestContext, topic: str) -> bool:
    return context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)
