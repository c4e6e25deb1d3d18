"""Quiescence of a cluster: all replicas in sync and equal, no open transaction, equal metadata images."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.tasks import TaskState
from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.members import ClusterMember


def reason_healthy_replicas_lag(members: Sequence[ClusterMember], checker: ClusterChecker) -> str | None:
    """The first reason why a replica in a directory without an error is not in sync; None if all are.

    Asked when no more faults are injected and before nodes with an offline directory are restarted: the error
    of one directory, or of one file, may keep no replica elsewhere from following its leader.
    """
    by_id = {member.id: member for member in members}
    for member in members:
        if not member.is_ready:
            return f"node {member.id} is not ready"
    for topic, index, registration in checker.newest.topics.partitions():
        if registration.leader < 0:
            continue
        for id in registration.replicas:
            tp = TopicPartition(topic.name, index)
            if id not in registration.isr and _is_online(by_id[id], tp):
                return f"{tp} is online on node {id}, and only {registration.isr} are in sync"
    return None


def _is_online(member: ClusterMember, tp: TopicPartition) -> bool:
    broker = member.broker
    assert broker is not None
    try:
        broker.replicas.partition(tp)
    except KafkaError:
        return False
    return True


def reason_not_quiescent(members: Sequence[ClusterMember], checker: ClusterChecker) -> str | None:
    """The first reason why the cluster is not quiescent, in one line; None if it is."""
    for member in members:
        if not member.is_ready:
            return f"node {member.id} is not ready"
        node = member.node
        assert node is not None
        if node.image != checker.newest:
            return f"node {member.id} has not caught up with the metadata log"
        for task in node.shared.tasks.statuses():
            if task.state is not TaskState.RUNNING:
                return f"on node {member.id} the task {task.name!r} is {task.state.value}: {task.last_error}"
    by_id = {member.id: member for member in members}
    for topic, index, registration in checker.newest.topics.partitions():
        tp = TopicPartition(topic.name, index)
        if registration.leader < 0:
            return f"{tp} has no leader: {registration}"
        if set(registration.isr) != set(registration.replicas):
            return f"{tp} has replicas {registration.replicas} and only {registration.isr} are in sync"
        if registration.adding_replicas or registration.removing_replicas:
            return f"{tp} is still being reassigned: {registration}"
        history = checker.histories.get((topic.id, index))
        end = 0 if history is None else history.end
        for id in registration.replicas:
            text = _replica(by_id[id], tp, end, clean=topic.name not in checker.unclean)
            if text is not None:
                return text
    return None


def reason_rotten(members: Sequence[ClusterMember]) -> str | None:
    """The first batch at rest that is not what was written; None if all are."""
    for member in members:
        if member.node is None or not member.is_ready:
            return f"node {member.id} is not ready"
        if member.broker is None:
            continue
        with member.machine.disk.undisturbed():
            for partition in member.broker.replicas:
                try:
                    log = partition.log
                    for segment in log.segments:
                        for damaged in log.damage_of(segment):
                            return (
                                f"{partition.topic_partition} is rotten on node {member.id}: {damaged.damage}"
                            )
                except KafkaError:
                    continue  # it is being fetched again
    return None


def _replica(member: ClusterMember, tp: TopicPartition, end: int, *, clean: bool) -> str | None:
    broker = member.broker
    assert broker is not None
    try:
        log = broker.replicas.partition(tp).log
    except KafkaError as error:
        return f"node {member.id} does not serve {tp}: {error}"
    if log.high_watermark != log.log_end_offset:
        return f"{tp} on node {member.id} ends at {log.log_end_offset}, above its high watermark"
    if clean and log.high_watermark != end:
        return f"{tp} on node {member.id} has the high watermark {log.high_watermark}, and {end} is committed"
    if log.last_stable_offset != log.high_watermark:
        return f"{tp} on node {member.id} has a transaction open at {log.last_stable_offset}"
    return None
