"""The follower's side of an incremental fetch session (KIP-227); the leader's is `ottla.node.fetch.session`.

Each request names only the partitions that are new or whose request changed, and those to forget; the leader
reads all that were named before and are not forgotten. A leader that has lost the session answers with an
error, and the following requests name all partitions again. Invariant: after each request `known` is what the
leader's session holds if the leader got the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

Key: TypeAlias = tuple[bytes, int]
"""A topic's id and a partition of it."""

_NONE: Final = 0
_FIRST_EPOCH: Final = 0
_MAX_EPOCH: Final = 2**31 - 1


class ReplicaFetchSession:
    __slots__ = ("_epoch", "_former_id", "_id", "known")

    def __init__(self) -> None:
        # The request of each partition, in the order in which they were last named.
        self.known: dict[Key, FetchPartition] = {}
        self._id = _NONE
        self._epoch = _FIRST_EPOCH
        # The session that the next full fetch ends at the leader, which would keep it otherwise.
        self._former_id = _NONE

    def reset(self) -> list[Key]:
        """Begin a new session: the connection broke, or the leader does not know the session. Returns the
        partitions of the former one, those that were named last first.
        """
        if self._id != _NONE:
            self._former_id = self._id
        self._id = _NONE
        self._epoch = _FIRST_EPOCH
        known, self.known = self.known, {}
        return list(reversed(known))

    @property
    def is_incremental(self) -> bool:
        """False before the first response, and where the leader has no place for a session: then a request
        fetches only what it names.
        """
        return self._id != _NONE

    def build(
        self, request: FetchRequest, named: Mapping[Key, FetchPartition], forgotten: Iterable[Key]
    ) -> None:
        """Fill in a request that goes on with the session: `named` are new or changed, and `forgotten` is
        known and not among them.
        """
        request.session_id = self._former_id if self._id == _NONE else self._id
        request.session_epoch = self._epoch
        known = self.known
        assert not known or self._id != _NONE, "a full fetch begins a session"
        gone: dict[bytes, ForgottenTopic] = {}
        for key in forgotten:
            del known[key]
            gone.setdefault(key[0], ForgottenTopic(topic_id=key[0])).partitions.append(key[1])
        topics: dict[bytes, FetchTopic] = {}
        for key, asked in named.items():
            known.pop(key, None)
            known[key] = asked
            topics.setdefault(key[0], FetchTopic(topic_id=key[0])).partitions.append(asked)
        request.topics = list(topics.values())
        request.forgotten_topics_data = list(gone.values())

    def handle_response(self, response: FetchResponse) -> bool:
        """Update the session by a response; False if the session is lost and the response has no data."""
        if response.error_code != ErrorCode.NONE:
            return False
        if self._id == _NONE:
            self._former_id = _NONE
            self._id = response.session_id
            self._epoch = _FIRST_EPOCH if self._id == _NONE else 1
        elif response.session_id == self._id:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        elif response.session_id == _NONE:
            # The leader has ended the session; what it answers still counts.
            self._id, self._epoch = _NONE, _FIRST_EPOCH
        else:
            return False
        return True
