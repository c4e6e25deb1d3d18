"""The `quorum-state` file: the state of elections that a node must not lose.

The file is the JSON form of this message (`ottla.protocol.json_form`) with the version as `data_version`.
"""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int32, int64, string, uuid


class QuorumStateVoter(Struct):
    voter_id: int = int32()


class QuorumStateData(Message, versions="0-1", flexible="0+"):
    """The vote and the leader that this node knows. v0 has the voters; v1 the candidate's directory id."""

    cluster_id: str = string(versions="0")
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)
    voted_id: int = int32(default=-1)
    voted_directory_id: bytes = uuid(versions="1+")
    applied_offset: int = int64(versions="0")
    current_voters: list[QuorumStateVoter] | None = array(QuorumStateVoter, versions="0", nullable=True)
