"""ClusterControlManager: registration of brokers and controllers, heartbeats, fencing, controlled shutdown,
log directories that fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.log.directory.meta_properties import is_reserved_directory
from ottla.metadata.controller.heartbeats import BrokerControlState, BrokerHeartbeatManager
from ottla.metadata.controller.partition_index import PartitionRef
from ottla.metadata.controller.partitions import generate_leader_and_isr_updates
from ottla.metadata.controller.state import ControllerState, Decision, Result
from ottla.metadata.features import KRAFT_VERSION, METADATA_VERSION, VersionRange
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest
from ottla.protocol.messages.controller_registration import ControllerRegistrationRequest
from ottla.protocol.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from ottla.protocol.names import uuid_text
from ottla.runtime.steps import Steps

_FENCE = 1
_UNFENCE = -1


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    is_caught_up: bool
    is_fenced: bool
    in_controlled_shutdown: bool
    should_shut_down: bool


def register_broker(
    state: ControllerState,
    heartbeats: BrokerHeartbeatManager,
    request: BrokerRegistrationRequest,
    *,
    new_epoch: int,
    now_ns: int,
    supersede: bool = False,
    version: int = 4,
) -> Decision[int]:
    """Register a broker; the response is its epoch. A new incarnation first removes the previous one from its
    partitions.

    While the session of another incarnation lasts, the id is taken, unless `supersede` says that the process
    of that incarnation has ended.
    """
    if request.cluster_id != state.settings.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {state.settings.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    broker = request.broker_id
    existing = state.image.cluster.brokers.get(broker)
    incarnation = bytes(request.incarnation_id)
    same_incarnation = existing is not None and existing.incarnation_id == incarnation
    if (
        existing is not None
        and not same_incarnation
        and not supersede
        and heartbeats.has_valid_session(broker, existing.epoch, now_ns)
    ):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted "
            "this should self-resolve once the heartbeat manager expires the broker's session.",
        )
    if request.is_migrating_zk_broker:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers."
        )
    if state.version.directory_assignment:
        _validate_directories(state, broker, request.log_dirs)
    record = RegisterBrokerRecord(
        broker_id=broker,
        incarnation_id=incarnation,
        rack=request.rack,
        end_points=[
            BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in request.listeners
        ],
        features=_validate_features(state, request),
        log_dirs=[bytes(d) for d in request.log_dirs] if state.version.directory_assignment else [],
    )
    records: list[MetadataRecord] = []
    if same_incarnation and existing is not None:
        record.fenced = existing.fenced
        record.in_controlled_shutdown = existing.in_controlled_shutdown
        record.broker_epoch = existing.epoch
    else:
        previous_epoch = -2 if existing is None else existing.epoch
        clean = version >= 3 and previous_epoch == request.previous_broker_epoch
        records += yield from _handle_broker_shutdown(state, broker, clean=clean)
        record.broker_epoch = new_epoch
    records.append(record)
    return Result(records, record.broker_epoch)


def _validate_directories(state: ControllerState, broker: int, directories: Sequence[bytes]) -> None:
    if not directories:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "No directories specified in request")
    if any(is_reserved_directory(bytes(directory)) for directory in directories):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
    wanted = {bytes(directory) for directory in directories}
    if len(wanted) != len(directories):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
    for other in state.image.cluster.brokers.values():
        taken = wanted.intersection(other.directories)
        if other.id != broker and taken:
            raise KafkaError(
                ErrorCode.INVALID_REGISTRATION,
                f"Broker {other.id} is already registered with directory {uuid_text(min(taken))}",
            )


def _validate_features(state: ControllerState, request: BrokerRegistrationRequest) -> list[BrokerFeature]:
    """The broker's features; KafkaError unless every finalised level is within their ranges."""
    offered = {
        feature.name: VersionRange(feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    if METADATA_VERSION not in offered:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"Request features do not contain '{METADATA_VERSION}'",
        )
    finalized: Mapping[str, int] = {
        **state.image.features.finalized_versions(),
        KRAFT_VERSION: state.kraft_version,
    }
    for name in sorted(offered.keys() | finalized.keys()):
        supported = offered.get(name, VersionRange(0, 0))
        level = finalized.get(name, 0)
        if level not in supported:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of "
                f"{name}. The broker wants a version between {supported.min} and {supported.max}, inclusive.",
            )
    return [
        BrokerFeature(name=name, min_supported_version=supported.min, max_supported_version=supported.max)
        for name, supported in offered.items()
    ]


def _handle_broker_shutdown(
    state: ControllerState, broker: int, *, clean: bool
) -> Steps[list[MetadataRecord]]:
    """The changes of the partitions in whose ISR or ELR the previous incarnation of a broker was. After an
    unclean shutdown the broker is not eligible any more, as it may have lost records.
    """
    in_isr = state.index.in_isr(state.image, broker)
    if not state.elr_enabled or clean:
        return (yield from generate_leader_and_isr_updates(state, in_isr, broker_to_remove=broker))
    records = yield from generate_leader_and_isr_updates(state, in_isr, unclean_shutdown_broker=broker)
    in_elr = state.index.in_elr(state.image, broker)
    records += yield from generate_leader_and_isr_updates(state, in_elr, unclean_shutdown_broker=broker)
    return records


def register_controller(state: ControllerState, request: ControllerRegistrationRequest) -> Result[None]:
    if not state.version.controller_registration:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The current MetadataVersion is too old to support controller registrations. 3.7-IV0 is needed.",
        )
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=bytes(request.incarnation_id),
        zk_migration_ready=False,
        end_points=[
            ControllerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in request.listeners
        ],
        features=[
            ControllerFeature(
                name=f.name,
                min_supported_version=f.min_supported_version,
                max_supported_version=f.max_supported_version,
            )
            for f in request.features
        ],
    )
    return Result([record], None)


def unregister_broker(state: ControllerState, broker: int) -> Decision[None]:
    registration = state.image.cluster.brokers.get(broker)
    if registration is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker} is not currently registered"
        )
    in_isr, in_elr = state.index.in_isr(state.image, broker), state.index.in_elr(state.image, broker)
    records = yield from generate_leader_and_isr_updates(state, in_isr, broker_to_remove=broker)
    records += yield from generate_leader_and_isr_updates(state, in_elr, broker_to_remove=broker)
    records.append(UnregisterBrokerRecord(broker_id=broker, broker_epoch=registration.epoch))
    return Result(records, None, atomic=False)


def unregister_controller(state: ControllerState, controller: int) -> Result[None]:
    """Forget a controller that was removed from the voters; one that still runs registers again."""
    if controller == state.settings.node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Controller cannot unregister itself while it is active.")
    if not state.version.controller_unregistration:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The current MetadataVersion is too old to support controller unregistration: it is "
            f"{state.version}, and 4.4-IV2 or later is needed.",
        )
    if controller not in state.image.cluster.controllers:
        raise KafkaError(
            ErrorCode.CONTROLLER_ID_NOT_REGISTERED,
            f"Controller ID {controller} is not currently registered.",
        )
    return Result([UnregisterControllerRecord(controller_id=controller)], None)


def process_broker_heartbeat(
    state: ControllerState,
    heartbeats: BrokerHeartbeatManager,
    request: BrokerHeartbeatRequest,
    *,
    registration_offset: int,
) -> Decision[HeartbeatReply]:
    """Move a broker between fenced, unfenced and controlled shutdown; its registration record is at
    `registration_offset`.
    """
    broker, epoch = request.broker_id, request.broker_epoch
    state.check_broker_epoch(broker, epoch)
    current, target = heartbeats.calculate_next_broker_state(
        request, registration_offset, lambda: state.index.leads_anything(broker)
    )
    records: list[MetadataRecord] = []
    if current is not target:
        if target.fenced:
            records += yield from handle_broker_fenced(state, broker)
        elif target is BrokerControlState.UNFENCED:
            records += yield from _handle_broker_unfenced(state, broker, epoch)
        else:
            records += yield from _handle_broker_in_controlled_shutdown(state, broker, epoch)
    heartbeats.touch(broker, fenced=target.fenced, metadata_offset=request.current_metadata_offset)
    if state.version.directory_assignment:
        records += yield from _handle_directories_offline(state, broker, epoch, request.offline_log_dirs)
    if state.version.cordoned_log_dirs and request.cordoned_log_dirs is not None:
        records += _handle_directories_cordoned(state, broker, epoch, request.cordoned_log_dirs)
    return Result(records, _heartbeat_reply(request, registration_offset, target), atomic=False)


def _heartbeat_reply(
    request: BrokerHeartbeatRequest, registration_offset: int, target: BrokerControlState
) -> HeartbeatReply:
    return HeartbeatReply(
        is_caught_up=request.current_metadata_offset >= registration_offset,
        is_fenced=target.fenced,
        in_controlled_shutdown=target is BrokerControlState.CONTROLLED_SHUTDOWN,
        should_shut_down=target is BrokerControlState.SHUTDOWN_NOW,
    )


def acknowledge_heartbeat(
    state: ControllerState,
    heartbeats: BrokerHeartbeatManager,
    request: BrokerHeartbeatRequest,
    *,
    registration_offset: int,
) -> HeartbeatReply | None:
    """Answer a heartbeat that changes nothing, without a decision; None if it may change something."""
    broker, epoch = request.broker_id, request.broker_epoch
    registration = state.image.cluster.brokers[broker]
    if request.want_shut_down or any(bytes(d) in registration.directories for d in request.offline_log_dirs):
        return None
    cordoned = request.cordoned_log_dirs if state.version.cordoned_log_dirs else None
    if cordoned is not None and _handle_directories_cordoned(state, broker, epoch, cordoned):
        return None
    current, target = heartbeats.calculate_next_broker_state(request, registration_offset, lambda: True)
    if current is not target:
        return None
    heartbeats.touch(broker, fenced=target.fenced, metadata_offset=request.current_metadata_offset)
    return _heartbeat_reply(request, registration_offset, target)


def leave_partitions(state: ControllerState, broker: int) -> Steps[list[MetadataRecord]]:
    """The changes of the partitions in whose ISR a broker is that does not serve."""
    in_isr = state.index.in_isr(state.image, broker)
    return (yield from generate_leader_and_isr_updates(state, in_isr, broker_to_remove=broker))


def lead_leaderless(state: ControllerState) -> Steps[list[MetadataRecord]]:
    """The changes of the partitions without a leader that a broker which serves can lead."""
    leaderless = state.index.leaderless(state.image)
    return (yield from generate_leader_and_isr_updates(state, leaderless))


def handle_broker_fenced(state: ControllerState, broker: int) -> Steps[list[MetadataRecord]]:
    records = yield from leave_partitions(state, broker)
    epoch = state.image.cluster.brokers[broker].epoch
    records.append(BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, fenced=_FENCE))
    return records


def _handle_broker_unfenced(state: ControllerState, broker: int, epoch: int) -> Steps[list[MetadataRecord]]:
    unfenced = BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, fenced=_UNFENCE)
    leaderless = state.index.leaderless(state.image)
    records = yield from generate_leader_and_isr_updates(state, leaderless, broker_to_add=broker)
    return [unfenced, *records]


def _handle_broker_in_controlled_shutdown(
    state: ControllerState, broker: int, epoch: int
) -> Steps[list[MetadataRecord]]:
    records: list[MetadataRecord] = []
    if not state.image.cluster.brokers[broker].in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, in_controlled_shutdown=1)
        )
    in_isr = state.index.in_isr(state.image, broker)
    records += yield from generate_leader_and_isr_updates(state, in_isr, broker_to_remove=broker)
    return records


def _handle_directories_offline(
    state: ControllerState, broker: int, epoch: int, offline: Sequence[bytes]
) -> Steps[list[MetadataRecord]]:
    gone = {bytes(directory) for directory in offline}
    online = state.image.cluster.brokers[broker].directories
    lost = [directory for directory in online if directory in gone]
    if not lost:
        return []
    affected: list[PartitionRef] = []
    for topic, number, partition in state.image.topics.partitions():
        if broker in partition.replicas and partition.directory(broker) in gone:
            affected.append(PartitionRef(topic, number, partition))
        yield
    records = yield from generate_leader_and_isr_updates(state, affected, broker_to_remove=broker)
    left = [directory for directory in online if directory not in gone]
    records.append(BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, log_dirs=left))
    return records


def _handle_directories_cordoned(
    state: ControllerState, broker: int, epoch: int, cordoned: Sequence[bytes]
) -> list[MetadataRecord]:
    known = state.image.cluster.brokers[broker].cordoned_directories
    wanted = [bytes(directory) for directory in cordoned]
    if known is not None and set(known) == set(wanted):
        return []
    return [BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=epoch, cordoned_log_dirs=wanted)]
