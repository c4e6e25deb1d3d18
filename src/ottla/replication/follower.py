"""A follower as its leader sees it, from the follower's own fetches."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN_OFFSET = -1


@dataclass(slots=True)
class FollowerState:
    broker_id: int
    log_end_offset: int = UNKNOWN_OFFSET  # where its last fetch began: everything below is in its log
    log_start_offset: int = UNKNOWN_OFFSET
    last_caught_up_ms: int = 0  # the latest time at which it is known to have had all of the leader's log
    broker_epoch: int | None = None  # of its last fetch; None before the first
    _last_fetch_ms: int = 0
    _leader_end_at_last_fetch: int = UNKNOWN_OFFSET

    def fetched(
        self, offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int, now_ms: int
    ) -> None:
        """Note a fetch that began at ``offset`` when the leader's log ended at ``leader_end_offset``.

        A follower that asks for the end has caught up now; one that asks for where the log ended when it
        fetched last had caught up then. So a follower that is always one fetch behind a busy leader stays
        in sync.
        """
        if offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self._leader_end_at_last_fetch:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._last_fetch_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self._leader_end_at_last_fetch = max(leader_end_offset, self._leader_end_at_last_fetch)
        self._last_fetch_ms = now_ms

    def reset(self, leader_end_offset: int, *, new_leader: bool, in_sync: bool, now_ms: int) -> None:
        """Begin a leader epoch. In-sync followers get the benefit of the doubt; others must not hold the high
        watermark back."""
        self.last_caught_up_ms = now_ms if in_sync else 0
        if new_leader:
            self.log_end_offset = UNKNOWN_OFFSET
            self.log_start_offset = UNKNOWN_OFFSET
            self.broker_epoch = None
            self._last_fetch_ms = 0
            self._leader_end_at_last_fetch = UNKNOWN_OFFSET
        else:
            self._last_fetch_ms = now_ms if in_sync else 0
            self._leader_end_at_last_fetch = leader_end_offset

    def is_caught_up(self, leader_end_offset: int, max_lag_ms: int, now_ms: int) -> bool:
        return leader_end_offset == self.log_end_offset or now_ms - self.last_caught_up_ms <= max_lag_ms
