"""What administrators have changed, for the audit log: which items of a request succeeded, without secrets.

A node with an authorizer logs each, up to a bound for one request. Values of settings are left out, as some
are passwords, and so are credentials and tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ottla.protocol.acl import (
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
    enum_name,
)

if TYPE_CHECKING:
    from ottla.node.api.context import ApiRequestContext
    from ottla.protocol.schema import Request, Response

# The lines of one request; the last says how many more there would be.
_MAX_LINES: Final = 100


def log_changes(
    context: ApiRequestContext, request: Request, response: Response, forwarded: Request | None = None
) -> None:
    """Log what of a request has succeeded, if it changes something and there is an authorizer. Of the part
    that was forwarded, the active controller has logged it.
    """
    authorizer = context.services.node.authorizer
    describe = _CHANGES.get(context.api.name)
    if authorizer is None or describe is None or getattr(request, "validate_only", False):
        return
    logged = frozenset(() if forwarded is None else describe(forwarded, response))
    left_out = 0
    for number, change in enumerate(each for each in describe(request, response) if each not in logged):
        if number < _MAX_LINES:
            authorizer.audit.changed(context, change)
        else:
            left_out += 1
    if left_out:
        authorizer.audit.changed(context, f"{left_out} more")


def _succeeded(results: Iterable[Any]) -> Iterator[Any]:
    return (each for each in results if not each.error_code)


def _create_topics(_request: Any, response: Any) -> Iterator[str]:
    return (f"Topic:{each.name}, created" for each in _succeeded(response.topics))


def _delete_topics(_request: Any, response: Any) -> Iterator[str]:
    return (f"Topic:{each.name or each.topic_id.hex()}, deleted" for each in _succeeded(response.responses))


def _create_partitions(_request: Any, response: Any) -> Iterator[str]:
    return (f"Topic:{each.name}, more partitions" for each in _succeeded(response.results))


_RESOURCES: Final = {2: "Topic", 4: "Broker", 8: "BrokerLogger", 16: "ClientMetrics", 32: "Group"}


def _alter_configs(request: Any, response: Any) -> Iterator[str]:
    done = {(each.resource_type, each.resource_name) for each in _succeeded(response.responses)}
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) in done:
            kind = _RESOURCES.get(resource.resource_type, str(resource.resource_type))
            names = ", ".join(config.name for config in resource.configs)
            yield f"{kind}:{resource.resource_name or '<default>'}, settings {names}"


def _create_acls(request: Any, response: Any) -> Iterator[str]:
    for acl, result in zip(request.creations, response.results, strict=True):
        if not result.error_code:
            yield f"{_acl(acl, acl.resource_pattern_type)}, created"


def _delete_acls(_request: Any, response: Any) -> Iterator[str]:
    for result in _succeeded(response.filter_results):
        for acl in _succeeded(result.matching_acls):
            yield f"{_acl(acl, acl.pattern_type)}, deleted"


def _acl(acl: Any, pattern_type: int) -> str:
    return (
        f"Acl({enum_name(AclPermissionType, acl.permission_type)} {acl.principal} from {acl.host} "
        f"{enum_name(AclOperation, acl.operation)} on {enum_name(AclResourceType, acl.resource_type)}:"
        f"{enum_name(PatternType, pattern_type)}:{acl.resource_name})"
    )


def _alter_client_quotas(_request: Any, response: Any) -> Iterator[str]:
    for entry in _succeeded(response.entries):
        names = (f"{each.entity_type} {each.entity_name or '<default>'}" for each in entry.entity)
        yield f"quotas of {', '.join(names)}"


def _alter_users(_request: Any, response: Any) -> Iterator[str]:
    return (f"User:{each.user}, its SCRAM credentials" for each in _succeeded(response.results))


def _elect_leaders(_request: Any, response: Any) -> Iterator[str]:
    for topic in response.replica_election_results:
        for part in _succeeded(topic.partition_result):
            yield f"Partition:{topic.topic}-{part.partition_id}, elected a leader"


def _reassign(_request: Any, response: Any) -> Iterator[str]:
    for topic in response.responses:
        for part in _succeeded(topic.partitions):
            yield f"Partition:{topic.name}-{part.partition_index}, reassigned"


def _delete_records(_request: Any, response: Any) -> Iterator[str]:
    for topic in response.topics:
        for part in _succeeded(topic.partitions):
            yield f"Partition:{topic.name}-{part.partition_index}, records before {part.low_watermark}"


def _delete_groups(_request: Any, response: Any) -> Iterator[str]:
    return (f"Group:{each.group_id}, deleted" for each in _succeeded(response.results))


def _delete_offsets(request: Any, response: Any) -> Iterator[str]:
    if not response.error_code:
        for topic in response.topics:
            for part in _succeeded(topic.partitions):
                yield f"Group:{request.group_id}, its offset of {topic.name}-{part.partition_index}"


_RECORD_CHANGES: Final = {0: "skipped", 2: "released", 3: "rejected"}


def _alter_share_records(request: Any, response: Any) -> Iterator[str]:
    done = _RECORD_CHANGES.get(request.acknowledge_type)
    for topic in response.topics:
        for part in _succeeded(topic.partitions):
            if part.records:
                at = f"{topic.name}-{part.partition_index}"
                yield f"Group:{request.group_id}, {part.records} records of {at} {done}"


def _update_features(request: Any, response: Any) -> Iterator[str]:
    if not response.error_code:
        for update in request.feature_updates:
            yield f"feature {update.feature}, level {update.max_version_level}"


def _unregister_broker(request: Any, response: Any) -> Iterator[str]:
    if not response.error_code:
        yield f"Broker:{request.broker_id}, unregistered"


def _unregister_controller(request: Any, response: Any) -> Iterator[str]:
    if not response.error_code:
        yield f"Controller:{request.controller_id}, unregistered"


def _voters(request: Any, response: Any) -> Iterator[str]:
    if not response.error_code:
        yield f"voter {request.voter_id} of the quorum"


def _tokens(_request: Any, response: Any) -> Iterator[str]:
    if not response.error_code:
        owner = getattr(response, "principal_name", None)
        yield "a delegation token" + (f" of User:{owner}" if owner else "")


_CHANGES: Final[dict[str, Callable[[Any, Any], Iterator[str]]]] = {
    "CreateTopics": _create_topics,
    "DeleteTopics": _delete_topics,
    "CreatePartitions": _create_partitions,
    "AlterConfigs": _alter_configs,
    "IncrementalAlterConfigs": _alter_configs,
    "CreateAcls": _create_acls,
    "DeleteAcls": _delete_acls,
    "AlterClientQuotas": _alter_client_quotas,
    "AlterUserScramCredentials": _alter_users,
    "ElectLeaders": _elect_leaders,
    "AlterPartitionReassignments": _reassign,
    "DeleteRecords": _delete_records,
    "DeleteGroups": _delete_groups,
    "OffsetDelete": _delete_offsets,
    "AlterShareRecords": _alter_share_records,
    "UpdateFeatures": _update_features,
    "UnregisterBroker": _unregister_broker,
    "UnregisterController": _unregister_controller,
    "AddRaftVoter": _voters,
    "RemoveRaftVoter": _voters,
    "CreateDelegationToken": _tokens,
    "RenewDelegationToken": _tokens,
    "ExpireDelegationToken": _tokens,
}
AUDITED: Final = frozenset(_CHANGES)
