"""What a voter must not forget: the epoch, whom it voted for, and who leads. The file ``quorum-state``.

It is written before its content is acted upon; a voter that forgot its vote could vote twice in an epoch
and make two leaders. Kafka's format: one line of JSON with the version of the data in it, 0 while voters
are configured statically, 1 with dynamic voters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from ottla.protocol.errors import KafkaError
from ottla.protocol.json_form import from_json, to_json
from ottla.protocol.quorum_state import QuorumStateData, QuorumStateVoter
from ottla.raft.voters import NO_DIRECTORY, ReplicaKey

FILE_NAME: Final = "quorum-state"
_NOBODY: Final = -1


class BadQuorumState(Exception):
    """The file is not a quorum-state that this version understands."""


@dataclass(frozen=True, slots=True)
class ElectionState:
    """Invariant: within an epoch the vote, once given, and the leader, once known, never change."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None
    voters: tuple[int, ...] = ()  # only written, and only in version 0

    def encode(self, version: int) -> bytes:
        data = QuorumStateData(
            leader_id=_NOBODY if self.leader_id is None else self.leader_id,
            leader_epoch=self.epoch,
            voted_id=_NOBODY if self.voted is None else self.voted.id,
        )
        if version == 0:
            data.current_voters = [QuorumStateVoter(voter_id=id) for id in self.voters]
        else:
            data.voted_directory_id = NO_DIRECTORY if self.voted is None else self.voted.directory_id
        return json.dumps({**to_json(data, version), "data_version": version}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> ElectionState:
        try:
            fields = json.loads(text)
            version = fields["data_version"]
            if version not in (0, 1):
                raise BadQuorumState(f"data_version {version} is not supported; this version reads 0 and 1")
            data = from_json(QuorumStateData, fields, version)
        except (ValueError, KeyError, TypeError, KafkaError) as error:
            raise BadQuorumState(f"not a quorum state: {error}") from error
        voted = None
        if data.voted_id != _NOBODY:
            voted = ReplicaKey(data.voted_id, bytes(data.voted_directory_id))
        return cls(
            epoch=data.leader_epoch,
            leader_id=None if data.leader_id == _NOBODY else data.leader_id,
            voted=voted,
            voters=tuple(voter.voter_id for voter in data.current_voters or ()),
        )
