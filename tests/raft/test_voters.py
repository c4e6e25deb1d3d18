"""What is written down and configured: `quorum-state` and the voters."""

from __future__ import annotations

import json

import pytest

from ottla.raft.driver.quorum_state_store import (
    BadQuorumState,
    decode_election_state,
    encode_election_state,
)
from ottla.raft.states import ElectionState
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address


class TestQuorumState:
    def test_with_static_voters(self) -> None:
        state = ElectionState(3, 1, ReplicaKey(1), (1,))
        text = encode_election_state(state, 0)
        assert json.loads(text) == {
            "clusterId": "",
            "leaderId": 1,
            "leaderEpoch": 3,
            "votedId": 1,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": 1}],
            "data_version": 0,
        }
        assert decode_election_state(text) == state

    def test_with_dynamic_voters(self) -> None:
        state = ElectionState(
            2, None, ReplicaKey(1, b"\x27\xc6\x80\x3d\xc7\xcb\x42\xdd\x9b\xaa\xcd\x49\x4f\xfa\xcc\x81")
        )
        text = encode_election_state(state, 1)
        assert json.loads(text) == {
            "leaderId": -1,
            "leaderEpoch": 2,
            "votedId": 1,
            "votedDirectoryId": "J8aAPcfLQt2bqs1JT_rMgQ",
            "data_version": 1,
        }
        assert decode_election_state(text) == state

    @pytest.mark.parametrize(
        "text", [b"", b"{}", b"[]", b"not json", b'{"data_version":9}', b'{"data_version":1,"leaderId":"x"}']
    )
    def test_rubbish(self, text: bytes) -> None:
        with pytest.raises(BadQuorumState):
            decode_election_state(text)


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

    def test_one_more_and_one_less(self) -> None:
        one, two = Voter(ReplicaKey(1, b"a" * 16)), Voter(ReplicaKey(2, b"b" * 16))
        both = VoterSet.of(one).add_voter(two)
        assert both.ids == (1, 2)
        assert both.remove_voter(one.key) == VoterSet.of(two)
        with pytest.raises(ValueError, match="already"):
            both.add_voter(Voter(ReplicaKey(2, b"c" * 16)))
        with pytest.raises(ValueError, match="not a voter"):
            both.remove_voter(ReplicaKey(1, b"c" * 16))
        with pytest.raises(ValueError, match="at least one"):
            VoterSet.of(one).remove_voter(one.key)
