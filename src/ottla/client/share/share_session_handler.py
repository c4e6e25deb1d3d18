"""A share session with one broker: after the first request, requests contain only changes, in order.

Invariant: `partitions` is exactly what the broker remembers of this session, provided that it got every
request so far. Whenever that is in doubt (no response, a response that denies the session, or another
connection, as a session ends with its connection) the next request begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.protocol.names import TopicIdPartition

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1


class ShareSessionHandler:
    """The client's side of a share session."""

    __slots__ = ("epoch", "partitions")

    def __init__(self) -> None:
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[TopicIdPartition, None] = {}

    @property
    def is_new(self) -> bool:
        """Whether the next request begins a session, and so cannot acknowledge."""
        return self.epoch == INITIAL_EPOCH

    def change_to(
        self, wanted: Iterable[TopicIdPartition]
    ) -> tuple[list[TopicIdPartition], list[TopicIdPartition]]:
        """Have the session fetch exactly these; return those to add and those to forget, assuming that the
        broker gets the request.
        """
        now = dict.fromkeys(wanted)
        before = {} if self.is_new else self.partitions
        self.partitions = now
        return [each for each in now if each not in before], [each for each in before if each not in now]

    def handle_response(self) -> None:
        """Go on to the next epoch, after a request that the broker has taken."""
        self.epoch = self.epoch + 1 if self.epoch < MAX_EPOCH else 1

    def handle_error(self) -> None:
        """Make the next request begin a session."""
        self.epoch = INITIAL_EPOCH
        self.partitions = {}
