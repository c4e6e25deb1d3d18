"""The progress of each replica as the leader knows it: the high watermark, and whether a majority still
fetches.

A replica's fetch offset says how far it has the log on disk; the leader knows its own. The high watermark is
the offset that a majority of the voters has reached, once it lies beyond the first record of the leader's own
epoch: only such a record cannot be replaced by a later leader, and with it everything before. Invariants: the
high watermark never goes back, and everything below it is on the disks of a majority of the voters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ottla.raft.voters import ReplicaKey, VoterSet
from ottla.runtime import invariants

# An observer that has not fetched for this time is forgotten.
OBSERVER_SESSION_TIMEOUT_MS: Final = 300_000
# A replica that had caught up this recently may become a voter.
CAUGHT_UP_MS: Final = 3_600_000
_MAX_OBSERVERS: Final = 10_000


@dataclass(slots=True)
class ReplicaProgress:
    key: ReplicaKey
    end_offset: int = -1  # the log is on its disk below this; -1 before its first fetch
    last_fetch_ms: int = -1
    caught_up_ms: int = -1  # when it last had all that the leader had
    last_fetch_leader_end: int = -1  # where the leader's log ended at its last fetch
    acknowledged: bool = False  # it knows the leader of this epoch


class ProgressTracker:
    def __init__(
        self,
        local: ReplicaKey,
        voters: VoterSet,
        *,
        epoch_start_offset: int,
        now_ms: int,
        check_quorum_timeout_ms: int,
    ) -> None:
        self._local: Final = local
        self._epoch_start_offset: Final = epoch_start_offset
        self._check_quorum_timeout_ms: Final = check_quorum_timeout_ms
        self._voters = voters
        self._replicas: dict[ReplicaKey, ReplicaProgress] = {}
        self._fetched: set[ReplicaKey] = set()  # voters that fetched since the last majority
        self.check_quorum_deadline_ms = now_ms + check_quorum_timeout_ms
        self.high_watermark: int | None = None
        self._local_progress().acknowledged = True
        self.update_voters(voters, now_ms)

    def _local_progress(self) -> ReplicaProgress:
        return self._replicas.setdefault(self._local, ReplicaProgress(self._local))

    def update_voters(self, voters: VoterSet, now_ms: int) -> None:
        """Count with another voter set from here on; what is known of a replica stays."""
        if self.is_majority_alone:
            # Until now the leader needed no other voter; the new ones get their time.
            self.check_quorum_deadline_ms = now_ms + self._check_quorum_timeout_ms
        self._voters = voters
        for voter in voters.voters.values():
            if self._find(voter.key) is None:
                # It may have been known by its id alone until now.
                known = self._replicas.pop(ReplicaKey(voter.key.id), ReplicaProgress(voter.key))
                self._replicas[voter.key] = replace(known, key=voter.key)

    def _find(self, key: ReplicaKey) -> ReplicaProgress | None:
        """The progress of a replica; a static voter is known by its id alone."""
        found = self._replicas.get(key)
        if found is None:
            voter = self._voters.voters.get(key.id)
            if voter is not None and self._voters.is_voter(key):
                found = self._replicas.get(voter.key)
        if found is None and key.id == self._local.id and self._voters.is_voter(self._local):
            found = self._replicas.get(self._local)
        return found

    def _voter_progress(self) -> list[ReplicaProgress]:
        found = (self._find(voter.key) for voter in self._voters.voters.values())
        return [progress for progress in found if progress is not None]

    # Updates

    def update_local_state(self, end_offset: int, now_ms: int) -> bool:
        """Note that the leader's own log is on disk below `end_offset`; whether the high watermark moved."""
        own = self._local_progress()
        own.end_offset = max(own.end_offset, end_offset)
        own.last_fetch_ms = own.caught_up_ms = now_ms
        return self.maybe_update_high_watermark()

    def update_replica_state(self, key: ReplicaKey, end_offset: int, log_end: int, now_ms: int) -> bool:
        """Note that a replica fetches from `end_offset` on; whether the high watermark moved."""
        progress = self._find(key)
        if progress is None:
            if len(self._replicas) >= _MAX_OBSERVERS:
                return False
            progress = self._replicas[key] = ReplicaProgress(key)
        if end_offset >= log_end:
            progress.caught_up_ms = max(progress.caught_up_ms, now_ms)
        elif progress.last_fetch_leader_end >= 0 and end_offset >= progress.last_fetch_leader_end:
            progress.caught_up_ms = max(progress.caught_up_ms, progress.last_fetch_ms)
        progress.last_fetch_ms, progress.last_fetch_leader_end = now_ms, log_end
        progress.end_offset = max(progress.end_offset, end_offset)
        progress.acknowledged = True
        self.update_check_quorum(key, now_ms)
        return self.maybe_update_high_watermark()

    def update_check_quorum(self, key: ReplicaKey, now_ms: int) -> None:
        """Note a fetch of a voter: after fetches of a majority the leader has another full timeout."""
        if not self._voters.is_voter(key) or key.id == self._local.id:
            return
        self._fetched.add(self._voters.voters[key.id].key)
        followed_by = len(self._fetched) + (1 if self._voters.is_voter(self._local) else 0)
        if followed_by >= self._voters.majority:
            self._fetched.clear()
            self.check_quorum_deadline_ms = now_ms + self._check_quorum_timeout_ms

    def maybe_update_high_watermark(self) -> bool:
        """Move the high watermark as far as a majority of the voters allows; whether it moved."""
        ends = sorted((progress.end_offset for progress in self._voter_progress()), reverse=True)
        agreed = ends[self._voters.majority - 1]
        before = self.high_watermark
        if agreed <= self._epoch_start_offset or (before is not None and agreed <= before):
            return False
        if invariants.thorough:
            reached = sum(progress.end_offset >= agreed for progress in self._voter_progress())
            assert reached >= self._voters.majority, (
                f"{reached} of the voters {self._voters.ids} have reached {agreed}, which is not a majority"
            )
        self.high_watermark = agreed
        return True

    def add_acknowledgement(self, id: int) -> None:
        """Note that a voter has answered BeginQuorumEpoch."""
        for progress in self._voter_progress():
            if progress.key.id == id:
                progress.acknowledged = True

    # Queries

    def has_lost_quorum(self, now_ms: int) -> bool:
        """Whether a majority has not fetched for too long: there may be another leader."""
        return not self.is_majority_alone and now_ms >= self.check_quorum_deadline_ms

    @property
    def is_majority_alone(self) -> bool:
        """Whether the leader is a majority of the voters by itself."""
        return self._voters.majority == 1 and self._voters.is_voter(self._local)

    def has_majority_fetched_since(self, since_ms: int) -> bool:
        """Whether the leader and the voters that have fetched from it since then are a majority."""
        reached = sum(
            progress.key.id == self._local.id or progress.last_fetch_ms >= since_ms
            for progress in self._voter_progress()
        )
        return reached >= self._voters.majority

    def voters_needing_begin_epoch(self, now_ms: int, interval_ms: int) -> list[ReplicaKey]:
        """The voters that do not know the leader of this epoch, or do not fetch."""
        return [
            progress.key
            for progress in self._voter_progress()
            if progress.key.id != self._local.id
            and (not progress.acknowledged or now_ms - progress.last_fetch_ms >= interval_ms)
        ]

    def is_replica_caught_up(self, key: ReplicaKey, now_ms: int) -> bool:
        progress = self._replicas.get(key)
        return (
            progress is not None
            and progress.caught_up_ms >= 0
            and now_ms - progress.last_fetch_ms < CAUGHT_UP_MS
            and now_ms - progress.caught_up_ms < CAUGHT_UP_MS
        )

    def preferred_successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters, by descending end offset."""
        others = [progress for progress in self._voter_progress() if progress.key.id != self._local.id]
        others.sort(key=lambda progress: (-progress.end_offset, progress.key.id))
        return tuple(progress.key for progress in others)

    def voters(self) -> list[ReplicaProgress]:
        """The progress of the voters, under the keys of the voter set."""
        keys = [voter.key for voter in self._voters.voters.values()]
        return [replace(progress, key=key) for key, progress in zip(keys, self._voter_progress())]

    def observers(self, now_ms: int) -> list[ReplicaProgress]:
        """The progress of the replicas that are not voters; those that stopped fetching are forgotten."""
        voting = {progress.key for progress in self._voter_progress()}
        for key in [key for key in self._replicas if key not in voting and key != self._local]:
            if now_ms - self._replicas[key].last_fetch_ms >= OBSERVER_SESSION_TIMEOUT_MS:
                del self._replicas[key]
        return [progress for key, progress in self._replicas.items() if key not in voting]
