"""A fetch session with one broker: after the first full request, requests contain only changes.

Invariant: `_sent` is exactly what the broker remembers of this session, provided that it got every request so
far. Whenever that is in doubt (no response, or one that denies the session) the next request is full again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import ZERO_UUID

MAX_EPOCH = 2**31 - 1
_DENIED = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Wanted(NamedTuple):
    """The fetch parameters of one partition; unchanged ones are not sent again."""

    topic_id: bytes | None
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchSessionHandler:
    """The client's side of a fetch session."""

    __slots__ = ("_epoch", "_id", "_sent")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0  # 0 asks for a new session, and closes the one with this id
        self._sent: dict[TopicPartition, Wanted] = {}

    def fill(self, request: FetchRequest, wanted: Mapping[TopicPartition, Wanted]) -> None:
        """Put partitions and session into a request, assuming that the broker will get it."""
        request.session_id, request.session_epoch = self._id, self._epoch
        if not self._epoch:
            request.topics = _topics(wanted)
        else:
            changed = {p: want for p, want in wanted.items() if self._sent.get(p) != want}
            # A topic with the same name and another id is a different topic.
            gone = {
                p: was
                for p, was in self._sent.items()
                if p not in wanted or wanted[p].topic_id != was.topic_id
            }
            request.topics = _topics(changed)
            request.forgotten_topics_data = _forgotten_topics(gone)
        self._sent = dict(wanted)

    def handle_response(self, session_id: int, error: int) -> bool:
        """Take the session of a response; False if the broker denied it and the response holds no data."""
        if error:
            if error in _DENIED:
                self._id = 0
            self.handle_error()
            return error not in _DENIED
        if self._epoch and session_id == self._id:
            self._epoch = self._epoch + 1 if self._epoch < MAX_EPOCH else 1
        else:
            self._id = session_id
            self._epoch = 1 if session_id else 0
        return True

    def handle_error(self) -> None:
        """Make the next request a full one."""
        self._epoch = 0


def _topics(wanted: Mapping[TopicPartition, Wanted]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for (name, index), want in wanted.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(topic=name, topic_id=want.topic_id or ZERO_UUID)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                partition_max_bytes=want.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten_topics(gone: Mapping[TopicPartition, Wanted]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes | None], ForgottenTopic] = {}
    for (name, index), was in gone.items():
        key = (name, was.topic_id)
        if key not in topics:
            topics[key] = ForgottenTopic(topic=name, topic_id=was.topic_id or ZERO_UUID)
        topics[key].partitions.append(index)
    return list(topics.values())
