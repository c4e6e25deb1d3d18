"""ConfigurationControlManager: configs of topics, brokers, the cluster's default, groups and client metrics.

A resource changes as a whole or not at all. The schema that is passed in validates the values; this module
has the rules of the resources themselves, and those that protect eligible leader replicas (ELR): while ELR
is on, `min.insync.replicas` is one config of the cluster, and a change of it clears the eligible sets that
it produced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Final

from ottla.metadata.controller.state import (
    NO_ERROR,
    ApiError,
    ControllerRequestContext,
    ControllerState,
    Decision,
    Result,
    check_record_count,
    repeated,
)
from ottla.metadata.image.entities import CLUSTER_DEFAULT, ConfigResource, ConfigResourceType, config_record
from ottla.metadata.records import MetadataRecord
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_configs import (
    AlterableConfig as LegacyAlterableConfig,
)
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from ottla.protocol.messages.alter_configs import (
    AlterConfigsResourceResponse as LegacyResourceResponse,
)
from ottla.protocol.messages.create_topics import CreatableTopicConfig
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.metadata_records import ClearElrRecord, ConfigRecord
from ottla.protocol.names import invalid_topic_name
from ottla.runtime.steps import Steps

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
CORDONED_LOG_DIRS: Final = "cordoned.log.dirs"
MAX_VALUE_LENGTH: Final = 32767


class OpType(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_ALTERABLE: Final = frozenset(
    {
        ConfigResourceType.TOPIC,
        ConfigResourceType.BROKER,
        ConfigResourceType.CLIENT_METRICS,
        ConfigResourceType.GROUP,
    }
)


def incremental_alter_configs(
    state: ControllerState, request: IncrementalAlterConfigsRequest, context: ControllerRequestContext
) -> Decision[IncrementalAlterConfigsResponse]:
    records: list[MetadataRecord] = []
    response = IncrementalAlterConfigsResponse()
    named_twice = yield from repeated((r.resource_type, r.resource_name) for r in request.resources)
    for asked in request.resources:
        resource = ConfigResource(asked.resource_type, asked.resource_name)
        decide = partial(_incremental_records, state, resource, asked.configs)
        error = yield from _alter(state, resource, decide, context, named_twice, records)
        response.responses.append(
            AlterConfigsResourceResponse(
                error_code=int(error.code),
                error_message=error.message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
        )
    check_record_count(records)
    records += clear_elr_records(state, records)
    check_record_count(records)
    return Result([] if request.validate_only else records, response)


def alter_configs(
    state: ControllerState, request: AlterConfigsRequest, context: ControllerRequestContext
) -> Decision[AlterConfigsResponse]:
    """AlterConfigs, the deprecated API: the given configs replace all that are set."""
    records: list[MetadataRecord] = []
    response = AlterConfigsResponse()
    named_twice = yield from repeated((r.resource_type, r.resource_name) for r in request.resources)
    for asked in request.resources:
        resource = ConfigResource(asked.resource_type, asked.resource_name)
        decide = partial(_replacing_records, state, resource, asked.configs)
        error = yield from _alter(state, resource, decide, context, named_twice, records)
        response.responses.append(
            LegacyResourceResponse(
                error_code=int(error.code),
                error_message=error.message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
        )
    check_record_count(records)
    records += clear_elr_records(state, records)
    check_record_count(records)
    return Result([] if request.validate_only else records, response)


def topic_creation_config_records(
    state: ControllerState, topic: str, configs: Sequence[CreatableTopicConfig]
) -> Steps[tuple[list[MetadataRecord], dict[str, str]]]:
    """The config records of a topic that is being created, and the configs by name."""
    nulls = [config.name for config in configs if config.value is None]
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {', '.join(nulls)}"
        )
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    overrides = {config.name: config.value for config in configs if config.value is not None}
    if not overrides:
        return [], overrides
    records = [config_record(resource, name, value) for name, value in overrides.items()]
    yield from _validate(state, resource, records, existing={}, must_exist=False, forwarded=True)
    return [*records, *clear_elr_records(state, records)], overrides


def clear_elr_records(state: ControllerState, records: Iterable[MetadataRecord]) -> list[ClearElrRecord]:
    if not state.elr_enabled:
        return []
    return [
        ClearElrRecord(
            topic_name=record.resource_name if record.resource_type == ConfigResourceType.TOPIC else ""
        )
        for record in records
        if isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS
    ]


def elr_safety_records(state: ControllerState) -> list[MetadataRecord]:
    """The records that must precede the switch to eligible leader replicas: one `min.insync.replicas` for the
    cluster, and none for single brokers.
    """
    records: list[MetadataRecord] = []
    if MIN_INSYNC_REPLICAS not in state.image.config(CLUSTER_DEFAULT):
        value = str(state.settings.min_insync_replicas)
        records.append(config_record(CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS, value))
    records += [
        config_record(resource, MIN_INSYNC_REPLICAS, None)
        for resource, configs in state.image.configs.items()
        if resource.type == ConfigResourceType.BROKER and resource.name and MIN_INSYNC_REPLICAS in configs
    ]
    return records


def _alter(
    state: ControllerState,
    resource: ConfigResource,
    decide: Callable[[], Steps[list[ConfigRecord]]],
    context: ControllerRequestContext,
    named_twice: set[tuple[int, str]],
    records: list[MetadataRecord],
) -> Steps[ApiError]:
    """Decide on one resource; its records are added only if all of its changes are valid."""
    yield
    try:
        if resource in named_twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        if resource.type not in _ALTERABLE:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown resource type {int(resource.type)}: it has no configs."
            )
        _authorize(resource, context)
        changes = yield from decide()
        existing = state.image.config(resource)
        yield from _validate(state, resource, changes, existing, must_exist=True, forwarded=context.forwarded)
    except KafkaError as error:
        return ApiError.of(error)
    records += changes
    return NO_ERROR


def _authorize(resource: ConfigResource, context: ControllerRequestContext) -> None:
    if resource.type == ConfigResourceType.TOPIC:
        kind, name, error = AclResourceType.TOPIC, resource.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif resource.type == ConfigResourceType.GROUP:
        kind, name, error = AclResourceType.GROUP, resource.name, ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        kind, name, error = AclResourceType.CLUSTER, CLUSTER_NAME, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not context.allowed(AclOperation.ALTER_CONFIGS, kind, name):
        raise KafkaError(error, error.text)


def _check_keys(configs: Iterable[tuple[str, bool]]) -> Steps[None]:
    """Check the names that a request gives for a resource, each with whether it may not be null and is."""
    names: list[str] = []
    nulls: list[str] = []
    for name, is_null in configs:
        names.append(name)
        if is_null:
            nulls.append(name)
        yield
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _incremental_records(
    state: ControllerState, resource: ConfigResource, configs: Sequence[AlterableConfig]
) -> Steps[list[ConfigRecord]]:
    yield from _check_keys((c.name, c.value is None and c.config_operation != OpType.DELETE) for c in configs)
    current = state.image.config(resource)
    records = []
    for config in configs:
        yield
        old = current.get(config.name)
        if config.config_operation == OpType.SET:
            new = config.value
        elif config.config_operation == OpType.DELETE:
            new = None
        elif config.config_operation in (OpType.APPEND, OpType.SUBTRACT):
            new = _alter_list_value(state, resource, config, old)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {config.config_operation}")
        # A broker's config is written even if it is unchanged: the broker then reloads the files it names.
        if new != old or resource.type == ConfigResourceType.BROKER:
            records.append(config_record(resource, config.name, new))
    return records


def _replacing_records(
    state: ControllerState, resource: ConfigResource, configs: Sequence[LegacyAlterableConfig]
) -> Steps[list[ConfigRecord]]:
    yield from _check_keys((config.name, config.value is None) for config in configs)
    given = {config.name: config.value for config in configs}
    current = state.image.config(resource)
    records = []
    for name, value in given.items():
        yield
        if current.get(name) != value or resource.type == ConfigResourceType.BROKER:
            records.append(config_record(resource, name, value))
    return records + [config_record(resource, name, None) for name in current if name not in given]


def _alter_list_value(
    state: ControllerState, resource: ConfigResource, config: AlterableConfig, old: str | None
) -> str:
    operation = OpType(config.config_operation)
    if not state.schema.is_list(resource.type, config.name):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {config.name} because its type is not LIST. Use SET.",
        )
    text = state.schema.default(resource.type, config.name) if old is None else old
    items = [item for item in (text or "").split(",") if item]
    given = Counter((config.value or "").split(","))
    if operation is OpType.APPEND:
        known = set(items)
        return ",".join([*items, *(item for item in given if item not in known)])
    kept = []
    for item in items:
        if given[item] > 0:
            given[item] -= 1
        else:
            kept.append(item)
    return ",".join(kept)


def _validate(
    state: ControllerState,
    resource: ConfigResource,
    changes: Sequence[ConfigRecord],
    existing: Mapping[str, str],
    *,
    must_exist: bool,
    forwarded: bool,
) -> Steps[None]:
    configs = dict(existing)
    for change in changes:
        yield
        _check_protected(state, resource, change, existing, forwarded=forwarded)
        if change.value is None:
            configs.pop(change.name, None)
        elif len(change.value) > MAX_VALUE_LENGTH:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{MAX_VALUE_LENGTH} bytes: {change.name}",
            )
        else:
            configs[change.name] = change.value
    _check_resource_name(resource)
    state.schema.validate(resource, configs, existing)
    if must_exist:
        _check_existence(state, resource)


def _check_protected(
    state: ControllerState,
    resource: ConfigResource,
    change: ConfigRecord,
    existing: Mapping[str, str],
    *,
    forwarded: bool,
) -> None:
    if resource.type != ConfigResourceType.BROKER:
        return
    if change.name == MIN_INSYNC_REPLICAS and state.elr_enabled:
        if resource.name:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Broker-level {MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled. Set it for "
                "topics or for the whole cluster.",
            )
        if change.value is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Cluster-level {MIN_INSYNC_REPLICAS} cannot be removed while ELR is enabled. Set "
                "another value instead.",
            )
    if change.name == CORDONED_LOG_DIRS:
        if not state.version.cordoned_log_dirs:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"The {CORDONED_LOG_DIRS} configuration requires metadata.version 4.3-IV0 or later.",
            )
        added = set(_paths(change.value)) - set(_paths(existing.get(CORDONED_LOG_DIRS)))
        if not forwarded and added:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"The {CORDONED_LOG_DIRS} configuration can only lose directories through a controller. "
                "Ask the broker itself to add one.",
            )


def _paths(value: str | None) -> list[str]:
    return [path.strip() for path in (value or "").split(",") if path.strip()]


def _check_resource_name(resource: ConfigResource) -> None:
    if resource.type == ConfigResourceType.TOPIC:
        if not resource.name:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed. Name the topic."
            )
        reason = invalid_topic_name(resource.name)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    elif resource.type == ConfigResourceType.BROKER and resource.name:
        if not resource.name.lstrip("-").isdecimal():
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
        if resource.name.startswith("-"):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")
    elif resource.type == ConfigResourceType.GROUP and not resource.name:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Default group resources are not allowed. Name the group."
        )
    elif resource.type == ConfigResourceType.CLIENT_METRICS and not resource.name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")


def _check_existence(state: ControllerState, resource: ConfigResource) -> None:
    if resource.type == ConfigResourceType.TOPIC and resource.name not in state.image.topics.by_name:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist.")
    if resource.type == ConfigResourceType.BROKER and resource.name:
        node = int(resource.name)
        cluster = state.image.cluster
        if node not in cluster.brokers and node not in cluster.controllers and node not in state.voters:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {node} found.")
