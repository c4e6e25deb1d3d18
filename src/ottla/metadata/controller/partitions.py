"""ReplicationControlManager, the part for partitions: leader elections, ISR changes, directories of
replicas.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.metadata.controller.partition_change_builder import Election
from ottla.metadata.controller.partition_index import PartitionRef
from ottla.metadata.controller.state import NO_ERROR, ApiError, ControllerState, Decision, Result
from ottla.metadata.image.entities import (
    DIRECTORY_DAMAGED,
    NO_LEADER,
    NO_LEADER_CHANGE,
    LeaderRecoveryState,
    PartitionRegistration,
    TopicImage,
)
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    BrokerState,
)
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.runtime.steps import Steps

_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def generate_leader_and_isr_updates(
    state: ControllerState,
    partitions: Iterable[PartitionRef],
    *,
    broker_to_remove: int = NO_LEADER,
    broker_to_add: int = NO_LEADER,
    unclean_shutdown_broker: int = NO_LEADER,
) -> Steps[list[MetadataRecord]]:
    """Elect leaders and shrink ISRs after a broker left or came back.

    `broker_to_add` may lead although the image still shows it fenced; `broker_to_remove` may not lead
    although the image shows it active; a broker whose shutdown was unclean is not eligible any more either,
    as it may have lost records.
    """
    gone = {broker_to_remove, unclean_shutdown_broker}

    def may_lead(replica: int) -> bool:
        return replica not in gone and (replica == broker_to_add or state.is_active(replica))

    records: list[MetadataRecord] = []
    for topic, index, partition in partitions:
        change = state.partition_change_builder(topic, index, partition, may_lead=may_lead)
        if state.unclean_election_enabled(topic.name):
            change.election = Election.UNCLEAN
        if unclean_shutdown_broker != NO_LEADER:
            change.unclean_shutdown_replicas = frozenset({unclean_shutdown_broker})
        change.isr = [replica for replica in partition.isr if replica not in gone]
        record = change.build()
        if record is not None:
            records.append(record)
        yield
    return records


def alter_partition(
    state: ControllerState, request: AlterPartitionRequest, *, version: int = 3
) -> Decision[AlterPartitionResponse]:
    """Change ISRs as their leaders ask; KafkaError STALE_BROKER_EPOCH fails the request as a whole."""
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    topics: list[AlterPartitionResponseTopicData] = []
    for asked_topic in request.topics:
        topic = state.image.topics.by_id.get(bytes(asked_topic.topic_id))
        answers: list[AlterPartitionResponsePartitionData] = []
        for asked in asked_topic.partitions:
            if version < 3:
                asked.new_isr_with_epochs = [BrokerState(broker_id=replica) for replica in asked.new_isr]
            if topic is None:
                answers.append(_refusal(asked.partition_index, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                answers.append(_alter_one_partition(state, topic, asked, request.broker_id, records))
            yield
        topics.append(AlterPartitionResponseTopicData(topic_id=asked_topic.topic_id, partitions=answers))
    return Result(records, AlterPartitionResponse(topics=topics), atomic=False)


def _refusal(index: int, error: ErrorCode) -> AlterPartitionResponsePartitionData:
    return AlterPartitionResponsePartitionData(partition_index=index, error_code=int(error))


def _alter_one_partition(
    state: ControllerState,
    topic: TopicImage,
    asked: AlterPartitionRequestPartitionData,
    broker: int,
    records: list[MetadataRecord],
) -> AlterPartitionResponsePartitionData:
    index = asked.partition_index
    partition = topic.partitions.get(index)
    if partition is None:
        return _refusal(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = _validate_alter_partition_data(state, partition, asked, broker)
    if error is not ErrorCode.NONE:
        return _refusal(index, error)
    change = state.partition_change_builder(topic, index, partition)
    if state.unclean_election_enabled(topic.name):
        change.election = Election.UNCLEAN
    change.isr = [member.broker_id for member in asked.new_isr_with_epochs]
    change.leader_recovery_state = LeaderRecoveryState(asked.leader_recovery_state)
    record = change.build()
    if record is not None:
        records.append(record)
        partition = partition.merge(record)
        if record.leader not in (broker, NO_LEADER_CHANGE):
            # The change completed a reassignment that moved the leadership: the answer is an error, with a
            # record.
            return _refusal(index, ErrorCode.NEW_LEADER_ELECTED)
    return AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=int(partition.leader_recovery_state),
        partition_epoch=partition.partition_epoch,
    )


def _validate_alter_partition_data(
    state: ControllerState,
    partition: PartitionRegistration,
    asked: AlterPartitionRequestPartitionData,
    broker: int,
) -> ErrorCode:
    # A leader that is ahead of this controller has heard of a newer controller.
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if asked.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if asked.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [member.broker_id for member in asked.new_isr_with_epochs]
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or partition.leader not in isr:
        return ErrorCode.INVALID_REQUEST
    if asked.leader_recovery_state not in (0, 1):
        return ErrorCode.INVALID_REQUEST
    recovering = asked.leader_recovery_state == LeaderRecoveryState.RECOVERING
    if recovering and (len(isr) > 1 or partition.leader_recovery_state == LeaderRecoveryState.RECOVERED):
        return ErrorCode.INVALID_REQUEST
    for member in asked.new_isr_with_epochs:
        registration = state.image.cluster.brokers.get(member.broker_id)
        if registration is None or not registration.is_active:
            return ErrorCode.INELIGIBLE_REPLICA
        if member.broker_epoch not in (-1, registration.epoch):
            return ErrorCode.INELIGIBLE_REPLICA
        if partition.directory(member.broker_id) == DIRECTORY_DAMAGED:
            # The leader has counted a fetch from before the damage was found.
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def elect_leaders(state: ControllerState, request: ElectLeadersRequest) -> Decision[ElectLeadersResponse]:
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    records: list[MetadataRecord] = []
    results: list[ReplicaElectionResult] = []
    if request.topic_partitions is None:
        for topic in state.image.topics.by_name.values():
            outcome = yield from _elect_each(state, topic, topic.partitions, election, records)
            # When all partitions are asked for, those that need no election are left out of the response.
            outcome = [
                (index, error) for index, error in outcome if error.code is not ErrorCode.ELECTION_NOT_NEEDED
            ]
            results.append((yield from _election_result(topic.name, outcome)))
    else:
        for asked in request.topic_partitions:
            yield
            found = state.image.topics.by_name.get(asked.topic)
            if found is None:
                missing = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {asked.topic}")
                outcome = []
                for index in asked.partitions:
                    outcome.append((index, missing))
                    yield
            else:
                outcome = yield from _elect_each(state, found, asked.partitions, election, records)
            results.append((yield from _election_result(asked.topic, outcome)))
    return Result(records, ElectLeadersResponse(replica_election_results=results), atomic=False)


def _elect_each(
    state: ControllerState,
    topic: TopicImage,
    indexes: Iterable[int],
    election: Election,
    records: list[MetadataRecord],
) -> Steps[list[tuple[int, ApiError]]]:
    outcome = []
    for index in indexes:
        outcome.append((index, elect_leader(state, topic, index, election, records)))
        yield
    return outcome


def _election_result(topic: str, outcome: Iterable[tuple[int, ApiError]]) -> Steps[ReplicaElectionResult]:
    result = ReplicaElectionResult(topic=topic)
    for index, error in outcome:
        result.partition_result.append(
            PartitionResult(partition_id=index, error_code=int(error.code), error_message=error.message)
        )
        yield
    return result


def elect_leader(
    state: ControllerState, topic: TopicImage, index: int, election: Election, records: list[MetadataRecord]
) -> ApiError:
    partition = topic.partitions.get(index)
    if partition is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic.name}-{index}")
    done = partition.has_preferred_leader if election is Election.PREFERRED else partition.leader != NO_LEADER
    if done:
        return _plain(ErrorCode.ELECTION_NOT_NEEDED)
    change = state.partition_change_builder(topic, index, partition)
    change.election = election
    record = change.build()
    if record is None:
        if election is Election.PREFERRED:
            return _plain(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        return _plain(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    records.append(record)
    return NO_ERROR


def _plain(code: ErrorCode) -> ApiError:
    return ApiError(code, code.text)


def maybe_balance_partition_leaders(state: ControllerState) -> Decision[bool]:
    """Elect preferred leaders where others lead; the response says whether there may be more to elect."""
    limit = state.settings.max_elections_per_imbalance
    records: list[MetadataRecord] = []
    for topic, index, _ in state.index.imbalanced(state.image):
        if len(records) >= limit:
            break
        elect_leader(state, topic, index, Election.PREFERRED, records)
        yield
    return Result(records, len(records) >= limit, atomic=False)


def elect_unclean_leaders(state: ControllerState) -> Decision[bool]:
    """Elect unclean leaders for leaderless partitions of topics that have `unclean.leader.election.enable`;
    the response says whether there may be more to elect.
    """
    limit = state.settings.max_elections_per_imbalance
    records: list[MetadataRecord] = []
    for topic, index, _ in state.index.leaderless(state.image):
        if len(records) >= limit:
            break
        if state.unclean_election_enabled(topic.name):
            elect_leader(state, topic, index, Election.UNCLEAN, records)
        yield
    return Result(records, len(records) >= limit, atomic=False)


def assign_replicas_to_dirs(
    state: ControllerState, request: AssignReplicasToDirsRequest
) -> Decision[AssignReplicasToDirsResponse]:
    """Record in which of its directories a broker has replicas; a replica in an offline directory cannot
    lead.

    A replica that was created again because its directory is lost is not recorded while the partition has no
    leader and another replica may have the records: if it were elected, the others would truncate the records
    that it lacks.

    A replica whose log is damaged is not eligible any more where another one is in sync or eligible: it will
    be fetched again. The last one stays in sync, as no other has all records, and leads once it is reported
    elsewhere: its log was restored, or repaired by the operator.
    """
    if not state.version.directory_assignment:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Directory assignment is not supported yet. It needs metadata.version 3.7-IV2 or later.",
        )
    broker = request.broker_id
    state.check_broker_epoch(broker, request.broker_epoch)
    registration = state.image.cluster.brokers[broker]
    records: list[MetadataRecord] = []
    offline: list[PartitionRef] = []
    damaged: list[PartitionRef] = []
    leaderless: list[PartitionRef] = []
    directories: list[AssignReplicasToDirsResponseDirectoryData] = []
    for asked_dir in request.directories:
        directory = bytes(asked_dir.id)
        online = registration.has_online_directory(directory)
        topics: list[AssignReplicasToDirsResponseTopicData] = []
        for asked_topic in asked_dir.topics:
            topic = state.image.topics.by_id.get(bytes(asked_topic.topic_id))
            answers: list[AssignReplicasToDirsResponsePartitionData] = []
            for asked in asked_topic.partitions:
                index = asked.partition_index
                partition = None if topic is None else topic.partitions.get(index)
                if topic is None:
                    error = ErrorCode.UNKNOWN_TOPIC_ID
                elif partition is None:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif broker not in partition.replicas:
                    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif _may_lack_committed_records(state, partition, broker):
                    error = ErrorCode.NONE
                else:
                    error = ErrorCode.NONE
                    change = state.partition_change_builder(topic, index, partition)
                    change.directories[broker] = directory
                    record = change.build()
                    if record is not None:
                        records.append(record)
                    after = partition if record is None else partition.merge(record)
                    if directory == DIRECTORY_DAMAGED and {*after.isr, *after.elr} - {broker}:
                        damaged.append(PartitionRef(topic, index, after))
                    elif not online:
                        offline.append(PartitionRef(topic, index, after))
                    elif after.leader == NO_LEADER:
                        leaderless.append(PartitionRef(topic, index, after))
                answers.append(
                    AssignReplicasToDirsResponsePartitionData(partition_index=index, error_code=int(error))
                )
                yield
            topics.append(
                AssignReplicasToDirsResponseTopicData(topic_id=asked_topic.topic_id, partitions=answers)
            )
        directories.append(AssignReplicasToDirsResponseDirectoryData(id=asked_dir.id, topics=topics))
    records += yield from generate_leader_and_isr_updates(state, offline, broker_to_remove=broker)
    records += yield from generate_leader_and_isr_updates(state, damaged, unclean_shutdown_broker=broker)
    records += yield from generate_leader_and_isr_updates(state, leaderless)
    return Result(records, AssignReplicasToDirsResponse(directories=directories), atomic=False)


def _may_lack_committed_records(
    state: ControllerState, partition: PartitionRegistration, broker: int
) -> bool:
    """Whether the partition has no leader, this replica has lost its directory, and another replica has
    not.
    """
    if partition.leader != NO_LEADER or partition.directory(broker) == DIRECTORY_DAMAGED:
        # A broker reports a log that was damaged only if it has all records again, or another replica led.
        return False
    brokers = state.image.cluster.brokers

    def has_directory(replica: int) -> bool:
        registration = brokers.get(replica)
        return registration is not None and registration.has_online_directory(partition.directory(replica))

    return not has_directory(broker) and any(map(has_directory, partition.replicas))
