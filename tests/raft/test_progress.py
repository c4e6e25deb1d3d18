"""`ProgressTracker`: the high watermark, whether a majority fetches, and which replicas have caught up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.raft.progress import OBSERVER_SESSION_TIMEOUT_MS, ProgressTracker
from ottla.raft.voters import ReplicaKey, VoterSet
from tests.raft.raft_harness import dynamic_voters, key, static_voters


def tracker(voters: VoterSet, *, epoch_start: int = 10) -> ProgressTracker:
    return ProgressTracker(
        key(1), voters, epoch_start_offset=epoch_start, now_ms=0, check_quorum_timeout_ms=3_000
    )


class TestHighWatermark:
    @given(st.integers(1, 5), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), max_size=40))
    def test_it_is_what_a_majority_has_and_never_goes_back(
        self, size: int, news: list[tuple[int, int]]
    ) -> None:
        progress = tracker(static_voters(*range(1, size + 1)))
        ends = dict.fromkeys(range(1, size + 1), -1)
        before = -1
        for id, end in news:
            if id > size:
                continue
            ends[id] = max(ends[id], end)
            if id == 1:
                progress.update_local_state(end, 0)
            else:
                progress.update_replica_state(key(id), end, 30, 0)
            agreed = sorted(ends.values(), reverse=True)[size // 2]
            found = progress.high_watermark
            assert (found if found is not None else -1) == (agreed if agreed > 10 else -1)
            assert (found or -1) >= before
            before = found or -1

    def test_observers_do_not_count(self) -> None:
        progress = tracker(dynamic_voters(1, 2, 3))
        progress.update_local_state(20, 0)
        progress.update_replica_state(key(7), 20, 20, 0)
        progress.update_replica_state(ReplicaKey(2, b"another-director"), 20, 20, 0)
        assert progress.high_watermark is None
        progress.update_replica_state(key(2), 15, 20, 0)
        assert progress.high_watermark == 15

    def test_other_voters_count_from_what_is_known_of_them(self) -> None:
        progress = tracker(dynamic_voters(1, 2))
        progress.update_local_state(20, 0)
        progress.update_replica_state(key(3), 20, 20, 0)
        assert progress.high_watermark is None
        progress.update_voters(dynamic_voters(1, 2, 3), 0)
        assert progress.maybe_update_high_watermark()
        assert progress.high_watermark == 20


class TestFollowing:
    def test_a_majority_of_fetches_keeps_a_leader(self) -> None:
        progress = tracker(static_voters(1, 2, 3, 4, 5))
        progress.update_check_quorum(key(2), 2_000)
        assert progress.has_lost_quorum(3_000)
        progress.update_check_quorum(key(2), 2_100)
        assert progress.has_lost_quorum(3_000), "one of them is not two"
        progress.update_check_quorum(key(3), 2_200)
        assert not progress.has_lost_quorum(5_000)
        assert progress.has_lost_quorum(5_200)

    def test_a_voter_alone_needs_nobody(self) -> None:
        assert not tracker(static_voters(1)).has_lost_quorum(10**9)

    def test_caught_up_is_who_had_all_of_it_lately(self) -> None:
        progress = tracker(dynamic_voters(1))
        assert not progress.is_replica_caught_up(key(2), 0)
        progress.update_replica_state(key(2), 5, 20, 1_000)
        assert not progress.is_replica_caught_up(key(2), 1_000)
        progress.update_replica_state(key(2), 20, 25, 2_000)
        assert progress.is_replica_caught_up(key(2), 2_000), "it has what there was when it last asked"
        assert not progress.is_replica_caught_up(key(2), 2_000 + 3_600_000)

    def test_observers_that_fall_silent_are_forgotten(self) -> None:
        progress = tracker(dynamic_voters(1))
        progress.update_replica_state(key(2), 5, 20, 0)
        assert [each.key for each in progress.observers(1_000)] == [key(2)]
        assert progress.observers(OBSERVER_SESSION_TIMEOUT_MS) == []

    def test_successors_are_in_the_order_of_their_logs(self) -> None:
        progress = tracker(dynamic_voters(1, 2, 3))
        progress.update_replica_state(key(3), 9, 20, 0)
        progress.update_replica_state(key(2), 5, 20, 0)
        assert progress.preferred_successors() == (key(3), key(2))
