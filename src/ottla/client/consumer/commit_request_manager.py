"""Commits of offsets, on request and automatically.

An automatic commit never runs ahead of the user: it is made within `poll`, for records that earlier polls
returned, and once more before partitions are revoked and when the consumer closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from ottla.client.consumer.config import ConsumerConfig
from ottla.client.consumer.consumer_metrics import ConsumerMetrics
from ottla.client.consumer.group_membership import GroupMembership
from ottla.client.group_offsets import CommittedOffset, GroupMemberIdentity, GroupOffsets
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

STALE_RETRIES = 5
MAX_ASYNC_COMMITS = 1_000
# The group is in a newer epoch, and this member may be too.
_STALE = frozenset(
    {ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
)
_NOT_OURS = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH}
)

Offsets = Mapping[TopicPartition, CommittedOffset]


class CommitRequestManager:
    """The commits of one consumer."""

    def __init__(
        self,
        config: ConsumerConfig,
        offsets: GroupOffsets,
        positions: Callable[[], dict[TopicPartition, CommittedOffset]],
        metrics: ConsumerMetrics,
    ) -> None:
        self._metrics = metrics
        self._config = config
        self._offsets = offsets
        self._positions = positions
        self._next_auto_commit_at: float | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._last: dict[TopicPartition, CommittedOffset] = {}
        self._async_commits: list[asyncio.Task[Any]] = []
        self.membership: GroupMembership | None = None

    @property
    def member(self) -> GroupMemberIdentity:
        return self.membership.member if self.membership is not None else GroupMemberIdentity()

    def require_member(self) -> GroupMemberIdentity:
        """Return the committing member. KafkaError UNKNOWN_MEMBER_ID when this consumer is not in its group:
        a commit without a member could pass, and overwrite that of the partitions' new owner.
        """
        member = self.member
        if self.membership is not None and member.epoch <= 0:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {self._config.group_id!r}: cannot commit while this consumer is not a member",
            )
        return member

    async def fetch(self, partitions: list[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of these partitions."""
        return await self._offsets.fetch(partitions)

    async def commit(self, offsets: Offsets) -> None:
        """Commit all offsets, or raise the first error."""
        loop, metrics = asyncio.get_running_loop(), self._metrics
        for attempt in range(STALE_RETRIES):
            begun = loop.time()
            results = await self._offsets.commit(offsets, member=self.require_member())
            metrics.commits.value += 1
            metrics.commit_latency.record((loop.time() - begun) * 1000, loop.time())
            error = next((error for error in results.values() if error is not None), None)
            if error is None:
                return
            stale = error.code in _STALE and self.membership is not None
            if stale and attempt + 1 < STALE_RETRIES and await self.membership.refresh_epoch():  # type: ignore[union-attr]
                continue
            if error.code in _NOT_OURS:
                raise KafkaError(
                    error.code,
                    f"{error.message}; the group has rebalanced and the partitions may belong to another "
                    "member, which reads from the last commit",
                )
            raise error

    def commit_in_turn(self, commit: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Start a commit in the background, after those that were started before it."""
        if len(self._async_commits) >= MAX_ASYNC_COMMITS:
            raise RuntimeError(f"{MAX_ASYNC_COMMITS} commits wait for their turn already; await one of them")
        before = self._async_commits[-1:]

        async def turn() -> T:
            if before:
                await asyncio.wait(before)
            return await commit()

        task = asyncio.get_running_loop().create_task(turn())
        self._async_commits.append(task)
        task.add_done_callback(self._on_async_commit_done)
        return task

    def _on_async_commit_done(self, task: asyncio.Task[Any]) -> None:
        self._async_commits.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("commit: %s", error)

    async def wait_for_async_commits(self) -> None:
        """Wait for the commits in the background."""
        if self._async_commits:
            await asyncio.wait(list(self._async_commits))

    # Automatic commits.

    def maybe_auto_commit(self) -> None:
        """Start an automatic commit if it is due. Called by each poll, before it returns new records."""
        if not self._config.enable_auto_commit:
            return
        now = asyncio.get_running_loop().time()
        interval = self._config.auto_commit_interval_ms / 1000
        if self._next_auto_commit_at is None:
            self._next_auto_commit_at = now + interval
        elif now >= self._next_auto_commit_at and (self._under_way is None or self._under_way.done()):
            self._next_auto_commit_at = now + interval
            offsets = self._uncommitted_positions()
            if offsets:
                self._under_way = asyncio.get_running_loop().create_task(self._auto_commit(offsets))

    async def maybe_auto_commit_sync(self) -> None:
        """Make an automatic commit before partitions are revoked, and wait for it."""
        if not self._config.enable_auto_commit:
            return
        if self._under_way is not None:
            await asyncio.gather(self._under_way, return_exceptions=True)
        offsets = self._uncommitted_positions()
        if offsets:
            await self._auto_commit(offsets)

    def _uncommitted_positions(self) -> dict[TopicPartition, CommittedOffset]:
        return {p: offset for p, offset in self._positions().items() if self._last.get(p) != offset}

    def forget(self, partitions: list[TopicPartition]) -> None:
        """Forget the last commits of partitions that were revoked; other members may commit for them."""
        for partition in partitions:
            self._last.pop(partition, None)

    async def _auto_commit(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        try:
            await self.commit(offsets)
            self._last.update(offsets)
        except KafkaError as error:
            log.warning("automatic commit: %s", error)

    async def close(self) -> None:
        tasks = [*self._async_commits, *([self._under_way] if self._under_way is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
