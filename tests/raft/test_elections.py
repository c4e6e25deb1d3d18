"""Elections as transcripts: who asks, who grants, and what a node that was away may not do."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.raft.effects import Answer, Persist, Send
from ottla.raft.messages import (
    BeginEpoch,
    EndEpoch,
    Fetch,
    OffsetAndEpoch,
    Reply,
    Vote,
    VoteReply,
)
from ottla.raft.states import ElectionState, FollowerState, Role
from ottla.raft.voters import ReplicaKey
from tests.raft.raft_harness import RaftHarness, Replica, key, log_of, quorum, static_voters

EMPTY = OffsetAndEpoch(0, 0)


def vote(candidate: int, epoch: int, last: OffsetAndEpoch = EMPTY, *, pre_vote: bool = False) -> Vote:
    return Vote(key(candidate), epoch, last, pre_vote)


def granted(replies: list[Reply]) -> bool:
    [reply] = replies
    assert isinstance(reply, VoteReply)
    assert reply.error is ErrorCode.NONE
    return reply.granted


def error(replies: list[Reply]) -> ErrorCode:
    return replies[0].error


class TestAlone:
    def test_a_voter_alone_leads_at_once_and_commits_by_itself(self) -> None:
        lab = quorum(1)
        one = lab.replicas[1]
        assert (one.role, one.epoch, one.committed) == (Role.LEADER, 1, 1)
        assert one.election == ElectionState(1, 1, ReplicaKey(1), (1,))

    def test_each_start_is_a_new_epoch(self) -> None:
        one = quorum(1).replicas[1]
        for epoch in (2, 3):
            one.start()
            assert (one.role, one.epoch) == (Role.LEADER, epoch)
        assert one.log.epochs() == [1, 2, 3]


class TestThree:
    def test_one_is_elected_and_the_others_follow(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        assert [replica.role for replica in lab.replicas.values()].count(Role.FOLLOWER) == 2
        assert all(replica.quorum.leader_id == leader.id for replica in lab.replicas.values())

    def test_without_a_majority_nobody_leads_and_the_epoch_stays(self) -> None:
        lab = quorum(1, 2, 3)
        for id in (2, 3):
            lab.replicas[id].asleep = True
        lab.pass_time(20_000)
        assert lab.leaders == []
        assert lab.replicas[1].epoch == 0

    def test_when_the_leader_falls_silent_another_one_is_elected(self) -> None:
        lab = quorum(1, 2, 3)
        first = lab.elect()
        first.asleep = True
        lab.until(lambda: any(leader is not first for leader in lab.leaders))
        [second] = [leader for leader in lab.leaders if leader is not first]
        assert second.epoch > first.epoch

    def test_a_leader_that_comes_back_follows(self) -> None:
        lab = quorum(1, 2, 3)
        first = lab.elect()
        first.asleep = True
        lab.until(lambda: any(leader is not first for leader in lab.leaders))
        first.asleep = False
        second = lab.elect()
        lab.until(lambda: first.role is Role.FOLLOWER)
        assert second is not first

    def test_a_node_that_was_cut_off_disturbs_nobody_when_it_is_back(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        away = next(replica for replica in lab.replicas.values() if replica is not leader)
        epoch = leader.epoch
        lab.isolate(away.id)
        lab.pass_time(30_000)
        assert away.epoch == epoch, "it asked for pre-votes only"
        lab.heal()
        lab.pass_time(5_000)
        assert (lab.elect(), leader.epoch) == (leader, epoch)

    def test_a_leader_without_a_majority_resigns(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        lab.isolate(leader.id)
        lab.until(lambda: leader.role is not Role.LEADER, limit_ms=4_000)

    def test_a_leader_that_stops_hands_over_without_a_timeout(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        began = lab.now_ms
        leader.machine.shut_down(lab.now_ms)
        lab.carry_out(leader)
        lab.until(lambda: any(other is not leader for other in lab.leaders))
        assert lab.now_ms - began < 1_500
        assert leader.machine.is_shut_down

    def test_a_leader_whose_port_is_closed_is_replaced_without_a_timeout(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        lab.pass_time(1_000)
        began = lab.now_ms
        lab.kill(leader.id)
        lab.until(lambda: any(other is not leader for other in lab.leaders))
        assert lab.now_ms - began < 1_500


class TestVotes:
    def replica(self, *, epoch: int = 5) -> Replica:
        """An unattached voter of three that knows `epoch`, with two records of epoch 2 and 3."""
        lab = RaftHarness()
        replica = Replica(lab, 1, static=static_voters(1, 2, 3))
        lab.replicas[1] = replica
        replica.election = ElectionState(epoch)
        replica.log.batches = log_of(2, 3)
        replica.start()
        return replica

    def test_one_vote_an_epoch(self) -> None:
        replica = self.replica()
        assert granted(replica.ask(vote(2, 6, OffsetAndEpoch(2, 3))))
        assert not granted(replica.ask(vote(3, 6, OffsetAndEpoch(2, 3))))
        assert granted(replica.ask(vote(2, 6, OffsetAndEpoch(2, 3)))), "the same again"
        assert granted(replica.ask(vote(3, 7, OffsetAndEpoch(2, 3))))

    def test_a_vote_survives_a_restart(self) -> None:
        replica = self.replica()
        replica.ask(vote(2, 6, OffsetAndEpoch(2, 3)))
        assert replica.election == ElectionState(6, None, ReplicaKey(2), (1, 2, 3))
        replica.start()
        assert not granted(replica.ask(vote(3, 6, OffsetAndEpoch(2, 3))))

    def test_the_vote_is_written_down_before_it_is_told(self) -> None:
        replica = self.replica()
        replica.machine.handle_request("token", vote(2, 6, OffsetAndEpoch(2, 3)), replica.lab.now_ms)
        effects = [e for e in replica.machine.take_effects() if not isinstance(e, Send)]
        kinds = [type(effect) for effect in effects]
        assert kinds.index(Answer) > max(n for n, kind in enumerate(kinds) if kind is Persist)

    @pytest.mark.parametrize(
        ("last", "expected"),
        [
            (OffsetAndEpoch(2, 3), True),
            (OffsetAndEpoch(9, 3), True),
            (OffsetAndEpoch(1, 4), True),
            (OffsetAndEpoch(1, 3), False),
            (OffsetAndEpoch(100, 2), False),
        ],
    )
    def test_only_for_a_log_that_ends_at_or_behind_its_own(
        self, last: OffsetAndEpoch, expected: bool
    ) -> None:
        assert granted(self.replica().ask(vote(2, 6, last))) is expected
        assert granted(self.replica().ask(vote(2, 5, last, pre_vote=True))) is expected

    def test_an_old_epoch_is_fenced(self) -> None:
        assert error(self.replica().ask(vote(2, 4, OffsetAndEpoch(9, 3)))) is ErrorCode.FENCED_LEADER_EPOCH

    def test_a_pre_vote_changes_nothing(self) -> None:
        replica = self.replica()
        assert granted(replica.ask(vote(2, 5, OffsetAndEpoch(2, 3), pre_vote=True)))
        assert granted(replica.ask(vote(3, 5, OffsetAndEpoch(2, 3), pre_vote=True)))
        assert (replica.epoch, replica.quorum.state.voted) == (5, None)

    def test_a_follower_that_hears_from_its_leader_gives_no_pre_vote(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        lab.pass_time(1_000)
        followers = [replica for replica in lab.replicas.values() if replica is not leader]
        ask = vote(followers[0].id, leader.epoch, OffsetAndEpoch(100, leader.epoch), pre_vote=True)
        assert not granted(followers[1].ask(ask))
        assert not granted(leader.ask(ask))

    @pytest.mark.parametrize(
        "request_",
        [
            vote(2, 6, OffsetAndEpoch(2, 6)),
            vote(2, 6, OffsetAndEpoch(-1, 3)),
            vote(-5, 6),
            vote(2, 6, OffsetAndEpoch(1, -1)),
        ],
    )
    def test_nonsense(self, request_: Vote) -> None:
        assert error(self.replica().ask(request_)) is ErrorCode.INVALID_REQUEST

    def test_a_vote_for_another_voter_of_the_same_id(self) -> None:
        request = Vote(key(2), 6, OffsetAndEpoch(2, 3), False, ReplicaKey(1, b"another-director"))
        assert error(self.replica().ask(request)) is ErrorCode.INVALID_VOTER_KEY


class TestNews:
    def test_begin_epoch_makes_a_follower(self) -> None:
        replica = TestVotes().replica()
        [reply] = replica.ask(BeginEpoch(3, 7))
        assert reply.error is ErrorCode.NONE
        assert (replica.role, replica.quorum.leader_id, replica.epoch) == (Role.FOLLOWER, 3, 7)
        assert error(replica.ask(BeginEpoch(2, 6))) is ErrorCode.FENCED_LEADER_EPOCH

    def test_a_fetch_at_the_wrong_node_tells_who_leads(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        follower = next(replica for replica in lab.replicas.values() if replica is not leader)
        [reply] = follower.ask(Fetch(key(9), leader.epoch, EMPTY, 0, 1_000))
        assert reply.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert reply.leader_id == leader.id
        assert list(reply.endpoints.values()) == [(f"node{leader.id}", 9093)]  # type: ignore[union-attr]

    def test_the_first_in_line_begins_at_once_when_the_leader_resigns(self) -> None:
        lab = quorum(1, 2, 3, 4, 5)
        leader = lab.elect()
        line = [replica for replica in lab.replicas.values() if replica is not leader]
        order = tuple(key(replica.id) for replica in line)
        delays = []
        for replica in line:
            replica.machine.handle_request(None, EndEpoch(leader.id, leader.epoch, order), lab.now_ms)
            state = replica.quorum.state
            delays.append(state.deadline_ms - lab.now_ms if isinstance(state, FollowerState) else 0)
        assert delays[0] == 0
        assert delays == sorted(delays)
        assert delays[-1] > 0


class TestRestart:
    def test_a_leader_does_not_lead_its_old_epoch_again(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        epoch = leader.epoch
        leader.start()
        assert leader.role is Role.RESIGNED
        lab.until(lambda: any(other.epoch > epoch for other in lab.leaders))

    def test_a_candidate_goes_on_in_its_epoch(self) -> None:
        replica = TestVotes().replica()
        replica.election = ElectionState(6, None, ReplicaKey(1), (1, 2, 3))
        replica.start()
        assert (replica.role, replica.epoch) == (Role.CANDIDATE, 6)
        assert not granted(replica.ask(vote(2, 6, OffsetAndEpoch(9, 5))))

    def test_a_candidate_that_may_have_led_does_not(self) -> None:
        """Its log has records of that epoch: it won the election and stopped before it wrote that down."""
        replica = TestVotes().replica()
        replica.log.batches = log_of(2, 6)
        replica.election = ElectionState(6, None, ReplicaKey(1), (1, 2, 3))
        replica.start()
        assert replica.role is Role.UNATTACHED
        assert not granted(replica.ask(vote(2, 6, OffsetAndEpoch(9, 5))))

    def test_the_log_knows_a_later_epoch_than_the_file(self) -> None:
        replica = TestVotes().replica()
        replica.election = ElectionState(1)
        replica.start()
        assert replica.epoch == 3
