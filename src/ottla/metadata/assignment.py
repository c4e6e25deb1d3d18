"""New partitions from replicas that were given by hand or placed: who of them is in sync, who leads."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.metadata.control import ControlState
from ottla.metadata.entities import PartitionRegistration
from ottla.protocol.errors import ErrorCode, KafkaError


def assigned_partition(
    state: ControlState, index: int, replicas: Sequence[int], replication_factor: int | None
) -> PartitionRegistration:
    check_assignment(state, replicas, replication_factor)
    if not any(state.is_active(replica) for replica in replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} "
            "are fenced or in controlled shutdown.",
        )
    return _new_partition(state, replicas)


def check_assignment(state: ControlState, replicas: Sequence[int], replication_factor: int | None) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless the replicas are registered, distinct and as many as they
    should be.
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


def placed_partition(state: ControlState, replicas: Sequence[int], factor: int) -> PartitionRegistration:
    if not any(state.is_active(replica) for replica in replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): "
            "All brokers are currently fenced or in controlled shutdown.",
        )
    return _new_partition(state, replicas)


def _new_partition(state: ControlState, replicas: Sequence[int]) -> PartitionRegistration:
    isr = tuple(replica for replica in replicas if state.is_active(replica))
    return PartitionRegistration(
        replicas=tuple(replicas),
        directories=tuple(state.default_directory(replica) for replica in replicas),
        isr=isr,
        leader=isr[0],
    )
