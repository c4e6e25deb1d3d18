"""A quorum of one as a transcript: campaign, lead, commit; and the files it leaves."""

from __future__ import annotations

import json

import pytest

from ottla.protocol.control_records import KRaftVersionRecord, LeaderChangeMessage, VotersRecord
from ottla.raft.election_state import BadQuorumState, ElectionState
from ottla.raft.quorum import Quorum, Role
from ottla.raft.voters import Address, ReplicaKey, Voter, VoterSet

ME = ReplicaKey(1, b"my-directory-id!")
ALONE = VoterSet.of(Voter(ReplicaKey(1), {"CONTROLLER": Address("localhost", 9093)}))


def leader(end_offset: int = 10, **options: int) -> Quorum:
    quorum = Quorum(ME, ALONE, **options)  # type: ignore[arg-type]
    quorum.campaign()
    quorum.elected(end_offset)
    return quorum


class TestElection:
    def test_a_voter_alone_votes_for_itself_and_wins(self) -> None:
        quorum = Quorum(ME, ALONE, election=ElectionState(epoch=4, leader_id=1), log_epoch=3)
        assert quorum.role is Role.UNATTACHED
        vote = quorum.campaign()
        assert vote == ElectionState(5, None, ReplicaKey(1), (1,))
        won = quorum.elected(100)
        assert won == ElectionState(5, 1, ReplicaKey(1), (1,))
        assert (quorum.is_leader, quorum.leader_id, quorum.epoch) == (True, 1, 5)

    def test_the_new_epoch_is_above_that_of_the_vote_and_of_the_log(self) -> None:
        assert leader(log_epoch=9).epoch == 10
        quorum = Quorum(ME, ALONE, election=ElectionState(epoch=7), log_epoch=2)
        assert quorum.campaign().epoch == 8

    def test_the_epoch_begins_with_a_record_that_names_the_leader(self) -> None:
        [message] = leader().start_of_epoch_records(Voter(ME), None)
        assert isinstance(message, LeaderChangeMessage)
        assert message.leader_id == 1
        assert [voter.voter_id for voter in message.voters] == [1]
        assert [voter.voter_id for voter in message.granting_voters] == [1]

    def test_a_node_that_is_no_voter_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"node 7 is not among the voters \(1,\)"):
            Quorum(ReplicaKey(7), ALONE)

    def test_a_voter_on_another_directory_is_another_voter(self) -> None:
        voters = VoterSet.of(Voter(ReplicaKey(1, b"another-director")))
        with pytest.raises(ValueError, match="not among the voters"):
            Quorum(ME, voters, kraft_version=1)


class TestHighWatermark:
    def test_it_waits_for_a_record_of_the_leaders_own_epoch(self) -> None:
        quorum = leader(end_offset=10)
        assert quorum.flushed(10) is None
        assert quorum.high_watermark is None
        assert quorum.flushed(11) == 11

    def test_it_never_goes_back(self) -> None:
        quorum = leader(end_offset=10)
        assert quorum.flushed(15) == 15
        assert quorum.flushed(12) is None
        assert quorum.flushed(15) is None
        assert quorum.high_watermark == 15

    def test_describe(self) -> None:
        quorum = leader(end_offset=10)
        quorum.flushed(12)
        info = quorum.describe()
        assert (info.leader_id, info.epoch, info.high_watermark) == (1, 1, 12)
        assert list(info.end_offsets.values()) == [12]


class TestDynamicVoters:
    VOTERS = VoterSet.of(Voter(ME, {"CONTROLLER": Address("localhost", 9093)}))

    def campaigned(self) -> Quorum:
        quorum = Quorum(ME, self.VOTERS, kraft_version=1)
        assert quorum.campaign().voted == ME
        quorum.elected(0)
        return quorum

    def test_the_first_leader_copies_the_voters_into_the_log(self) -> None:
        records = self.campaigned().start_of_epoch_records(self.VOTERS.voters[1], -1)
        assert [type(record) for record in records] == [LeaderChangeMessage, KRaftVersionRecord, VotersRecord]
        voters = records[2]
        assert isinstance(voters, VotersRecord)
        assert VoterSet.from_record(voters) == self.VOTERS

    def test_later_ones_only_when_their_endpoints_changed(self) -> None:
        assert len(self.campaigned().start_of_epoch_records(self.VOTERS.voters[1], 5)) == 1
        moved = Voter(ME, {"CONTROLLER": Address("elsewhere", 9093)})
        quorum = self.campaigned()
        records = quorum.start_of_epoch_records(moved, 5)
        assert len(records) == 3
        assert quorum.voters.voters[1].endpoints["CONTROLLER"].host == "elsewhere"


class TestQuorumState:
    def test_with_static_voters(self) -> None:
        state = ElectionState(3, 1, ReplicaKey(1), (1,))
        text = state.encode(0)
        assert json.loads(text) == {
            "clusterId": "",
            "leaderId": 1,
            "leaderEpoch": 3,
            "votedId": 1,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": 1}],
            "data_version": 0,
        }
        assert ElectionState.decode(text) == state

    def test_with_dynamic_voters(self) -> None:
        state = ElectionState(
            2, None, ReplicaKey(1, b"\x27\xc6\x80\x3d\xc7\xcb\x42\xdd\x9b\xaa\xcd\x49\x4f\xfa\xcc\x81")
        )
        text = state.encode(1)
        assert json.loads(text) == {
            "leaderId": -1,
            "leaderEpoch": 2,
            "votedId": 1,
            "votedDirectoryId": "J8aAPcfLQt2bqs1JT_rMgQ",
            "data_version": 1,
        }
        assert ElectionState.decode(text) == state

    @pytest.mark.parametrize(
        "text", [b"", b"{}", b"[]", b"not json", b'{"data_version":9}', b'{"data_version":1,"leaderId":"x"}']
    )
    def test_rubbish(self, text: bytes) -> None:
        with pytest.raises(BadQuorumState):
            ElectionState.decode(text)


class TestVoters:
    def test_parsing_the_configuration(self) -> None:
        voters = VoterSet.parse("1@localhost:9093, 2@[::1]:9094", "CONTROLLER")
        assert voters.ids == (1, 2)
        assert voters.majority == 2
        assert voters.voters[2].endpoints == {"CONTROLLER": Address("::1", 9094)}

    @pytest.mark.parametrize(
        "text", ["", "1", "1@host", "@host:1", "x@host:1", "1@host:70000", "1@a:1,1@b:2"]
    )
    def test_what_is_wrong_is_named(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"controller\.quorum\.voters"):
            VoterSet.parse(text, "CONTROLLER")

    def test_a_set_is_never_empty(self) -> None:
        with pytest.raises(ValueError, match="at least one voter"):
            VoterSet({})
