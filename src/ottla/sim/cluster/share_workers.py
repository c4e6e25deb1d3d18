"""Members of a share group, which speak the protocol themselves, its operator, and a topic that is created
again and again.

A member sends heartbeats to the group's coordinator, and has a share session with each leader of its
partitions. It accepts most records, soon or late, by single offsets or by ranges, in a ShareFetch or in a
ShareAcknowledge; others it releases, rejects, holds on to by renewals, or forgets until their locks expire.
It leaves cleanly or without a word, and comes back under another id or the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.client.admin import Admin
from ottla.client.admin.admin import AdminConfig
from ottla.client.admin.configs import ResourceType
from ottla.client.admin.groups import ShareRecordsAction
from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.network_client import CoordinatorType, NetworkClient
from ottla.client.producer import Producer
from ottla.client.settings import connection_config, settings_of
from ottla.node.share.share_partition import AcquiredRange
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import share_acknowledge, share_fetch
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.names import SharePartitionKey, TopicIdPartition, TopicPartition
from ottla.protocol.share import AcknowledgeType, ShareAcquireMode
from ottla.records.batch import iter_batches, read_records
from ottla.rpc.channel import Lane
from ottla.runtime.random import Random
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.admins import Administrator
from ottla.sim.cluster.environment import EVENTS, JOBS, ORDERS, ClusterEnvironment, attempt
from ottla.sim.cluster.share_checker import DEAD_LETTERS, SHARE_GROUP, SentAcknowledgement, ShareGroupTerms
from ottla.sim.cluster.writers import producer_settings

_TOPICS: Final = (EVENTS, ORDERS, JOBS)
_JOIN_EPOCH, _LEAVE_EPOCH = 0, -1
_FIRST_EPOCH, _FINAL_EPOCH = 0, -1
_REQUEST_MS: Final = 2_500
_LOOK_S: Final = 0.1
_METADATA_S: Final = 1.0
_FENCED: Final = frozenset(
    (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)
)


def share_partitions(
    environment: ClusterEnvironment, topics: Sequence[str] = _TOPICS
) -> list[tuple[bytes, int]]:
    """The partitions that the share group reads, by the newest metadata."""
    found = []
    for name in topics:
        topic = environment.checker.newest.topics.by_name.get(name)
        if topic is not None:
            found += [(topic.id, index) for index in topic.partitions]
    return found


class ShareWorker:
    """A process that is a member of the share group, until the group is done with everything."""

    def __init__(self, environment: ClusterEnvironment, name: str, terms: ShareGroupTerms) -> None:
        self._environment = environment
        self.name = name
        self._terms = terms

    async def main(self, runtime: Runtime) -> None:
        environment = self._environment
        member_id = _member_id(runtime.random)
        while not self.is_over():
            if runtime.random.random() < 0.7:
                member_id = _member_id(runtime.random)
            member = _Member(environment, self, runtime, member_id, self._terms)
            await attempt(environment, self.name, member.run)
            await asyncio.sleep(runtime.random.random())
        environment.ended.add(self.name)

    def is_over(self) -> bool:
        environment = self._environment
        partitions = share_partitions(environment)
        return environment.draining and environment.checker.share.reason_not_drained(partitions) is None


def _member_id(random: Random) -> str:
    return random.uuid().hex()[:22]


class _Member:
    """A membership in the group, from joining to leaving."""

    def __init__(
        self,
        environment: ClusterEnvironment,
        worker: ShareWorker,
        runtime: Runtime,
        member_id: str,
        terms: ShareGroupTerms,
    ) -> None:
        self.environment = environment
        self.worker = worker
        self.name = worker.name
        self.random = runtime.random
        self.member_id = member_id
        self.terms = terms
        config = settings_of(
            AdminConfig,
            environment.servers,
            {"request_timeout_ms": _REQUEST_MS, "socket_connection_setup_timeout_ms": 1_000},
        )
        self.cluster = NetworkClient(runtime, connection_config(config))
        self._coordinator = CoordinatorClient(
            self.cluster, CoordinatorType.GROUP, SHARE_GROUP, timeout_ms=_REQUEST_MS, lane=Lane.GROUP
        )
        self._epoch = _JOIN_EPOCH
        # Whether the next heartbeat has the subscription: only then the response has an assignment that the
        # coordinator takes for known, as it may have been in a response that was lost.
        self._sends_all = True
        self._assigned: tuple[TopicIdPartition, ...] = ()
        self._sessions: dict[int, _LeaderSession] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.is_metadata_stale = True

    def count(self, what: str) -> None:
        self.environment.world.coverage[f"share: {what}"] += 1

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with self.cluster:
            heartbeats = loop.create_task(self._send_heartbeats())
            try:
                await self._work(until=loop.time() + 1 + self.random.random() * 10)
                if self.random.random() < 0.7 or self.environment.draining:
                    await self._leave(heartbeats)
                    self.count("leaves")
                else:
                    self.count("is gone without a word")
            finally:
                for task in (heartbeats, *self._tasks.values()):
                    task.cancel()
                await asyncio.gather(heartbeats, *self._tasks.values(), return_exceptions=True)

    async def _work(self, *, until: float) -> None:
        """Have a session with each leader, until it is time to leave. At the end of a run a member stays:
        what it has forgotten is delivered to it again, or to others, once the locks have expired.
        """
        loop = asyncio.get_running_loop()
        refreshed = -_METADATA_S
        while not self.worker.is_over() and (loop.time() < until or self.environment.draining):
            if self.is_metadata_stale or loop.time() > refreshed + _METADATA_S:
                refreshed = loop.time()
                self.is_metadata_stale = False
                await attempt(self.environment, self.name, self._refresh)
            self._assign()
            await asyncio.sleep(_LOOK_S)

    async def _refresh(self) -> None:
        await self.cluster.refresh(topics=_TOPICS)

    def _assign(self) -> None:
        metadata = self.cluster.metadata
        plan: dict[int, dict[TopicIdPartition, None]] = {}
        for partition in self._assigned:
            name = metadata.names_by_id.get(partition.topic_id)
            topic = None if name is None else metadata.topics.get(name)
            if topic is None or partition.partition >= len(topic.partitions):
                self.is_metadata_stale = True
                continue
            leader = topic.partitions[partition.partition].leader
            if leader in metadata.brokers:
                plan.setdefault(leader, {})[partition] = None
        for node in plan:
            if node not in self._tasks or self._tasks[node].done():
                session = self._sessions[node] = _LeaderSession(self, node)
                session.wanted = plan[node]
                self._tasks[node] = asyncio.get_running_loop().create_task(session.run())
        for node, session in self._sessions.items():
            session.wanted = plan.get(node, {})

    async def _leave(self, heartbeats: asyncio.Task[None]) -> None:
        for session in self._sessions.values():
            session.wanted = {}
        running = [task for task in self._tasks.values() if not task.done()]
        if running:
            await asyncio.wait(running, timeout=2 * _REQUEST_MS / 1000)
        heartbeats.cancel()
        await asyncio.gather(heartbeats, return_exceptions=True)
        self._epoch, self._sends_all = _LEAVE_EPOCH, False
        await self._heartbeat()

    # Heartbeats

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                interval_ms = await self._heartbeat()
            except (KafkaError, OSError) as error:
                self.environment.trace(self.name, f"no heartbeat: {error}")
                self._coordinator.forget()
                self._sends_all = True
                interval_ms = 200
            await asyncio.sleep(interval_ms / 1000)

    async def _heartbeat(self) -> int:
        request = ShareGroupHeartbeatRequest(
            group_id=SHARE_GROUP,
            member_id=self.member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=list(_TOPICS) if self._sends_all else None,
        )
        response = await self._coordinator.once(request, ShareGroupHeartbeatResponse)
        code = ErrorCode.of(response.error_code)
        if code in _FENCED and self._epoch > _JOIN_EPOCH:
            self.count("fenced")
            self._epoch, self._sends_all, self._assigned = _JOIN_EPOCH, True, ()
            return 10
        if code:
            raise KafkaError(code, response.error_message)
        self._sends_all = False
        if self._epoch != _LEAVE_EPOCH:
            self._epoch = response.member_epoch
        if response.assignment is not None:
            self._assigned = tuple(
                TopicIdPartition(bytes(topic.topic_id), index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )
        return response.heartbeat_interval_ms


@dataclass(slots=True)
class _Held:
    """A record that the member holds: how often it was delivered, and what to do with it next, and when."""

    count: int
    type: AcknowledgeType | None
    due: float


class _LeaderSession:
    """The share session of a member with one broker, and the records that it has acquired there."""

    def __init__(self, member: _Member, node: int) -> None:
        self._member = member
        self._random = member.random
        self._node = node
        # The partitions to fetch, and those that the broker knows of.
        self.wanted: dict[TopicIdPartition, None] = {}
        self._known: dict[TopicIdPartition, None] = {}
        self._epoch = _FIRST_EPOCH
        self._held: dict[TopicIdPartition, dict[int, _Held]] = {}

    async def run(self) -> None:
        while self.wanted:
            try:
                await self._step()
            except (KafkaError, OSError) as error:
                self._member.environment.trace(self._member.name, f"session with {self._node}: {error}")
                self._member.is_metadata_stale = True
                self._forget_session()
                await asyncio.sleep(0.05 + self._random.random() * 0.3)
        if self._epoch != _FIRST_EPOCH:
            try:
                await self._close()
            except (KafkaError, OSError) as error:
                self._member.environment.trace(self._member.name, f"session with {self._node}: {error}")

    def _forget_session(self) -> None:
        """Begin again. What is held may be acknowledged in the next session, if it still can be."""
        self._epoch = _FIRST_EPOCH
        self._known = {}
        if self._random.random() < 0.5:
            self._held = {}

    async def _step(self) -> None:
        due = self._take_due() if self._epoch != _FIRST_EPOCH else {}
        renews = any(AcknowledgeType.RENEW in types.values() for types, _ in due.values())
        apart = any(partition not in self.wanted for partition in due)
        if due and (apart or self._random.random() < 0.4):
            await self._acknowledge(due, is_renewal=renews)
        else:
            await self._fetch(due, is_renewal=renews)

    async def _close(self) -> None:
        due = self._take_due()
        if any(AcknowledgeType.RENEW in types.values() for types, _ in due.values()):
            due = {}
        self._epoch = _FINAL_EPOCH
        await self._acknowledge(due, is_renewal=False)
        self._epoch = _FIRST_EPOCH

    def _next_epoch(self) -> None:
        if self._epoch != _FINAL_EPOCH:
            self._epoch += 1

    # Acknowledging

    def _take_due(self) -> dict[TopicIdPartition, tuple[dict[int, AcknowledgeType], dict[int, int]]]:
        """Take what is to be acknowledged by now, by partition: the types, and the delivery counts."""
        now = asyncio.get_running_loop().time()
        due: dict[TopicIdPartition, tuple[dict[int, AcknowledgeType], dict[int, int]]] = {}
        for partition, held in self._held.items():
            types: dict[int, AcknowledgeType] = {}
            counts: dict[int, int] = {}
            for offset in sorted(held):
                record = held[offset]
                if record.type is None or record.due > now:
                    continue
                types[offset], counts[offset] = record.type, record.count
                if record.type is AcknowledgeType.RENEW:
                    record.type = AcknowledgeType.ACCEPT
                    record.due = now + self._random.random() * self._lock_s
                else:
                    del held[offset]
            if types:
                due[partition] = types, counts
        return due

    @property
    def _lock_s(self) -> float:
        return self._member.terms.lock_ms / 1000

    def _sent(
        self, due: Mapping[TopicIdPartition, tuple[dict[int, AcknowledgeType], dict[int, int]]]
    ) -> dict[TopicIdPartition, SentAcknowledgement]:
        checker = self._member.environment.checker
        clock_ms = checker.machines[self._node].clock.monotonic_ns() // 1_000_000
        sent = {}
        for partition, (types, counts) in due.items():
            key = SharePartitionKey(SHARE_GROUP, *partition)
            sent[partition] = SentAcknowledgement(key, self._member.member_id, types, counts, clock_ms)
            checker.share.on_acknowledging(sent[partition])
        return sent

    def _on_answered(
        self,
        sent: dict[TopicIdPartition, SentAcknowledgement],
        answers: Mapping[TopicIdPartition, ErrorCode],
    ) -> None:
        for partition, each in sent.items():
            self._member.environment.checker.share.on_answered(each, answers.get(partition))
        sent.clear()

    async def _acknowledge(
        self,
        due: Mapping[TopicIdPartition, tuple[dict[int, AcknowledgeType], dict[int, int]]],
        *,
        is_renewal: bool,
    ) -> None:
        request = share_acknowledge.ShareAcknowledgeRequest(
            group_id=SHARE_GROUP,
            member_id=self._member.member_id,
            share_session_epoch=self._epoch,
            is_renew_ack=is_renewal,
        )
        topics: dict[bytes, share_acknowledge.AcknowledgeTopic] = {}
        for partition, (types, _) in due.items():
            if partition.topic_id not in topics:
                topics[partition.topic_id] = share_acknowledge.AcknowledgeTopic(topic_id=partition.topic_id)
            topics[partition.topic_id].partitions.append(
                share_acknowledge.AcknowledgePartition(
                    partition_index=partition.partition,
                    acknowledgement_batches=[
                        share_acknowledge.AcknowledgementBatch(
                            first_offset=first, last_offset=last, acknowledge_types=run
                        )
                        for first, last, run in self._runs(types)
                    ],
                )
            )
        request.topics = list(topics.values())
        connection = await self._member.cluster.connection(self._node, Lane.FETCH)
        sent = self._sent(due)
        try:
            response = await connection.request(
                request, share_acknowledge.ShareAcknowledgeResponse, timeout_ms=_REQUEST_MS
            )
            if response.error_code:
                raise KafkaError(ErrorCode.of(response.error_code), response.error_message)
            self._on_answered(
                sent,
                {
                    TopicIdPartition(bytes(topic.topic_id), part.partition_index): ErrorCode.of(
                        part.error_code
                    )
                    for topic in response.responses
                    for part in topic.partitions
                },
            )
            self._next_epoch()
        finally:
            self._on_answered(sent, {})

    def _runs(self, types: Mapping[int, AcknowledgeType]) -> Iterable[tuple[int, int, list[int]]]:
        """Offsets that follow each other, with a type for each, or one for all if that is possible."""
        runs: list[list[int]] = []
        for offset in types:
            if runs and runs[-1][-1] == offset - 1 and self._random.random() < 0.9:
                runs[-1].append(offset)
            else:
                runs.append([offset])
        for run in runs:
            each = [int(types[offset]) for offset in run]
            is_one = len(set(each)) == 1 and self._random.random() < 0.7
            yield run[0], run[-1], each[:1] if is_one else each

    # Fetching

    async def _fetch(
        self,
        due: Mapping[TopicIdPartition, tuple[dict[int, AcknowledgeType], dict[int, int]]],
        *,
        is_renewal: bool,
    ) -> None:
        wanted = dict(self.wanted)
        request = self._fetch_request(wanted, due, is_renewal=is_renewal)
        connection = await self._member.cluster.connection(self._node, Lane.FETCH)
        sent = self._sent(due)
        try:
            response = await connection.request(
                request, share_fetch.ShareFetchResponse, timeout_ms=_REQUEST_MS
            )
            if response.error_code:
                raise KafkaError(ErrorCode.of(response.error_code), response.error_message)
            self._known = wanted
            self._next_epoch()
            parts = {
                TopicIdPartition(bytes(topic.topic_id), part.partition_index): part
                for topic in response.responses
                for part in topic.partitions
            }
            self._on_answered(
                sent,
                {partition: ErrorCode.of(part.acknowledge_error_code) for partition, part in parts.items()},
            )
        finally:
            self._on_answered(sent, {})
        has_failed = False
        for partition, part in parts.items():
            if part.error_code:
                self._member.count(f"fetch {ErrorCode.of(part.error_code).name}")
                has_failed = self._member.is_metadata_stale = True
            elif part.acquired_records:
                self._on_acquired(partition, part)
        if has_failed:
            await asyncio.sleep(0.05 + self._random.random() * 0.2)

    def _fetch_request(
        self,
        wanted: dict[TopicIdPartition, None],
        due: Mapping[TopicIdPartition, tuple[dict[int, AcknowledgeType], dict[int, int]]],
        *,
        is_renewal: bool,
    ) -> share_fetch.ShareFetchRequest:
        random = self._random
        request = share_fetch.ShareFetchRequest(
            group_id=SHARE_GROUP,
            member_id=self._member.member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=random.randrange(0, 400),
            min_bytes=1,
            max_bytes=random.randrange(200, 100_000),
            max_records=random.randrange(1, 100),
            batch_size=random.randrange(1, 50),
            share_acquire_mode=int(ShareAcquireMode.RECORD_LIMIT if random.random() < 0.3 else 0),
            is_renew_ack=is_renewal,
        )
        if is_renewal:
            request.max_wait_ms = request.min_bytes = request.max_bytes = request.max_records = 0
        topics: dict[bytes, share_fetch.FetchTopic] = {}
        for partition in wanted:
            if partition in self._known and partition not in due:
                continue
            if partition.topic_id not in topics:
                topics[partition.topic_id] = share_fetch.FetchTopic(topic_id=partition.topic_id)
            types = due[partition][0] if partition in due else {}
            topics[partition.topic_id].partitions.append(
                share_fetch.FetchPartition(
                    partition_index=partition.partition,
                    acknowledgement_batches=[
                        share_fetch.AcknowledgementBatch(
                            first_offset=first, last_offset=last, acknowledge_types=run
                        )
                        for first, last, run in self._runs(types)
                    ],
                )
            )
        request.topics = list(topics.values())
        request.forgotten_topics_data = [
            share_fetch.ForgottenTopic(topic_id=partition.topic_id, partitions=[partition.partition])
            for partition in self._known
            if partition not in wanted
        ]
        return request

    def _on_acquired(self, partition: TopicIdPartition, part: share_fetch.PartitionData) -> None:
        environment = self._member.environment
        ranges = [
            AcquiredRange(each.first_offset, each.last_offset, each.delivery_count)
            for each in part.acquired_records
        ]
        values = []
        data = bytes(part.records)
        for position, header in iter_batches(data):
            if not header.is_control:
                values += [
                    (record.offset, None if record.value is None else bytes(record.value))
                    for record in read_records(data, position)
                ]
        key = SharePartitionKey(SHARE_GROUP, *partition)
        environment.checker.share.on_delivered(key, self._member.member_id, ranges, values)
        environment.journal.reads += len(values)
        present = {offset for offset, _ in values}
        held = self._held.setdefault(partition, {})
        for first, last, count in ranges:
            together = self._fate() if self._random.random() < 0.6 else None
            for offset in range(first, last + 1):
                type, due = together or self._fate()
                if offset not in present and type in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT):
                    type = AcknowledgeType.GAP
                held[offset] = _Held(count, type, due)

    def _fate(self) -> tuple[AcknowledgeType | None, float]:
        """Draw what to do with a record, and when."""
        random, now, lock_s = self._random, asyncio.get_running_loop().time(), self._lock_s
        chance = random.random()
        if self._member.environment.draining or chance < 0.6:
            return AcknowledgeType.ACCEPT, now + random.random() * 0.3
        if chance < 0.73:
            return AcknowledgeType.RELEASE, now + random.random() * 0.3
        if chance < 0.78:
            return AcknowledgeType.REJECT, now + random.random() * 0.3
        if chance < 0.88:
            return AcknowledgeType.RENEW, now + random.random() * lock_s * 0.8
        if chance < 0.95:
            return None, now
        return AcknowledgeType.ACCEPT, now + lock_s * (0.9 + random.random())


class QueueOperator(Administrator):
    """Lists what the group has in delivery, and releases, rejects or skips some of it: at once, or when it
    may have been delivered again, or have another leader. Topics have names here, so the one that is created
    again and again is left alone.
    """

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        random, topics = runtime.random, self.environment.checker.newest.topics
        named = {
            TopicPartition(topics.by_id[topic_id].name, index): SharePartitionKey(
                SHARE_GROUP, topic_id, index
            )
            for topic_id, index in share_partitions(self.environment, (EVENTS, ORDERS))
        }
        page = await admin.groups.share_records(
            SHARE_GROUP, dict.fromkeys(named, 0), at_most=random.randrange(1, 50)
        )
        self.count("list records in delivery")
        if not page.records:
            return
        wanted = page.records[random.randrange(0, len(page.records))]
        action = tuple(ShareRecordsAction)[random.randrange(0, len(ShareRecordsAction))]
        if random.random() < 0.3:
            await asyncio.sleep(random.random() * 2)
        key, type = named[wanted.partition], AcknowledgeType(int(action))
        share = self.environment.checker.share
        share.on_altering(key, type, wanted)
        result = (await admin.groups.alter_share_records(SHARE_GROUP, action, [wanted]))[wanted.partition]
        text = str(result) if isinstance(result, KafkaError) else f"{result} of {wanted.size}"
        self.environment.trace(self.name, f"{action.name} {wanted}: {text}")
        if isinstance(result, KafkaError):
            self.count(f"{action.name.lower()} records: {result.code.name}")
        elif result == wanted.size:
            share.on_altered(key, type, wanted)


class JobsChurn(Administrator):
    """Creates the topic of jobs, writes to it, and deletes it from time to time: the group reads each. Gives
    the dead-letter topics more partitions, and has the group use the other one.
    """

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        random = runtime.random
        try:
            if random.random() < 0.25:
                await admin.topics.delete(JOBS)
                self.count("delete the topic of jobs")
            if random.random() < 0.7:
                factor = min(len(self.environment.brokers), 3)
                await admin.topics.create(JOBS, partitions=random.randrange(1, 3), replication_factor=factor)
                self.count("create the topic of jobs")
            letters = DEAD_LETTERS[random.randrange(0, len(DEAD_LETTERS))]
            topic = self.environment.checker.newest.topics.by_name.get(letters)
            if topic is not None and len(topic.partitions) < 3 and random.random() < 0.2:
                await admin.topics.add_partitions(letters, len(topic.partitions) + 1)
                self.count("more partitions for dead letters")
            if topic is not None and random.random() < 0.6:
                setting = {"errors.deadletterqueue.topic.name": letters}
                await admin.configs.alter(ResourceType.GROUP, SHARE_GROUP, set=setting)
                self.count("a topic for dead letters")
        except KafkaError as error:
            if error.code not in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise
        if JOBS in self.environment.checker.newest.topics.by_name:
            await self._write(runtime)

    async def _write(self, runtime: Runtime) -> None:
        async with Producer(
            self.environment.servers, runtime=runtime, **producer_settings(runtime)
        ) as producer:
            for number in range(runtime.random.randrange(1, 20)):
                await producer.send(JOBS, b"job %d" % number)
