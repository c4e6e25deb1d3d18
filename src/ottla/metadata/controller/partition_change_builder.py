"""`PartitionChangeBuilder`: the one place that elects leaders and writes PartitionChangeRecords.

A caller that changes a partition (a broker is fenced, an ISR altered, replicas reassigned, a leader elected)
states the target and builds the record; the rules of leader election, of eligible leader replicas (KIP-966)
and of completing a reassignment are here and nowhere else. Invariant: the record, merged into the partition,
gives a leader from the ISR, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from ottla.metadata.features import MetadataVersion
from ottla.metadata.image.entities import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    LeaderRecoveryState,
    PartitionRegistration,
)
from ottla.protocol.metadata_records import PartitionChangeRecord
from ottla.runtime import invariants


class Election(Enum):
    PREFERRED = "preferred"  # the preferred replica if it may lead, else any that keeps the partition online
    ONLINE = "online"  # a new leader only if the current one may not lead
    # As ONLINE, and if no replica of the ISR may lead, one outside of it: data may be lost.
    UNCLEAN = "unclean"


class PartitionChangeBuilder:
    """The target state of one partition; `build` gives the record that leads there, or None if there is
    nothing to change.
    """

    __slots__ = (
        "adding",
        "default_directory",
        "directories",
        "election",
        "elr",
        "elr_enabled",
        "is_acceptable_leader",
        "isr",
        "leader_recovery_state",
        "min_isr",
        "partition",
        "partition_id",
        "removing",
        "replicas",
        "topic_id",
        "unclean_shutdown_replicas",
        "version",
    )

    def __init__(
        self,
        partition: PartitionRegistration,
        topic_id: bytes,
        partition_id: int,
        *,
        is_acceptable_leader: Callable[[int], bool],
        default_directory: Callable[[int], bytes],
        version: MetadataVersion,
        min_isr: int,
        elr_enabled: bool,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.partition_id = partition_id
        self.is_acceptable_leader = is_acceptable_leader
        self.default_directory = default_directory
        self.version = version
        self.min_isr = min_isr
        self.elr_enabled = elr_enabled
        self.election = Election.ONLINE
        self.isr: list[int] = list(partition.isr)
        self.replicas: list[int] = list(partition.replicas)
        self.removing: list[int] = list(partition.removing_replicas)
        self.adding: list[int] = list(partition.adding_replicas)
        self.elr: list[int] = list(partition.elr)
        self.leader_recovery_state = partition.leader_recovery_state
        self.unclean_shutdown_replicas: frozenset[int] = frozenset()
        self.directories: dict[int, bytes] = dict(zip(partition.replicas, partition.directories))

    def build(self) -> PartitionChangeRecord | None:
        partition = self.partition
        record = PartitionChangeRecord(topic_id=self.topic_id, partition_id=self.partition_id)
        self._complete_reassignment()
        self._populate_elr()
        self._elect(record)
        if record.leader == NO_LEADER_CHANGE and not set(partition.replicas) <= set(self.replicas):
            record.leader = partition.leader  # a replica was dropped: fence it with a new leader epoch
        self._record_elr(record)
        # With eligible leader replicas the ISR may become empty; without, the last member stays in it.
        if record.isr is None and (self.isr or self.elr_enabled) and self.isr != list(partition.isr):
            record.isr = self.isr
        self._bump_on_shrink(record)
        self._record_last_known_leader(record)
        self._record_assignment(record)
        if self.leader_recovery_state != partition.leader_recovery_state:
            record.leader_recovery_state = int(self.leader_recovery_state)
        if _changes_nothing(record):
            return None
        if invariants.thorough:
            after = partition.merge(record)
            assert after.leader == NO_LEADER or after.leader in after.isr, (
                f"{record} elects a leader outside of the ISR: {after}"
            )
        return record

    def _complete_reassignment(self) -> None:
        done = completed_reassignment(self.replicas, self.isr, self.removing, self.adding)
        if done is not None:
            self.replicas, self.isr = done
            self.removing = []
            self.adding = []

    def _populate_elr(self) -> None:
        """Keep the replicas that leave the ISR eligible while it is below `min.insync.replicas`, unless their
        shutdown was unclean.

        One that a reassignment has removed is none of them: it will never lead, and while there are eligible
        replicas the last known leader is not elected, so that the partition would stay without a leader
        (decision 0088).
        """
        if not self.elr_enabled:
            return
        if len(self.isr) >= min(self.min_isr, len(self.replicas)):
            self.elr = []
            return
        candidates = {*self.elr, *self.partition.isr} & set(self.replicas)
        self.elr = sorted(candidates - set(self.isr) - self.unclean_shutdown_replicas)

    def _elect(self, record: PartitionChangeRecord) -> None:
        leader, unclean = self._electable()
        if leader == self.partition.leader:
            return
        if leader in self.elr:
            self.isr = [leader]
            self.elr = [replica for replica in self.elr if replica != leader]
        record.leader = leader
        if unclean:
            record.isr = [leader]
            if self.partition.leader_recovery_state != LeaderRecoveryState.RECOVERING:
                record.leader_recovery_state = int(LeaderRecoveryState.RECOVERING)

    def _electable(self) -> tuple[int, bool]:
        """The leader to elect, and whether its election is unclean."""
        current = self.partition.leader
        if self.election is Election.PREFERRED:
            candidates = [self.replicas[0], current, *self.replicas[1:]]
        else:
            candidates = [current, *self.replicas]
        for replica in candidates:
            if self._may_lead(replica):
                return replica, False
        if self._last_known_leader_may_lead():
            return self.partition.last_known_elr[0], True
        if self.election is Election.UNCLEAN:
            for replica in self.replicas:
                if self.is_acceptable_leader(replica):
                    return replica, True
        return NO_LEADER, False

    def _may_lead(self, replica: int) -> bool:
        in_sync = replica in self.isr or (not self.isr and replica in self.elr)
        return in_sync and self.is_acceptable_leader(replica)

    def _last_known_leader_may_lead(self) -> bool:
        last = self.partition.last_known_elr
        return (
            self.elr_enabled
            and not self.elr
            and not self.isr
            and len(last) == 1
            and self.is_acceptable_leader(last[0])
        )

    def _record_elr(self, record: PartitionChangeRecord) -> None:
        if record.isr is not None or not self.elr_enabled:  # an unclean election clears the eligible replicas
            self.elr = []
        if self.elr != list(self.partition.elr):
            record.eligible_leader_replicas = self.elr

    def _bump_on_shrink(self, record: PartitionChangeRecord) -> None:
        if (
            self.version.leader_epoch_bump_on_isr_shrink
            and record.leader == NO_LEADER_CHANGE
            and record.isr is not None
            and not set(self.partition.isr) <= set(record.isr)
        ):
            record.leader = self.partition.leader

    def _record_last_known_leader(self, record: PartitionChangeRecord) -> None:
        partition = self.partition
        if not self.elr_enabled:
            return
        if record.leader >= 0:
            if partition.last_known_elr:
                record.last_known_elr = []
        elif not partition.last_known_elr:
            if record.leader == NO_LEADER:
                record.last_known_elr = [partition.leader]
            elif partition.leader == NO_LEADER and len(partition.isr) == 1:
                # It lost its leader before there were eligible leader replicas: that one stayed in the ISR.
                record.last_known_elr = list(partition.isr)

    def _record_assignment(self, record: PartitionChangeRecord) -> None:
        partition = self.partition
        if self.replicas:
            if self.version.directory_assignment:
                directories = [
                    self.directories[replica]
                    if replica in self.directories
                    else self.default_directory(replica)
                    for replica in self.replicas
                ]
                if directories != list(partition.directories):
                    record.directories = directories
            if self.replicas != list(partition.replicas):
                record.replicas = self.replicas
        if self.removing != list(partition.removing_replicas):
            record.removing_replicas = self.removing
        if self.adding != list(partition.adding_replicas):
            record.adding_replicas = self.adding


def _changes_nothing(record: PartitionChangeRecord) -> bool:
    return (
        record.isr is None
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
        and record.leader == NO_LEADER_CHANGE
        and record.replicas is None
        and record.removing_replicas is None
        and record.adding_replicas is None
        and record.leader_recovery_state < 0
        and record.directories is None
    )


@dataclass(frozen=True, slots=True)
class PartitionReassignmentReplicas:
    """The replicas of a partition during a reassignment: which of them are being added and removed."""

    replicas: list[int]
    removing: list[int]
    adding: list[int]

    @classmethod
    def between(cls, current: Sequence[int], target: Sequence[int]) -> PartitionReassignmentReplicas:
        removing = sorted(set(current) - set(target))
        return cls([*target, *removing], removing, sorted(set(target) - set(current)))


def completed_reassignment(
    replicas: Sequence[int], isr: Sequence[int], removing: Sequence[int], adding: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """The replicas and the ISR with which a reassignment completes; None while it cannot complete.

    It completes once all replicas that are being added are in sync; and where the replication factor shrinks,
    once every replica that stays is in sync, so that completing it never shrinks the ISR further.
    """
    if not removing and not adding:
        return None
    new_isr = [replica for replica in isr if replica not in removing]
    new_replicas = [replica for replica in replicas if replica not in removing]
    if not new_isr or not new_replicas or not set(adding) - set(removing) <= set(new_isr):
        return None
    if len(adding) < len(removing) and not set(new_replicas) <= set(new_isr):
        return None
    return new_replicas, new_isr


@dataclass(frozen=True, slots=True)
class PartitionReassignmentRevert:
    """The replicas and the ISR after cancelling a reassignment; `unclean` if no replica that stays is in
    sync.
    """

    replicas: list[int]
    isr: list[int]
    unclean: bool

    @classmethod
    def of(cls, partition: PartitionRegistration) -> PartitionReassignmentRevert:
        replicas = [replica for replica in partition.replicas if replica not in partition.adding_replicas]
        isr = [replica for replica in partition.isr if replica not in partition.adding_replicas]
        if not isr and replicas:
            return cls(replicas, [replicas[0]], True)
        return cls(replicas, isr, False)
