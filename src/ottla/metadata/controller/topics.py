"""ReplicationControlManager, the part for topics: create and delete them, add partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from ottla.metadata.controller.configs import topic_creation_config_records
from ottla.metadata.controller.placement import place_replicas
from ottla.metadata.controller.state import (
    MAX_PARTITIONS_PER_REQUEST,
    NO_ERROR,
    ApiError,
    ControllerRequestContext,
    ControllerState,
    Decision,
    Result,
    check_record_count,
    repeated,
)
from ottla.metadata.image.entities import PartitionRegistration, TopicImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.metadata_records import RemoveTopicRecord, TopicRecord
from ottla.protocol.names import (
    CLUSTER_METADATA_TOPIC,
    has_collision_chars,
    invalid_topic_name,
    unify_collision_chars,
)
from ottla.runtime.steps import Steps

_ZERO_UUID = bytes(16)

_EffectiveConfigs: TypeAlias = dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]]
"""The effective configs that the response shows, by the overrides of a topic: most topics of a request have
the same.
"""


def create_topics(
    state: ControllerState,
    request: CreateTopicsRequest,
    context: ControllerRequestContext,
    collisions: Mapping[str, Collection[str]],
) -> Decision[CreateTopicsResponse]:
    """Create topics; each one succeeds or fails alone. `collisions` maps the unified form of a name to the
    existing names with that form.
    """
    duplicates = yield from repeated(topic.name for topic in request.topics)
    wanted = [topic for topic in request.topics if topic.name not in duplicates]
    _check_total_partitions(state, wanted)
    may_create_all = context.allowed_silently(AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME)
    records: list[MetadataRecord] = []
    results: list[CreatableTopicResult] = []
    created_keys: dict[str, list[str]] = {}
    effective_configs: _EffectiveConfigs = {}
    for topic in wanted:
        yield
        topic_records: list[MetadataRecord] = []
        try:
            if topic.name == CLUSTER_METADATA_TOPIC:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited.",
                )
            if not may_create_all and not context.allowed(
                AclOperation.CREATE, AclResourceType.TOPIC, topic.name
            ):
                raise KafkaError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The client is not authorized to create the topic."
                )
            _check_name(state, topic.name, collisions, created_keys)
            result = yield from _create_topic(state, topic, context, topic_records, effective_configs)
        except KafkaError as error:
            results.append(_failed_topic(topic.name, error.code, error.message))
            continue
        if has_collision_chars(topic.name):
            created_keys.setdefault(unify_collision_chars(topic.name), []).append(topic.name)
        records += topic_records
        results.append(result)
    results += [
        _failed_topic(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in sorted(duplicates)
    ]
    check_record_count(records)
    response = CreateTopicsResponse(topics=results)
    return Result([] if request.validate_only else records, response)


def _failed_topic(name: str, code: ErrorCode, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=int(code), error_message=message)


def _check_total_partitions(state: ControllerState, topics: Sequence[CreatableTopic]) -> None:
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.num_partitions == -1:
            total += state.settings.num_partitions
        else:
            total += max(0, topic.num_partitions)
    if total > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request. At most {MAX_PARTITIONS_PER_REQUEST} are "
            "allowed; split the request into smaller ones.",
        )


def _check_name(
    state: ControllerState,
    name: str,
    collisions: Mapping[str, Collection[str]],
    created: Mapping[str, Collection[str]],
) -> None:
    reason = invalid_topic_name(name)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    if name in state.image.topics.by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if has_collision_chars(name):
        key = unify_collision_chars(name)
        for existing in (*collisions.get(key, ()), *created.get(key, ())):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {existing}. The names differ only in '.' and "
                "'_', which metrics cannot tell apart.",
            )


def _create_topic(
    state: ControllerState,
    topic: CreatableTopic,
    context: ControllerRequestContext,
    records: list[MetadataRecord],
    effective_configs: _EffectiveConfigs,
) -> Steps[CreatableTopicResult]:
    yield  # a topic of one partition is an item too
    config_records, overrides = yield from topic_creation_config_records(state, topic.name, topic.configs)
    if topic.assignments:
        partitions = yield from _manually_assigned(state, topic)
    else:
        partitions = yield from _place_partitions(state, topic)
    context.apply_partition_change_quota(len(partitions))
    topic_id = state.new_uuid()
    result = CreatableTopicResult(name=topic.name, topic_id=topic_id)
    if context.allowed_silently(AclOperation.DESCRIBE_CONFIGS, AclResourceType.TOPIC, topic.name):
        result.num_partitions = len(partitions)
        result.replication_factor = len(partitions[0].replicas)
        result.configs = _effective_configs(state, overrides, effective_configs)
    else:
        result.topic_config_error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    records.append(TopicRecord(name=topic.name, topic_id=topic_id))
    records += config_records
    records += yield from _partition_records(state, topic_id, 0, partitions)
    return result


def _partition_records(
    state: ControllerState, topic_id: bytes, first: int, partitions: Sequence[PartitionRegistration]
) -> Steps[list[MetadataRecord]]:
    """The records of new partitions, the first of which has the index `first`."""
    version, elr_enabled = state.version, state.elr_enabled
    records: list[MetadataRecord] = []
    for index, registration in enumerate(partitions, first):
        records.append(registration.to_record(topic_id, index, version, elr_enabled=elr_enabled))
        yield
    return records


def _effective_configs(
    state: ControllerState, overrides: Mapping[str, str], known: _EffectiveConfigs
) -> list[CreatableTopicConfigs]:
    key = frozenset(overrides.items())
    if key not in known:
        known[key] = [
            CreatableTopicConfigs(
                name=config.name,
                value=None if config.sensitive else config.value,
                read_only=config.read_only,
                config_source=config.source,
                is_sensitive=config.sensitive,
            )
            for config in state.topic_configs(overrides)
        ]
    return known[key]


def _manually_assigned(state: ControllerState, topic: CreatableTopic) -> Steps[list[PartitionRegistration]]:
    if topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    partitions: dict[int, PartitionRegistration] = {}
    replication_factor: int | None = None
    for assignment in topic.assignments:
        if assignment.partition_index in partitions:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}.",
            )
        partitions[assignment.partition_index] = _assigned_partition(
            state, assignment.partition_index, assignment.broker_ids, replication_factor
        )
        replication_factor = len(assignment.broker_ids)
        yield
    if partitions.keys() != set(range(len(partitions))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [partitions[index] for index in range(len(partitions))]


def _place_partitions(state: ControllerState, topic: CreatableTopic) -> Steps[list[PartitionRegistration]]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value. It must be larger than 0, "
            "or -1 to use the default value.",
        )
    settings = state.settings
    count = settings.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = (
        settings.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    )
    try:
        placement = yield from place_replicas(state.usable_brokers(), count, factor, state.random)
    except KafkaError as error:
        raise KafkaError(
            error.code, f"Unable to replicate the partition {factor} time(s): {error.message}"
        ) from None
    return (yield from _placed_partitions(state, placement, factor))


def delete_topics(
    state: ControllerState,
    request: DeleteTopicsRequest,
    context: ControllerRequestContext,
    *,
    version: int = 6,
) -> Decision[DeleteTopicsResponse]:
    """Delete topics by name or, from version 6 on, by id. A caller that may not describe a topic does not
    learn that it exists.
    """
    if not state.settings.delete_topic_enable:
        if version < 3:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Topic deletion is disabled. Set delete.topic.enable to true to allow it.",
            )
        raise KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED,
            "Topic deletion is disabled. Set delete.topic.enable to true to allow it.",
        )
    responses: list[DeletableTopicResult] = []

    def respond(name: str | None, topic_id: bytes, error: ApiError) -> None:
        responses.append(
            DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=int(error.code), error_message=error.message
            )
        )

    names: list[str] = list(request.topic_names)
    ids: list[bytes] = []
    for topic in request.topics:
        yield
        if topic.name is not None and topic.topic_id != _ZERO_UUID:
            text = "You may not specify both topic name and topic id."
            respond(topic.name, topic.topic_id, ApiError(ErrorCode.INVALID_REQUEST, text))
        elif topic.name is not None:
            names.append(topic.name)
        elif topic.topic_id != _ZERO_UUID:
            ids.append(bytes(topic.topic_id))
        else:
            text = "Neither topic name nor id were specified."
            respond(None, _ZERO_UUID, ApiError(ErrorCode.INVALID_REQUEST, text))
    duplicate_ids = yield from repeated(ids)
    duplicate_names = yield from repeated(names)
    for name in sorted(duplicate_names):
        respond(name, _ZERO_UUID, ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    for topic_id in sorted(duplicate_ids):
        respond(None, topic_id, ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic id."))

    cluster_wide = context.allowed_silently(AclOperation.DELETE, AclResourceType.CLUSTER, CLUSTER_NAME)

    def allowed(operation: int, name: str) -> bool:
        return cluster_wide or context.allowed(operation, AclResourceType.TOPIC, name)

    denied = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED.text)
    to_delete: dict[bytes, TopicImage] = {}
    for topic_id in ids:
        yield
        if topic_id in duplicate_ids:
            continue
        found = state.image.topics.by_id.get(topic_id)
        if found is None:
            respond(None, topic_id, ApiError(ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID.text))
        elif not allowed(AclOperation.DELETE, found.name):
            respond(found.name if allowed(AclOperation.DESCRIBE, found.name) else None, topic_id, denied)
        else:
            to_delete[topic_id] = found
    for name in names:
        yield
        if name in duplicate_names:
            continue
        found = state.image.topics.by_name.get(name)
        if not allowed(AclOperation.DESCRIBE, name):
            respond(name, _ZERO_UUID, denied)
        elif found is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            respond(name, _ZERO_UUID, ApiError(unknown, unknown.text))
        elif not allowed(AclOperation.DELETE, name):
            respond(name, _ZERO_UUID, denied)
        elif found.id in to_delete or found.id in duplicate_ids:
            to_delete.pop(found.id, None)
            duplicate_ids.add(found.id)
            text = "The provided topic name maps to an ID that was already supplied."
            respond(name, found.id, ApiError(ErrorCode.INVALID_REQUEST, text))
        else:
            to_delete[found.id] = found

    records: list[MetadataRecord] = []
    for topic_id, found in to_delete.items():
        yield
        try:
            context.apply_partition_change_quota(len(found.partitions))
        except KafkaError as error:
            respond(found.name, topic_id, ApiError.of(error))
            continue
        records.append(RemoveTopicRecord(topic_id=topic_id))
        respond(found.name, topic_id, NO_ERROR)
    check_record_count(records)
    return Result(records, DeleteTopicsResponse(responses=responses))


def create_partitions(
    state: ControllerState, request: CreatePartitionsRequest, context: ControllerRequestContext
) -> Decision[CreatePartitionsResponse]:
    duplicates = yield from repeated(topic.name for topic in request.topics)
    results = [
        CreatePartitionsTopicResult(
            name=name,
            error_code=int(ErrorCode.INVALID_REQUEST),
            error_message="Duplicate topic name.",
        )
        for name in sorted(duplicates)
    ]
    records: list[MetadataRecord] = []
    for topic in request.topics:
        yield
        if topic.name in duplicates:
            continue
        error = NO_ERROR
        try:
            if not context.allowed(AclOperation.ALTER, AclResourceType.TOPIC, topic.name):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            records += yield from _create_partitions(state, topic, context)
        except KafkaError as raised:
            error = ApiError.of(raised)
        results.append(
            CreatePartitionsTopicResult(
                name=topic.name, error_code=int(error.code), error_message=error.message
            )
        )
    check_record_count(records)
    return Result([] if request.validate_only else records, CreatePartitionsResponse(results=results))


def _create_partitions(
    state: ControllerState, request: CreatePartitionsTopic, context: ControllerRequestContext
) -> Steps[list[MetadataRecord]]:
    topic = state.image.topics.by_name.get(request.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    existing = len(topic.partitions)
    if request.count == existing:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partition(s).")
    if request.count < existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {request.name} currently has {existing} partition(s); {request.count} would not "
            "be an increase.",
        )
    additional = request.count - existing
    if request.assignments is not None and len(request.assignments) != additional:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only {len(request.assignments)} "
            "assignment(s) were specified.",
        )
    if additional > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request. At most {MAX_PARTITIONS_PER_REQUEST} are "
            "allowed; split the request into smaller ones.",
        )
    context.apply_partition_change_quota(additional)
    factor = len(topic.partitions[0].replicas)
    if request.assignments is not None:
        partitions = []
        for index, assignment in enumerate(request.assignments, existing):
            partitions.append(_assigned_partition(state, index, assignment.broker_ids, factor))
            yield
    else:
        placement = yield from place_replicas(state.usable_brokers(), additional, factor, state.random)
        partitions = yield from _placed_partitions(state, placement, factor)
    return (yield from _partition_records(state, topic.id, existing, partitions))


# New partitions


def _assigned_partition(
    state: ControllerState, index: int, replicas: Sequence[int], replication_factor: int | None
) -> PartitionRegistration:
    validate_manual_partition_assignment(state, replicas, replication_factor)
    if not any(state.is_active(replica) for replica in replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} are fenced "
            "or in controlled shutdown.",
        )
    return _new_partition(state, replicas)


def validate_manual_partition_assignment(
    state: ControllerState, replicas: Sequence[int], replication_factor: int | None
) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless the replicas are registered, distinct and as many as
    `replication_factor`, if that is given.
    """
    prefix = "The manual partition assignment includes"
    if not replicas:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} an empty replica list.")
    previous: int | None = None
    for replica in sorted(replicas):
        if replica not in state.image.cluster.brokers:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{prefix} broker {replica}, but no such broker is registered.",
            )
        if replica == previous:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} the broker {replica} more than once."
            )
        previous = replica
    if replication_factor is not None and len(replicas) != replication_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{prefix} a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s).",
        )


def _placed_partitions(
    state: ControllerState, placement: Sequence[Sequence[int]], factor: int
) -> Steps[list[PartitionRegistration]]:
    partitions = []
    for replicas in placement:
        if not any(state.is_active(replica) for replica in replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): All brokers are currently fenced or in "
                "controlled shutdown.",
            )
        partitions.append(_new_partition(state, replicas))
        yield
    return partitions


def _new_partition(state: ControllerState, replicas: Sequence[int]) -> PartitionRegistration:
    isr = tuple(replica for replica in replicas if state.is_active(replica))
    return PartitionRegistration(
        replicas=tuple(replicas),
        directories=tuple(state.default_directory(replica) for replica in replicas),
        isr=isr,
        leader=isr[0],
    )
