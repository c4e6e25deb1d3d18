"""The file `quorum-state`, in which a voter keeps its `ElectionState` (Kafka's FileQuorumStateStore).

Kafka's format: one line of JSON with the version of the data in it, 0 while the voters are configured
statically, 1 with dynamic voters.
"""

from __future__ import annotations

import json
import posixpath
from typing import Final

from ottla.protocol.errors import KafkaError
from ottla.protocol.json_form import from_json, to_json
from ottla.protocol.quorum_state import QuorumStateData, QuorumStateVoter
from ottla.raft.states import ElectionState
from ottla.raft.voters import NO_DIRECTORY, ReplicaKey
from ottla.runtime.disk import Disk, read_file, write_file

FILE_NAME: Final = "quorum-state"
_NO_NODE: Final = -1


class BadQuorumState(Exception):
    """The file is not a quorum-state that this version understands."""


def encode_election_state(election: ElectionState, version: int) -> bytes:
    data = QuorumStateData(
        leader_id=_NO_NODE if election.leader_id is None else election.leader_id,
        leader_epoch=election.epoch,
        voted_id=_NO_NODE if election.voted is None else election.voted.id,
    )
    if version == 0:
        data.current_voters = [QuorumStateVoter(voter_id=id) for id in election.voters]
    else:
        data.voted_directory_id = NO_DIRECTORY if election.voted is None else election.voted.directory_id
    return json.dumps({**to_json(data, version), "data_version": version}, separators=(",", ":")).encode()


def decode_election_state(text: bytes) -> ElectionState:
    try:
        fields = json.loads(text)
        version = fields["data_version"]
        if version not in (0, 1):
            raise BadQuorumState(f"data_version {version} is not supported; this version reads 0 and 1")
        data = from_json(QuorumStateData, fields, version)
    except (ValueError, KeyError, TypeError, KafkaError) as error:
        raise BadQuorumState(f"not a quorum state: {error}") from error
    voted = None
    if data.voted_id != _NO_NODE:
        voted = ReplicaKey(data.voted_id, bytes(data.voted_directory_id))
    return ElectionState(
        epoch=data.leader_epoch,
        leader_id=None if data.leader_id == _NO_NODE else data.leader_id,
        voted=voted,
        voters=tuple(voter.voter_id for voter in data.current_voters or ()),
    )


def read_election_state(disk: Disk, dir: str) -> ElectionState | None:
    """Read the file in the metadata log's directory; None if there is none. BadQuorumState if it makes no
    sense.
    """
    path = posixpath.join(dir, FILE_NAME)
    return decode_election_state(read_file(disk, path)) if disk.exists(path) else None


def write_election_state(disk: Disk, dir: str, election: ElectionState, version: int) -> None:
    """Write the file; it is durable on return."""
    write_file(disk, posixpath.join(dir, FILE_NAME), encode_election_state(election, version))
