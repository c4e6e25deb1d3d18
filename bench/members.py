"""Minimal group members: connections that join, send heartbeats and report when they have partitions.

A client library spends far more on a rebalance than the broker does, so a hundred of them on the machine of
the broker measure themselves. These members only speak the protocols, all in one thread, over connections
that are kept from one group to the next. Between two heartbeats they wait as long as the broker says, as
client libraries do; in the classic protocol, where a client chooses, they wait `BEAT_S`.
"""

import asyncio
import struct
from typing import TypeVar

from ottla.protocol.api import API
from ottla.protocol.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.schema import Request, Response

BEAT_S = 0.1
SETTLE_S = 120.0
REBALANCE_TIMEOUT_MS = 60_000
NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}

R = TypeVar("R", bound=Response)


class Member:
    """One connection, and the group that it is a member of at the moment."""

    def __init__(self) -> None:
        self._number = 0

    async def connect(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    async def ask(self, request: Request, version: int, kind: type[R]) -> R:
        self._number += 1
        self._writer.write(b"".join(request_parts(version, self._number, "bench", request)))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        frame = await self._reader.readexactly(size)
        _, response = read_response(API[request.API_KEY], version, frame)
        assert isinstance(response, kind)
        return response

    async def find_coordinator(self, group: str) -> None:
        """Make the broker create the coordinators' topic, if this is its first group."""
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        while True:
            found = await self.ask(find, 6, FindCoordinatorResponse)
            if found.coordinators[0].error_code == 0:
                return
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        self._writer.close()


class Round:
    """One group, until every member has its partitions."""

    def __init__(self, group: str, topic: str, members: int) -> None:
        self.group = group
        self._topic = topic
        self._members = members
        self._sizes: dict[int, int] = {}  # of generations, as their leaders were told
        self._shares: dict[str, tuple[int, int]] = {}  # by member: its generation, how many partitions
        self._settled = asyncio.Event()

    def _share(self, member_id: str, generation: int, partitions: int) -> None:
        self._shares[member_id] = generation, partitions
        if len(self._shares) < self._members:
            return
        if self._sizes:
            newest = max(self._sizes)
            if self._sizes[newest] == self._members and all(
                each == newest for each, _ in self._shares.values()
            ):
                self._settled.set()
        elif all(count for _, count in self._shares.values()):
            self._settled.set()

    async def classic(self, member: Member, _: str) -> None:
        """A member of the classic protocol; the leader of the group assigns partitions to all members."""
        metadata = encode_subscription(ConsumerProtocolSubscription(topics=[self._topic]))
        join = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        while not self._settled.is_set():
            joined = await member.ask(join, 9, JoinGroupResponse)
            if joined.error_code in NOT_YET:
                await self._pause()
                continue
            join.member_id = joined.member_id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            assert joined.error_code == 0, ErrorCode(joined.error_code)
            if joined.leader == joined.member_id:
                self._sizes[joined.generation_id] = len(joined.members)
            sync = SyncGroupRequest(
                group_id=self.group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"a share")
                    for each in joined.members
                ],
            )
            synced = await member.ask(sync, 5, SyncGroupResponse)
            if synced.error_code == 0:
                self._share(joined.member_id, joined.generation_id, 1)
                beat = HeartbeatRequest(
                    group_id=self.group, generation_id=joined.generation_id, member_id=joined.member_id
                )
                while not self._settled.is_set():
                    await self._pause()
                    if (await member.ask(beat, 4, HeartbeatResponse)).error_code != 0:
                        break
        leave = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=join.member_id)])
        await member.ask(leave, 5, LeaveGroupResponse)

    async def consumer(self, member: Member, name: str) -> None:
        """A member of the consumer protocol; the broker assigns partitions."""
        beat = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=name,
            member_epoch=0,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[self._topic],
            topic_partitions=[],
        )
        while not self._settled.is_set():
            answer = await member.ask(beat, 1, ConsumerGroupHeartbeatResponse)
            if answer.error_code in NOT_YET:
                await self._pause()
                continue
            assert answer.error_code == 0, ErrorCode(answer.error_code)
            beat = ConsumerGroupHeartbeatRequest(
                group_id=self.group, member_id=name, member_epoch=answer.member_epoch
            )
            if answer.assignment is not None:
                owned = answer.assignment.topic_partitions
                self._share(name, answer.member_epoch, sum(len(each.partitions) for each in owned))
                # Confirm assigned and revoked partitions at once.
                beat.topic_partitions = [
                    TopicPartitions(topic_id=each.topic_id, partitions=each.partitions) for each in owned
                ]
            else:
                await self._pause(answer.heartbeat_interval_ms / 1000)
        beat.member_epoch = -1
        await member.ask(beat, 1, ConsumerGroupHeartbeatResponse)

    async def share(self, member: Member, name: str) -> None:
        """A member of a share group."""
        beat = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=name, member_epoch=0, subscribed_topic_names=[self._topic]
        )
        while not self._settled.is_set():
            answer = await member.ask(beat, 1, ShareGroupHeartbeatResponse)
            if answer.error_code in NOT_YET:
                await self._pause()
                continue
            assert answer.error_code == 0, ErrorCode(answer.error_code)
            beat = ShareGroupHeartbeatRequest(
                group_id=self.group, member_id=name, member_epoch=answer.member_epoch
            )
            if answer.assignment is not None:
                topics = answer.assignment.topic_partitions
                self._share(name, answer.member_epoch, sum(len(each.partitions) for each in topics))
            await self._pause(answer.heartbeat_interval_ms / 1000)
        beat.member_epoch = -1
        await member.ask(beat, 1, ShareGroupHeartbeatResponse)

    async def streams(self, member: Member, name: str) -> None:
        """A member of a streams group whose topology has one task for each partition."""
        beat = StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id=name,
            member_epoch=0,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            topology=Topology(
                epoch=1, subtopologies=[Subtopology(subtopology_id="0", source_topics=[self._topic])]
            ),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            process_id=name,
            client_tags=[],
        )
        while not self._settled.is_set():
            answer = await member.ask(beat, 0, StreamsGroupHeartbeatResponse)
            if answer.error_code in NOT_YET:
                await self._pause()
                continue
            assert answer.error_code == 0, ErrorCode(answer.error_code)
            beat = StreamsGroupHeartbeatRequest(
                group_id=self.group, member_id=name, member_epoch=answer.member_epoch
            )
            if answer.active_tasks is not None:
                self._share(
                    name, answer.member_epoch, sum(len(each.partitions) for each in answer.active_tasks)
                )
                beat.active_tasks, beat.standby_tasks, beat.warmup_tasks = answer.active_tasks, [], []
            else:
                await self._pause(answer.heartbeat_interval_ms / 1000)
        beat.member_epoch = -1
        await member.ask(beat, 0, StreamsGroupHeartbeatResponse)

    async def _pause(self, seconds: float = BEAT_S) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except TimeoutError:
            pass


class Crowd:
    """Members of one broker, in an event loop that is paused between rounds."""

    def __init__(self, bootstrap: str, members: int) -> None:
        self._runner = asyncio.Runner()
        self._members = [Member() for _ in range(members)]
        self._runner.run(self._connect(bootstrap))

    async def _connect(self, bootstrap: str) -> None:
        await asyncio.gather(*(member.connect(bootstrap) for member in self._members))

    def settle(self, protocol: str, group: str, topic: str) -> None:
        """Join a new group with all members at once; returns when each had partitions and has left."""

        async def work() -> None:
            lives = Round(group, topic, len(self._members))
            life = getattr(lives, protocol)
            async with asyncio.timeout(SETTLE_S):
                await self._members[0].find_coordinator(group)
                await asyncio.gather(*(life(each, f"{group}-{n}") for n, each in enumerate(self._members)))

        self._runner.run(work())

    def close(self) -> None:
        for member in self._members:
            member.close()
        self._runner.close()
