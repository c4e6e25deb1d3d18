"""The settings whose names begin with `controller.quorum`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_bytes: int = 1024 * 1024
    fetch_snapshot_max_bytes: int = 1024 * 1024
    fetch_max_wait_ms: int = 500
    auto_join: bool = False
    # Whether this node may become a voter at all; a node that is only a broker is an observer.
    can_be_voter: bool = True

    @property
    def check_quorum_timeout_ms(self) -> int:
        """How long a leader goes without fetches of a majority before it resigns: longer than a follower
        waits before it gives up the leader, so that the leader does not resign first.
        """
        return self.fetch_timeout_ms * 3 // 2

    @property
    def confirmation_ms(self) -> int:
        """How long ago a majority of the voters has fetched from a leader that is confirmed: none of them has
        given it up since, nor may do so soon.
        """
        return max(self.fetch_timeout_ms // 2, 1)

    @property
    def begin_epoch_interval_ms(self) -> int:
        """How often a leader sends BeginQuorumEpoch to a voter that does not fetch."""
        return max(self.fetch_timeout_ms // 2, 1)

    @property
    def room_retry_ms(self) -> int:
        """How long a follower whose disk is full waits before it fetches again: so short that its leader
        still counts it as one that follows.
        """
        return max(self.fetch_timeout_ms // 4, 1)

    @property
    def room_election_backoff_ms(self) -> int:
        """How long a voter whose disk is full leaves elections to others: it could not start its epoch."""
        return 3 * self.election_timeout_ms

    @property
    def update_voter_interval_ms(self) -> int:
        return self.fetch_timeout_ms * 3
