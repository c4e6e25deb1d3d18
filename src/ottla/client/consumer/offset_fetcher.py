"""Find the position at which each partition begins, and validate positions after a change of leader.

A partition without a position gets the committed offset of the group or, if there is none, the one of the
reset policy. A position is validated with the new leader whenever the leader epoch grows: if the record
before it was truncated, the position goes back to where the logs diverge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.client.admin.offsets import OffsetsAdmin, OffsetSpec, by_topic
from ottla.client.admin.requests import AdminRequests
from ottla.client.consumer.config import ConsumerConfig, Reset, ResetPolicy
from ottla.client.consumer.subscription_state import SubscriptionState, TopicPartitionState
from ottla.client.group_offsets import CommittedOffset
from ottla.client.network_client import NetworkClient
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.names import TopicPartition

log = logging.getLogger(__name__)


FetchCommitted = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, CommittedOffset]]]


class OffsetFetcher:
    """`run` is its task; `wake` it after a change of the assignment, of a position or of metadata."""

    def __init__(
        self,
        cluster: NetworkClient,
        config: ConsumerConfig,
        subscriptions: SubscriptionState,
        on_change: Callable[[], object],
        fetch_committed: FetchCommitted | None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._subscriptions = subscriptions
        self._on_change = on_change
        self._fetch_committed = fetch_committed
        self._wake = asyncio.Event()
        self.offsets = OffsetsAdmin(AdminRequests(cluster, config.default_api_timeout_ms))
        # One attempt without retries: partitions that have an answer do not wait for those that have none.
        self._once = OffsetsAdmin(AdminRequests(cluster, 0))

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        backoff = self._cluster.new_backoff()
        while True:
            self._wake.clear()
            try:
                await self._init_positions()
                await self._reset_positions()
                await self._validate_positions()
                backoff.reset()
            except KafkaError as error:
                if not error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._stop_all(error)
                log.debug("positions: %s; trying again", error)
                self._wake.set()
                await asyncio.sleep(backoff.next_ms() / 1000)
            await self._wake.wait()

    def _stop_all(self, error: KafkaError) -> None:
        for state in self._subscriptions:
            if state.position is None and state.error is None:
                state.error = error
        self._on_change()

    async def _init_positions(self) -> None:
        new = [s for s in self._subscriptions if s.position is None and s.reset is None and s.error is None]
        if not new:
            return
        seeks = {state.partition: state.seeks for state in new}
        committed: dict[TopicPartition, CommittedOffset] = {}
        if self._fetch_committed is not None:
            committed = await self._fetch_committed([state.partition for state in new])
        for state in new:
            if state.seeks != seeks[state.partition] or state.position is not None:
                continue  # there was a seek meanwhile
            found = committed.get(state.partition)
            if found is not None and found.offset >= 0:
                state.seek(found.offset, found.leader_epoch)
            elif self._config.reset_policy.reset is Reset.NONE:
                state.error = KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{state.partition}: there is no committed offset, and auto.offset.reset=none; "
                    "seek to where reading shall begin",
                )
            else:
                state.reset = self._config.reset_policy
        self._on_change()

    async def _reset_positions(self) -> None:
        waiting = {
            s.partition: (s, s.seeks, self._timestamp(s.reset))
            for s in self._subscriptions
            # A partition without a leader has to wait for new metadata.
            if s.reset is not None
            and s.error is None
            and self._cluster.metadata.leader(s.partition) is not None
        }
        if not waiting:
            return
        await self._find(waiting)
        # By time, if no record is that recent: the end.
        late = {
            s.partition: (s, s.seeks, int(OffsetSpec.LATEST))
            for s, seeks, _ in waiting.values()
            if s.reset is not None
            and s.error is None
            and s.seeks == seeks
            and s.reset.reset is Reset.BY_DURATION
        }
        if late:
            await self._find(late)
        self._on_change()

    async def _find(self, waiting: dict[TopicPartition, tuple[TopicPartitionState, int, int]]) -> None:
        found = await self._once.list(
            {partition: timestamp for partition, (_, _, timestamp) in waiting.items()},
            read_committed=self._config.read_committed,
        )
        again: KafkaError | None = None
        for partition, (state, seeks, _) in waiting.items():
            result = found[partition]
            if state.seeks != seeks:
                continue
            if isinstance(result, KafkaError):
                if result.retriable or result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    again = result
                else:
                    state.error = result
            elif result.offset >= 0:
                state.seek(result.offset, result.leader_epoch)
                info = self._cluster.metadata.leader(partition)
                state.validated_epoch = info.leader_epoch if info is not None else -1
        self._on_change()
        if again is not None:
            raise again

    def _timestamp(self, policy: ResetPolicy | None) -> int:
        assert policy is not None
        match policy.reset:
            case Reset.EARLIEST:
                return OffsetSpec.EARLIEST
            case Reset.LATEST:
                return OffsetSpec.LATEST
        return self._cluster.runtime.clock.wall_ms() - policy.back_ms

    # Validation after a change of leader.

    async def _validate_positions(self) -> None:
        by_leader: dict[int, list[tuple[TopicPartitionState, int, int]]] = {}
        stale: set[str] = set()
        for state in self._subscriptions:
            info = self._cluster.metadata.leader(state.partition)
            if info is None or state.position is None or state.position_epoch < 0:
                continue
            if 0 <= info.leader_epoch < state.position_epoch:
                # A former leader, which does not know the epoch of a position that was committed since, would
                # seem to have lost it.
                stale.add(state.partition.topic)
            elif state.validated_epoch < info.leader_epoch:
                state.forget_fetched()  # fetched from the previous leader, beyond what is validated here
                by_leader.setdefault(info.leader, []).append((state, state.seeks, info.leader_epoch))
        changed = False
        for node_id, states in by_leader.items():
            changed |= await self._validate_with(node_id, states)
        if changed:
            self._on_change()
        if stale:
            await self._refresh(stale)

    async def _refresh(self, topics: set[str]) -> None:
        """Get newer metadata of these topics, and try again after a pause."""
        await self._cluster.refresh(topics=topics)
        self._wake.set()
        await asyncio.sleep(self._config.retry_backoff_ms / 1000)

    async def _validate_with(self, node_id: int, states: list[tuple[TopicPartitionState, int, int]]) -> bool:
        asked = {state.partition: (state, seeks, epoch) for state, seeks, epoch in states}
        connection = await self._cluster.connection(node_id)
        if connection.versions is None or not connection.versions.supports(
            OffsetForLeaderEpochRequest.API_KEY, 3
        ):
            # Brokers before Kafka 2.3 do not allow consumers to ask.
            for state, _, epoch in states:
                state.validated_epoch = epoch
            return True
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        OffsetForLeaderPartition(
                            partition=index,
                            current_leader_epoch=asked[TopicPartition(topic, index)][2],
                            leader_epoch=asked[TopicPartition(topic, index)][0].position_epoch,
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(asked).items()
            ],
        )
        answer = await connection.request(
            request, OffsetForLeaderEpochResponse, timeout_ms=self._config.request_timeout_ms
        )
        stale: set[str] = set()
        for topic in answer.topics:
            for entry in topic.partitions:
                state, seeks, epoch = asked[TopicPartition(topic.topic, entry.partition)]
                if state.seeks != seeks:
                    continue
                if entry.error_code:
                    stale.add(topic.topic)
                else:
                    self._compare(state, epoch, entry.leader_epoch, entry.end_offset)
        if stale:
            await self._refresh(stale)
        return True

    def _compare(self, state: TopicPartitionState, epoch: int, end_epoch: int, end_offset: int) -> None:
        """Compare a position with the end of its epoch in the leader's log: `end_offset`, or -1 if it has
        none.
        """
        state.validated_epoch = epoch
        assert state.position is not None
        if end_offset < 0 or end_epoch < 0:
            self._on_truncation(state, epoch, None, end_epoch)
        elif end_offset < state.position:
            self._on_truncation(state, epoch, end_offset, end_epoch)

    def _on_truncation(
        self, state: TopicPartitionState, epoch: int, good: int | None, good_epoch: int
    ) -> None:
        if self._config.reset_policy.reset is Reset.NONE:
            where = f"; the log now parts at offset {good}" if good is not None else ""
            state.error = KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{state.partition}: the log was truncated below the position {state.position}{where}, and "
                "auto.offset.reset=none; seek to where reading shall go on",
            )
        elif good is not None:
            log.warning(
                "%s: the log was truncated; going back from %s to %d", state.partition, state.position, good
            )
            state.seek(good, good_epoch)
            state.validated_epoch = epoch  # by the leader of this epoch itself
        else:
            log.warning(
                "%s: the log was truncated; starting at %s", state.partition, self._config.auto_offset_reset
            )
            state.seek_by(self._config.reset_policy)
            self._wake.set()
