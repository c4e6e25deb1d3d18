"""Random lives of share partitions in virtual time: members that work, are slow, fail and vanish; a
coordinator that is slow, fails, or writes without an answer; leaders that lose their state and load it again.

What has to hold: no record is held by two members within a lock, one that was accepted is never delivered
again, and none is lost: each is accepted, rejected, or delivered as often as the limit says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from tests.node.fetch_harness import TOPIC_ID
from tests.node.share_harness import GROUP, Member, MemoryPersister, ShareHarness, ranges_of

from ottla.coordinator.share.persister import PersisterResult, ShareState, WriteState
from ottla.node.share.share_partition_manager import SharePartitionLeader, SharePartitionManager
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition
from ottla.runtime.pool import InlinePool
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop

PARTITION = TopicIdPartition(TOPIC_ID, 0)
LOCK_MS = 2000
LIMIT = 4
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class FaultyPersister(MemoryPersister):
    def __init__(self, source: random.Random) -> None:
        super().__init__()
        self.random = source
        self.is_faulty = True

    async def read_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, ShareState]:
        await asyncio.sleep(self.random.random() * 0.1)
        if self.is_faulty and self.random.random() < 0.1:
            return {each: ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE) for each in partitions}
        return await super().read_state(group_id, partitions)

    async def write_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, WriteState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        await asyncio.sleep(self.random.choice((0, 0.01, 0.1, 3.0)) * self.random.random())
        fault = self.random.random() if self.is_faulty else 1.0
        if fault < 0.05:
            return {each: PersisterResult(ErrorCode.COORDINATOR_NOT_AVAILABLE) for each in partitions}
        if fault < 0.07:
            return {each: PersisterResult(ErrorCode.FENCED_STATE_EPOCH) for each in partitions}
        answers = await super().write_state(group_id, partitions)
        if fault < 0.1:
            # It was written, but the answer is lost.
            return {each: PersisterResult(ErrorCode.NETWORK_EXCEPTION) for each in partitions}
        return answers


class Lives:
    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.loop = SimLoop(seed)  # type: ignore[abstract]
        self.broker = ShareHarness(monkeypatch)
        self.clock = LoopClock(lambda: self.loop.now_ns)
        self.broker.runtime = SimpleNamespace(clock=self.clock, pool=InlinePool())
        self.broker.persister = self.persister = FaultyPersister(self.random)
        self.broker.share_partitions = SharePartitionManager(
            self.broker,  # type: ignore[arg-type]
            lambda: self.persister,
            self.broker.memory,
            lambda: self.broker.dead_letter_topics,
        )
        drop = self.broker.share_partitions.drop

        def on_drop(leader: SharePartitionLeader) -> None:
            # What it has locked is free.
            self.held.clear()
            self.generation += 1
            drop(leader)

        monkeypatch.setattr(self.broker.share_partitions, "drop", on_drop)
        self.broker.settings(
            {"group.share.record.lock.duration.ms": LOCK_MS, "group.share.delivery.count.limit": LIMIT}
        )
        self.produced = 0
        # By offset: the member that holds it, and until when at least.
        self.held: dict[int, tuple[str, float]] = {}
        # Of the leader, which loses its state at times.
        self.generation = 0
        self.accepted: set[int] = set()
        self.rejected: set[int] = set()
        self.most_deliveries: dict[int, int] = {}
        self.deliveries = 0
        self.is_over = False

    async def produce(self) -> None:
        for _ in range(self.random.randrange(10, 60)):
            self.broker.produce(0, self.random.randrange(1, 8))
            await asyncio.sleep(self.random.random() * 0.3)
        self.produced = self.broker.partition(0).log.log_end_offset

    async def lose_leaders(self) -> None:
        while not self.is_over:
            await asyncio.sleep(1 + self.random.random() * 8)
            leader = self.broker.share_partitions.find(GROUP, PARTITION)
            if leader is not None and self.random.random() < 0.5:
                self.broker.share_partitions.drop(leader)

    def on_delivered(self, member: str, offset: int, count: int, asked_at: float, *, is_locked: bool) -> None:
        self.deliveries += 1
        assert offset not in self.accepted, f"{offset} was accepted, and is delivered again"
        assert count <= LIMIT, (offset, count)
        self.most_deliveries[offset] = max(self.most_deliveries.get(offset, 0), count)
        if not is_locked:
            return
        holder = self.held.get(offset)
        now = self.loop.time()
        if holder is not None and holder[0] != member:
            assert now >= holder[1], f"{offset} is held by {holder}, and delivered to {member} at {now}"
        self.held[offset] = member, asked_at + LOCK_MS / 1000

    async def live(self, name: str) -> None:
        while not self.is_over:
            member = self.broker.member(name)
            try:
                await self._work(member)
            except KafkaError:
                await asyncio.sleep(0.05)  # the session is another one: begin again
            finally:
                member.disconnect()
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        for offset in [offset for offset, holder in self.held.items() if holder[0] == name]:
            del self.held[offset]

    async def _work(self, member: Member) -> None:
        wait_ms = self.random.choice((0, 100, 500))
        mode = self.random.randrange(2)
        first = True
        while not self.is_over:
            asked_at = self.loop.time()
            generation = self.generation
            data = await member.fetch(
                *((0,) if first else ()),
                max_wait_ms=wait_ms,
                max_records=self.random.choice((1, 3, 10)),
                mode=mode,
            )
            first = False
            if 0 not in data or data[0].error_code:
                await asyncio.sleep(0.01)
                continue
            is_locked = self.generation == generation
            taken = []
            for begin, end, count in ranges_of(data[0]):
                for offset in range(begin, end + 1):
                    self.on_delivered(member.name, offset, count, asked_at, is_locked=is_locked)
                    taken.append(offset)
            if taken and self.random.random() < 0.03:
                return  # it vanishes with what it holds
            if self.random.random() < 0.05:
                await asyncio.sleep(LOCK_MS / 1000 * 2 * self.random.random())  # it is slow
            else:
                await asyncio.sleep(self.random.random() * 0.05)
            await self._acknowledge(member, taken)

    async def _acknowledge(self, member: Member, taken: list[int]) -> None:
        for offset in taken:
            type = self.random.choices((ACCEPT, RELEASE, REJECT, RENEW), (20, 3, 1, 1))[0]
            renewed_at = self.loop.time()
            if type == RELEASE and self.held.get(offset, ("", 0))[0] == member.name:
                del self.held[offset]  # another may have it before this one has the answer
            error = await member.acknowledge(offset, offset, type, renew=type == RENEW)
            if error:
                continue
            if type == RENEW:
                if self.held.get(offset, ("", 0))[0] == member.name:
                    self.held[offset] = member.name, renewed_at + LOCK_MS / 1000
                error = await member.acknowledge(offset, offset, ACCEPT)
                type = ACCEPT
                if error:
                    continue
            if self.held.get(offset, ("", 0))[0] == member.name:
                del self.held[offset]
            if type == ACCEPT:
                self.accepted.add(offset)
            elif type == REJECT:
                self.rejected.add(offset)

    async def run(self) -> None:
        await self.broker.start()
        members = [asyncio.ensure_future(self.live(f"member-{number}")) for number in range(5)]
        leaders = asyncio.ensure_future(self.lose_leaders())
        await self.produce()
        self.persister.is_faulty = False
        for _ in range(400):
            await asyncio.sleep(1)
            for task in members:
                if task.done():
                    task.result()
            leader = self.broker.share_partitions.find(GROUP, PARTITION)
            if leader is not None and leader.share is not None and leader.share.start_offset >= self.produced:
                break
        else:
            raise AssertionError("some records are never done")
        self.is_over = True
        await asyncio.gather(*members)
        leaders.cancel()
        for offset in range(self.produced):
            done = offset in self.accepted or offset in self.rejected
            # The answer to the write of an accepted record may have been lost, or its deliveries forgotten.
            assert done or self.most_deliveries.get(offset, 0) >= 1, f"{offset} was lost"
        await self.broker.share_partitions.close()
        assert self.broker.memory.sessions == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_record_is_delivered_until_it_is_done(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives(seed, monkeypatch)
    try:
        lives.loop.run_until_complete(lives.run())
    finally:
        lives.loop.close()
    assert lives.deliveries >= lives.produced
