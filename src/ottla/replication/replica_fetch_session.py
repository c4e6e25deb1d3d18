"""The follower's side of an incremental fetch session (KIP-227); the leader's is `ottla.node.fetch.session`.

Each request names only the partitions that are new or whose request changed, and those to forget. A leader
that has lost the session answers with an error, and the next request names all partitions again.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    __slots__ = ("_epoch", "_id", "_known")

    def __init__(self) -> None:
        self._known: dict[Key, FetchPartition] = {}
        self.reset()

    def reset(self) -> None:
        """Begin a new session: the connection broke, or the leader does not know the session."""
        self._id = _NONE
        self._epoch = _FIRST_EPOCH
        self._known.clear()

    def build(self, request: FetchRequest, wanted: Mapping[Key, FetchPartition]) -> None:
        """Fill in a request that fetches `wanted`: the session, and what changed since the last request."""
        if self._id == _NONE:
            self._known.clear()
        changed = {key: asked for key, asked in wanted.items() if self._known.get(key) != asked}
        forgotten = [key for key in self._known if key not in wanted]
        request.session_id = self._id
        request.session_epoch = self._epoch
        topics: dict[bytes, FetchTopic] = {}
        for (topic_id, _), asked in changed.items():
            topics.setdefault(topic_id, FetchTopic(topic_id=topic_id)).partitions.append(asked)
        request.topics = list(topics.values())
        gone: dict[bytes, ForgottenTopic] = {}
        for topic_id, partition in forgotten:
            gone.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(partition)
        request.forgotten_topics_data = list(gone.values())
        for key in forgotten:
            del self._known[key]
        self._known.update(changed)

    def handle_response(self, response: FetchResponse) -> bool:
        """Update the session by a response; False if the session is lost and the response has no data."""
        if response.error_code != ErrorCode.NONE:
            self.reset()
            return False
        if self._id == _NONE:
            self._id = response.session_id
            if self._id == _NONE:
                return True
            self._epoch = 1
        elif response.session_id != self._id:
            self.reset()
            return False
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        return True
