"""New partitions from replicas that were given by hand or placed: who of them is in sync, who leads."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.metadata.controller.state import ControllerState
from ottla.metadata.image.entities import PartitionRegistration
from ottla.protocol.errors import ErrorCode, KafkaError


def assigned_partition(
    state: ControllerState, index: int, replicas: Sequence[int], replication_factor: int | None
) -> PartitionRegistration:
    check_assignment(state, replicas, replication_factor)
    if not any(state.is_active(replica) for replica in replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"none of the brokers given for partition {index} is active: all are fenced or shutting down",
        )
    return _new_partition(state, replicas)


def check_assignment(state: ControllerState, replicas: Sequence[int], replication_factor: int | None) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless the replicas are registered, distinct and as many as they
    should be.
    """
    prefix = "the replicas that were given name"
    if not replicas:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} no broker for a partition")
    previous: int | None = None
    for replica in sorted(replicas):
        if replica not in state.image.cluster.brokers:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{prefix} broker {replica}, which is not registered",
            )
        if replica == previous:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} broker {replica} twice for one partition"
            )
        previous = replica
    if replication_factor is not None and len(replicas) != replication_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{prefix} {len(replicas)} replica(s) for one partition and {replication_factor} "
            "for those before it; all need the same number",
        )


def placed_partition(state: ControllerState, replicas: Sequence[int], factor: int) -> PartitionRegistration:
    if not any(state.is_active(replica) for replica in replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"no broker is active to hold the {factor} replica(s) of a partition: all "
            "are fenced or shutting down",
        )
    return _new_partition(state, replicas)


def _new_partition(state: ControllerState, replicas: Sequence[int]) -> PartitionRegistration:
    isr = tuple(replica for replica in replicas if state.is_active(replica))
    return PartitionRegistration(
        replicas=tuple(replicas),
        directories=tuple(state.default_directory(replica) for replica in replicas),
        isr=isr,
        leader=isr[0],
    )
