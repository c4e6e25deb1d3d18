"""Commit the progress of a stream as offsets of a consumer group, for every tool that shows lag.

Spark's checkpoint stays authoritative; the group is informational. It must not have members: they would
overwrite each other's offsets, and the broker refuses such commits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.group_offsets import CommittedOffset, GroupOffsets
from ottla.client.network_client import CoordinatorType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.spark.source.client import SourceClient

log = logging.getLogger(__name__)

TIMEOUT_MS = 5_000
_HAS_MEMBERS = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH}
)


class GroupOffsetCommitter:
    """Commits the positions of a stream. Positions that are committed already cost no request."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._committed: dict[TopicPartition, int] = {}

    def commit(self, client: SourceClient, positions: Mapping[TopicPartition, int]) -> None:
        """Commit and wait for the answer. A broker that cannot be reached does not stop the stream: the next
        commit covers this one. Errors that need the user are raised.
        """
        changed = {p: at for p, at in positions.items() if self._committed.get(p) != at}
        if not changed:
            return
        try:
            results = client.call(self._send_commit(client, changed))
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("commitToGroup=%s: %s; the next batch tries again", self._group_id, error)
            return
        for partition, problem in results.items():
            if problem is None:
                self._committed[partition] = changed[partition]
            elif problem.code in _HAS_MEMBERS:
                raise KafkaError(
                    problem.code,
                    f"commitToGroup={self._group_id}: the group has members, which commit for themselves; "
                    "name a group that no consumer uses",
                )
            elif not problem.retriable:
                raise problem

    async def _send_commit(
        self, client: SourceClient, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError | None]:
        coordinator = CoordinatorClient(
            client.cluster,
            CoordinatorType.GROUP,
            self._group_id,
            timeout_ms=TIMEOUT_MS,
            request_timeout_ms=TIMEOUT_MS,
        )
        offsets = GroupOffsets(client.cluster, self._group_id, coordinator)
        return await offsets.commit({p: CommittedOffset(at) for p, at in positions.items()})
