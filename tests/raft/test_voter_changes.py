"""Changes of the voters as transcripts: one at a time, in force at once, taken back with the log."""

from __future__ import annotations

from dataclasses import replace

from ottla.protocol.errors import ErrorCode
from ottla.raft.config import QuorumConfig
from ottla.raft.messages import AddVoter, RemoveVoter, Reply, UpdateVoter
from ottla.raft.states import Role
from ottla.raft.voters import ReplicaKey, VoterSet
from ottla.runtime.address import Address
from tests.raft.raft_harness import RaftHarness, Replica, address, dynamic_voters, key, quorum, voter


def dynamic(*ids: int, observers: tuple[int, ...] = (), config: QuorumConfig | None = None) -> RaftHarness:
    """A quorum whose voters are in the log, and observers that know one of them by address."""
    lab = RaftHarness(config=config)
    for id in ids:
        lab.add(id, dynamic=dynamic_voters(*ids), bootstrap=ids)
    for id in observers:
        lab.add(id, bootstrap=ids)
    return lab


def voters(replica: Replica) -> tuple[int, ...]:
    found = replica.quorum.voters
    assert isinstance(found, VoterSet)
    return found.ids


def add(id: int) -> AddVoter:
    return AddVoter(key(id), {"CONTROLLER": address(id)})


def settle(lab: RaftHarness, replies: list[Reply]) -> ErrorCode:
    lab.until(lambda: bool(replies))
    return replies[0].error


def ready(*ids: int, observers: tuple[int, ...] = ()) -> tuple[RaftHarness, Replica]:
    lab = dynamic(*ids, observers=observers)
    leader = lab.elect()
    lab.pass_time(1_000)
    return lab, leader


class TestAdding:
    def test_an_observer_that_has_caught_up_becomes_a_voter(self) -> None:
        lab, leader = ready(1, observers=(2,))
        assert settle(lab, leader.ask(add(2))) is ErrorCode.NONE
        lab.until(lambda: all(voters(replica) == (1, 2) for replica in lab.replicas.values()))
        end = leader.append(b"a")
        lab.replicas[2].asleep = True
        lab.pass_time(500)
        assert leader.committed < end, "the new voter counts"

    def test_a_leader_that_was_alone_for_long_does_not_resign_when_it_no_longer_is(self) -> None:
        lab, leader = ready(1, observers=(2,))
        lab.pass_time(20_000)
        epoch = leader.epoch
        assert settle(lab, leader.ask(add(2))) is ErrorCode.NONE
        lab.pass_time(1_000)
        assert (leader.role, leader.epoch) == (Role.LEADER, epoch)

    def test_from_one_to_three_and_the_first_may_go(self) -> None:
        lab, leader = ready(1, observers=(2, 3))
        for id in (2, 3):
            assert settle(lab, leader.ask(add(id))) is ErrorCode.NONE
            lab.pass_time(500)
        assert settle(lab, leader.ask(RemoveVoter(key(1)))) is ErrorCode.NONE
        lab.until(lambda: any(other is not leader for other in lab.leaders))
        lab.pass_time(3_000)
        assert leader.role in (Role.FOLLOWER, Role.UNATTACHED, Role.RESIGNED)
        assert {voters(replica) for replica in lab.replicas.values()} == {(2, 3)}

    def test_what_is_refused(self) -> None:
        lab, leader = ready(1, 2, observers=(3,))
        follower = next(replica for replica in lab.replicas.values() if replica is not leader)
        assert settle(lab, follower.ask(add(3))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert settle(lab, leader.ask(add(2))) is ErrorCode.DUPLICATE_VOTER
        elsewhere = AddVoter(key(3), {"OTHER": address(3)})
        assert settle(lab, leader.ask(elsewhere)) is ErrorCode.INVALID_REQUEST
        unreachable = AddVoter(key(9), {"CONTROLLER": Address("nowhere", 9093)})
        assert settle(lab, leader.ask(unreachable)) is ErrorCode.REQUEST_TIMED_OUT

    def test_one_change_at_a_time(self) -> None:
        lab, leader = ready(1, 2, 3, observers=(4, 5))
        first = leader.ask(add(4))
        assert settle(lab, leader.ask(add(5))) is ErrorCode.REQUEST_TIMED_OUT
        assert settle(lab, first) is ErrorCode.NONE

    def test_not_before_the_leader_has_committed_its_epoch(self) -> None:
        lab = dynamic(1, 2, 3)
        for replica in lab.replicas.values():
            replica.auto_flush = False
        leader = lab.elect()
        assert settle(lab, leader.ask(RemoveVoter(key(leader.id)))) is ErrorCode.REQUEST_TIMED_OUT

    def test_who_is_behind_does_not_become_a_voter(self) -> None:
        lab, leader = ready(1, observers=(2,))
        stranger = lab.add(3, bootstrap=(1,))
        stranger.asleep = True
        lab.replicas[3].asleep = False
        lab.cut |= {(3, 1)}
        assert settle(lab, leader.ask(add(3))) is ErrorCode.REQUEST_TIMED_OUT
        assert voters(leader) == (1,)

    def test_static_voters_cannot_be_changed(self) -> None:
        lab = quorum(1)
        assert settle(lab, lab.replicas[1].ask(add(2))) is ErrorCode.UNSUPPORTED_VERSION


class TestRemoving:
    def test_a_removed_voter_goes_on_as_an_observer(self) -> None:
        lab, leader = ready(1, 2, 3)
        gone = next(replica for replica in lab.replicas.values() if replica is not leader)
        assert settle(lab, leader.ask(RemoveVoter(key(gone.id)))) is ErrorCode.NONE
        lab.until(lambda: not gone.quorum.is_voter)
        end = leader.append(b"a")
        lab.until(lambda: gone.committed >= end)
        lab.isolate(gone.id)
        lab.pass_time(10_000)
        assert gone.epoch == leader.epoch

    def test_what_is_refused(self) -> None:
        lab, leader = ready(1)
        assert settle(lab, leader.ask(RemoveVoter(key(1)))) is ErrorCode.INVALID_REQUEST
        assert settle(lab, leader.ask(RemoveVoter(key(2)))) is ErrorCode.VOTER_NOT_FOUND
        other = ReplicaKey(1, b"another-director")
        assert settle(lab, leader.ask(RemoveVoter(other))) is ErrorCode.VOTER_NOT_FOUND

    def test_a_change_that_is_cut_off_is_no_change(self) -> None:
        lab, leader = ready(1, 2, 3)
        lab.isolate(leader.id)
        others = [replica for replica in lab.replicas.values() if replica is not leader]
        leader.ask(RemoveVoter(key(others[0].id)))
        assert len(voters(leader)) == 2
        lab.until(lambda: any(replica.role is Role.LEADER for replica in others))
        lab.heal()
        lab.until(lambda: voters(leader) == (1, 2, 3))


class TestUpdating:
    def test_a_voter_that_moved_tells_the_leader(self) -> None:
        lab, leader = ready(1, 2, 3)
        moved = next(replica for replica in lab.replicas.values() if replica is not leader)
        moved.local = replace(voter(moved.id), max_kraft_version=2)
        moved.start()
        lab.until(lambda: known(leader, moved.id) == 2, limit_ms=30_000)

    def test_a_leader_writes_its_own_news_when_its_epoch_begins(self) -> None:
        _, leader = ready(1)
        leader.local = replace(voter(1), max_kraft_version=2)
        leader.start()
        assert known(leader, 1) == 2

    def test_what_is_refused(self) -> None:
        _, leader = ready(1)
        epoch = leader.epoch
        at = {"CONTROLLER": address(1)}
        for request, expected in (
            (UpdateVoter(key(1), epoch - 1, at, 0, 1), ErrorCode.FENCED_LEADER_EPOCH),
            (UpdateVoter(key(1), epoch + 1, at, 0, 1), ErrorCode.UNKNOWN_LEADER_EPOCH),
            (UpdateVoter(key(2), epoch, at, 0, 1), ErrorCode.VOTER_NOT_FOUND),
            (UpdateVoter(key(1), epoch, at, 2, 3), ErrorCode.INVALID_REQUEST),
            (UpdateVoter(key(1), epoch, {"OTHER": address(1)}, 0, 1), ErrorCode.INVALID_REQUEST),
        ):
            [reply] = leader.ask(request)
            assert reply.error is expected


class TestAutoJoin:
    def test_a_controller_that_may_joins_by_itself(self) -> None:
        lab = dynamic(1)
        lab.elect()
        lab.add(2, bootstrap=(1,), config=QuorumConfig(auto_join=True))
        lab.until(lambda: voters(lab.replicas[1]) == (1, 2), limit_ms=30_000)


def known(replica: Replica, id: int) -> int:
    found = replica.quorum.voters
    assert found is not None
    return found.voters[id].max_kraft_version


def test_a_leader_that_removed_itself_and_crashed_can_still_be_elected() -> None:
    """Only it has the record of its removal, so only its log is long enough; it leads until that is done."""
    lab, leader = ready(1, 2)
    other = next(replica for replica in lab.replicas.values() if replica is not leader)
    lab.isolate(leader.id)
    leader.ask(RemoveVoter(key(leader.id)))
    leader.start()
    lab.heal()
    lab.until(lambda: voters(other) == (other.id,) and other.role is Role.LEADER)
    lab.until(lambda: leader.quorum.leader_id == other.id)


class TestUpgrading:
    def upgrade(self, replica: Replica, *, validate_only: bool = False) -> str | None:
        refusal = replica.machine.upgrade_kraft_version(1, replica.lab.now_ms, validate_only=validate_only)
        replica.lab.carry_out(replica)
        return refusal

    def test_static_voters_become_those_of_the_log_once_all_have_told_of_themselves(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        lab.pass_time(1_000)
        refusal = self.upgrade(leader)
        assert refusal is not None
        assert "has not sent its directory" in refusal
        lab.pass_time(10_000)
        assert self.upgrade(leader, validate_only=True) is None
        assert leader.quorum.kraft_version == 0
        assert self.upgrade(leader) is None
        lab.until(lambda: all(replica.quorum.kraft_version == 1 for replica in lab.replicas.values()))
        for replica in lab.replicas.values():
            assert replica.quorum.voters == dynamic_voters(1, 2, 3)
        info = leader.machine.describe(lab.now_ms)
        assert info is not None
        assert {each.key for each in info.voters} == {key(1), key(2), key(3)}
        assert info.observers == []
        end = leader.append(b"a")
        lab.until(lambda: leader.committed >= end)
        assert self.upgrade(leader) is None, "it is there already"

    def test_a_follower_does_not_raise_it(self) -> None:
        lab = quorum(1, 2, 3)
        leader = lab.elect()
        lab.pass_time(10_000)
        follower = next(replica for replica in lab.replicas.values() if replica is not leader)
        assert self.upgrade(follower) is not None
