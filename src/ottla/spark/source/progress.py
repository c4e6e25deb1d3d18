"""A stream's progress as a consumer group's committed offsets, for every tool that shows lag.

Spark's checkpoint stays what counts; the group is only told. The group must not have members: they would
overwrite each other's offsets, and the broker refuses it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ottla.client.cluster import CoordinatorType
from ottla.client.coordinator import Coordinator
from ottla.client.group_offsets import CommittedOffset, GroupOffsets
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.spark.source.link import Link

__all__ = ["GroupProgress"]

log = logging.getLogger(__name__)

PATIENCE_MS = 5_000
_HAS_MEMBERS = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH}
)


class GroupProgress:
    """`publish` is called with every position that is known to be reached; the same again costs nothing."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._published: dict[TopicPartition, int] = {}

    def publish(self, link: Link, positions: Mapping[TopicPartition, int]) -> None:
        """Waits until the broker has it. A broker that is away is no reason to stop a stream: the next
        publication covers this one. What will not go away by itself is raised.
        """
        changed = {p: at for p, at in positions.items() if self._published.get(p) != at}
        if not changed:
            return
        try:
            results = link.call(self._commit(link, changed))
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("commitToGroup=%s: %s; the next batch tries again", self._group_id, error)
            return
        for partition, problem in results.items():
            if problem is None:
                self._published[partition] = changed[partition]
            elif problem.code in _HAS_MEMBERS:
                raise KafkaError(
                    problem.code,
                    f"commitToGroup={self._group_id}: the group has members, which commit for themselves; "
                    "name a group that nobody else uses",
                )
            elif not problem.retriable:
                raise problem

    async def _commit(
        self, link: Link, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError | None]:
        coordinator = Coordinator(
            link.cluster,
            CoordinatorType.GROUP,
            self._group_id,
            timeout_ms=PATIENCE_MS,
            request_timeout_ms=PATIENCE_MS,
        )
        offsets = GroupOffsets(link.cluster, self._group_id, coordinator)
        return await offsets.commit({p: CommittedOffset(at) for p, at in positions.items()})
