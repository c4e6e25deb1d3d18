"""Replication as transcripts: fetches, commits, logs that diverge, snapshots for replicas that are behind."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.config import QuorumConfig
from ottla.raft.machine import LogContradiction
from ottla.raft.messages import Fetch, FetchReply, FetchSnapshot, OffsetAndEpoch
from ottla.raft.snapshot import SnapshotId, encode_snapshot
from ottla.raft.states import Role
from tests.raft.raft_harness import RaftHarness, Replica, key, log_of, quorum, static_voters


def elected(*ids: int) -> tuple[RaftHarness, Replica, list[Replica]]:
    lab = quorum(*ids)
    leader = lab.elect()
    lab.pass_time(1_000)
    return lab, leader, [replica for replica in lab.replicas.values() if replica is not leader]


def replicated(lab: RaftHarness, end: int) -> bool:
    return all(replica.committed >= end for replica in lab.replicas.values() if not replica.asleep)


class TestCommit:
    def test_what_a_majority_has_is_committed_and_everybody_hears_of_it(self) -> None:
        lab, leader, followers = elected(1, 2, 3)
        followers[0].asleep = True
        end = leader.append(b"a", b"b")
        lab.until(lambda: replicated(lab, end))
        assert leader.log.values() == followers[1].log.values() == [b"a", b"b"]
        followers[0].asleep = False
        lab.until(lambda: replicated(lab, end))
        assert followers[0].log.values() == [b"a", b"b"]

    def test_without_a_majority_nothing_is_committed(self) -> None:
        lab, leader, followers = elected(1, 2, 3)
        before = leader.committed
        for follower in followers:
            follower.asleep = True
        leader.append(b"a")
        lab.pass_time(1_000)
        assert leader.committed == before

    def test_a_leader_does_not_count_what_is_not_on_its_own_disk(self) -> None:
        lab = quorum(1)
        one = lab.replicas[1]
        one.auto_flush = False
        end = one.append(b"a")
        lab.pass_time(1_000)
        assert one.committed < end
        one.flush()
        assert one.committed == end

    def test_a_majority_of_others_commits_while_the_leader_still_syncs(self) -> None:
        lab, leader, _ = elected(1, 2, 3)
        leader.auto_flush = False
        end = leader.append(b"a")
        lab.until(lambda: leader.committed >= end)

    def test_a_follower_asks_for_more_only_once_it_has_synced(self) -> None:
        lab, leader, followers = elected(1, 2, 3)
        followers[1].asleep = True
        followers[0].auto_flush = False
        end = leader.append(b"a")
        lab.pass_time(500)
        assert followers[0].log.values() == [b"a"]
        assert leader.committed < end
        followers[0].flush()
        lab.until(lambda: leader.committed >= end)

    def test_records_of_an_older_epoch_are_committed_only_with_one_of_the_leaders_own(self) -> None:
        """Raft's figure 8: that a majority has an old record does not mean that no leader will replace it."""
        lab = quorum(1, 2, 3)
        for id in (1, 2, 3):
            lab.replicas[id].log.batches = log_of(1, 2)
            lab.replicas[id].auto_flush = False
            lab.replicas[id].start()
        new = lab.elect()
        lab.pass_time(1_000)
        assert new.committed == 0, "the records of epochs 1 and 2 are on all disks, but none of its own is"
        for replica in lab.replicas.values():
            replica.flush()
        lab.until(lambda: new.committed == 3)

    def test_who_does_not_lead_appends_nothing(self) -> None:
        _, _, followers = elected(1, 2, 3)
        with pytest.raises(KafkaError) as refused:
            followers[0].append(b"a")
        assert refused.value.code is ErrorCode.NOT_CONTROLLER


class TestDivergence:
    def test_what_only_an_old_leader_has_is_cut_off(self) -> None:
        lab, old, followers = elected(1, 2, 3)
        lab.isolate(old.id)
        old.append(b"lost", b"lost too")
        lab.until(lambda: any(replica.role is Role.LEADER for replica in followers))
        [new] = [replica for replica in followers if replica.role is Role.LEADER]
        end = new.append(b"kept")
        lab.heal()
        lab.until(lambda: replicated(lab, end))
        assert old.log.values() == [b"kept"]
        assert old.log.epochs() == new.log.epochs()

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            ((1, 1, 2, 2), (1, 1, 3)),
            ((1, 1, 1), (1, 2, 2, 2)),
            ((1, 2, 4), (1, 3, 3, 5)),
            ((1,), (1, 2, 3)),
            ((4, 4), (5,)),
        ],
    )
    def test_any_two_logs_become_one(self, ours: tuple[int, ...], theirs: tuple[int, ...]) -> None:
        """`theirs` is the log of the majority, so one of them is elected."""
        lab = RaftHarness()
        for id in (1, 2, 3):
            replica = Replica(lab, id, static=static_voters(1, 2, 3))
            replica.log.batches = log_of(*(ours if id == 1 else theirs))
            lab.replicas[id] = replica
        for replica in lab.replicas.values():
            replica.start()
        lab.replicas[1].asleep = True
        leader = lab.elect()
        lab.replicas[1].asleep = False
        lab.until(lambda: replicated(lab, leader.log.end.offset))
        assert lab.replicas[1].log.epochs() == leader.log.epochs()

    def test_a_leader_that_contradicts_what_is_committed_is_not_followed(self) -> None:
        lab, leader, followers = elected(1, 2, 3)
        end = leader.append(b"a")
        lab.until(lambda: replicated(lab, end))
        follower = followers[0]
        [inflight] = follower.quorum.requests.inflight_to(leader.id)
        reply = FetchReply(leader.epoch, leader.id, diverging=OffsetAndEpoch(0, 0))
        with pytest.raises(LogContradiction):
            follower.machine.handle_response(inflight.correlation_id, reply, lab.now_ms)

    @pytest.mark.parametrize(
        "request_",
        [
            Fetch(key(2), 1, OffsetAndEpoch(-1, 0), 0, 100),
            Fetch(key(2), 1, OffsetAndEpoch(0, -1), 0, 100),
            Fetch(key(2), 1, OffsetAndEpoch(0, 2), 0, 100),
            Fetch(key(2), 1, OffsetAndEpoch(0, 0), -1, 100),
        ],
    )
    def test_nonsense(self, request_: Fetch) -> None:
        [reply] = quorum(1).replicas[1].ask(request_)
        assert reply.error is ErrorCode.INVALID_REQUEST

    def test_epochs_are_checked(self) -> None:
        one = quorum(1).replicas[1]
        [old] = one.ask(Fetch(key(2), 0, OffsetAndEpoch(0, 0), 0, 100))
        [new] = one.ask(Fetch(key(2), 2, OffsetAndEpoch(0, 0), 0, 100))
        assert (old.error, new.error) == (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)

    def test_damaged_records_are_asked_for_again_after_a_rest(self) -> None:
        lab, leader, followers = elected(1, 2, 3)
        follower = followers[0]
        [inflight] = follower.quorum.requests.inflight_to(leader.id)
        follower.log.refuse = True
        end = leader.append(b"a")
        records = leader.log.batches[-1][1]
        reply = FetchReply(leader.epoch, leader.id, leader.committed, 0, records)
        follower.machine.handle_response(inflight.correlation_id, reply, lab.now_ms)
        lab.carry_out(follower)
        assert follower.quorum.requests.is_backing_off(leader.id, lab.now_ms)
        follower.log.refuse = False
        lab.until(lambda: replicated(lab, end))


class TestWaiting:
    def test_a_fetch_waits_for_something_new(self) -> None:
        lab = quorum(1)
        one = lab.replicas[1]
        replies = one.ask(Fetch(key(7), 1, OffsetAndEpoch(1, 1), 500, 1_000, high_watermark=1))
        assert replies == []
        one.append(b"a")
        [reply] = replies
        assert isinstance(reply, FetchReply)
        assert reply.records == one.log.batches[1][1]

    def test_or_until_it_has_waited_long_enough(self) -> None:
        lab = quorum(1)
        replies = lab.replicas[1].ask(Fetch(key(7), 1, OffsetAndEpoch(1, 1), 500, 1_000))
        lab.pass_time(490)
        assert replies == []
        lab.pass_time(20)
        [reply] = replies
        assert isinstance(reply, FetchReply)
        assert (reply.records, reply.high_watermark) == (b"", 1)

    def test_a_leader_that_resigns_lets_nobody_wait(self) -> None:
        lab = quorum(1)
        one = lab.replicas[1]
        replies = one.ask(Fetch(key(7), 1, OffsetAndEpoch(1, 1), 500, 1_000))
        one.machine.shut_down(lab.now_ms)
        lab.carry_out(one)
        assert [reply.error for reply in replies] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


class TestSnapshots:
    def behind(self) -> tuple[RaftHarness, Replica, Replica, SnapshotId]:
        """A leader whose log begins behind a snapshot, and a follower that slept through it."""
        lab = quorum(1, 2, 3, config=QuorumConfig(fetch_snapshot_max_bytes=40))
        leader = lab.elect()
        sleeper = next(replica for replica in lab.replicas.values() if replica is not leader)
        sleeper.asleep = True
        end = leader.append(b"a", b"b", b"c")
        lab.until(lambda: replicated(lab, end))
        id = SnapshotId(end, leader.epoch)
        data = encode_snapshot(
            [b"a", b"b", b"c"], epoch=id.epoch, timestamp=1, last_contained_log_timestamp=1
        )
        leader.log.start_after(id, b"".join(data))
        return lab, leader, sleeper, id

    def test_who_is_behind_the_log_fetches_the_snapshot_in_pieces(self) -> None:
        lab, leader, sleeper, id = self.behind()
        end = leader.append(b"d")
        sleeper.asleep = False
        lab.until(lambda: replicated(lab, end))
        assert sleeper.log.start_offset == id.offset
        assert sleeper.log.values() == [b"d"]
        assert list(sleeper.log.snapshots) == [id]

    def test_without_room_for_a_snapshot_or_records_a_follower_waits_and_still_follows(self) -> None:
        lab, leader, sleeper, id = self.behind()
        end = leader.append(b"d")
        sleeper.asleep, sleeper.log.is_full = False, True
        epoch = leader.epoch
        lab.pass_time(10_000)
        assert (leader.role, leader.epoch, sleeper.role) == (Role.LEADER, epoch, Role.FOLLOWER)
        assert sleeper.log.snapshots == {}
        sleeper.log.is_full = False
        lab.until(lambda: replicated(lab, end))
        assert list(sleeper.log.snapshots) == [id]
        sleeper.log.is_full = True
        end = leader.append(b"e")
        lab.pass_time(10_000)
        assert (leader.epoch, leader.committed, sleeper.log.values()) == (epoch, end, [b"d"])
        sleeper.log.is_full = False
        lab.until(lambda: replicated(lab, end))

    def test_a_snapshot_that_is_gone_meanwhile_is_given_up(self) -> None:
        lab, leader, sleeper, id = self.behind()
        sleeper.asleep = False
        while sleeper.log.download is None:
            lab.tick()
            lab.deliver(1)
        lab.cut.add((sleeper.id, leader.id))
        newer = SnapshotId(leader.append(b"d"), leader.epoch)
        lab.until(lambda: leader.committed >= newer.offset)
        lab.heal()
        data = leader.log.snapshots.pop(id)
        leader.log.start_after(newer, data)
        lab.until(lambda: replicated(lab, newer.offset))
        assert list(sleeper.log.snapshots) == [newer]

    def test_what_cannot_be_served_is_told(self) -> None:
        _, leader, _, id = self.behind()
        for wanted, position, expected in (
            (SnapshotId(1, 1), 0, ErrorCode.SNAPSHOT_NOT_FOUND),
            (id, -1, ErrorCode.POSITION_OUT_OF_RANGE),
            (id, 10**6, ErrorCode.POSITION_OUT_OF_RANGE),
        ):
            [reply] = leader.ask(FetchSnapshot(key(9), leader.epoch, wanted, position, 100))
            assert reply.error is expected


class TestObservers:
    def test_an_observer_finds_the_leader_and_follows_without_a_vote(self) -> None:
        lab, leader, _ = elected(1, 2, 3)
        observer = lab.add(7, static=static_voters(1, 2, 3))
        end = leader.append(b"a")
        lab.until(lambda: replicated(lab, end))
        assert (observer.role, observer.log.values()) == (Role.FOLLOWER, [b"a"])
        lab.isolate(7)
        lab.pass_time(10_000)
        assert observer.role is Role.FOLLOWER, "it never stands for election"

    def test_describe_tells_how_far_everybody_is(self) -> None:
        lab, leader, followers = elected(1, 2, 3)
        lab.add(7, static=static_voters(1, 2, 3))
        lab.pass_time(1_000)
        followers[0].asleep = True
        leader.append(b"a", b"b")
        lab.pass_time(1_000)
        info = leader.machine.describe(lab.now_ms)
        assert info is not None
        assert {progress.key.id: progress.end_offset for progress in info.voters} == {
            leader.id: 3,
            followers[0].id: 1,
            followers[1].id: 3,
        }
        assert [progress.key.id for progress in info.observers] == [7]
        lag = next(progress for progress in info.voters if progress.key.id == followers[0].id)
        assert lag.caught_up_ms < lab.now_ms - 900
        assert followers[1].machine.describe(lab.now_ms) is None
