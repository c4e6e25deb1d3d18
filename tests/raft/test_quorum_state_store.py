"""The file `quorum-state`: Kafka's format in both versions, and what is refused."""

from __future__ import annotations

import json

import pytest

from ottla.raft.driver.quorum_state_store import (
    BadQuorumState,
    decode_election_state,
    encode_election_state,
)
from ottla.raft.states import ElectionState
from ottla.raft.voters import ReplicaKey


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
