"""Fetches of consumers that the kernel answers as a whole are answered as the handler would.

A node gets the same fetches twice, by a client whose requests the lane may take and by one whose client id is
not ASCII, which the lane leaves to the handler. Each has sessions of its own. The requests are drawn, many of
them plain, some unusual or damaged; what is in the log, and where it begins, changes meanwhile.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic

from ottla.log.unified_log import UnifiedLog
from ottla.node.fetch.reader import FetchReader
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType
from ottla.protocol.api import API, API_VERSIONS, FETCH
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.batch import iter_offsets
from ottla.records.builder import build_batch
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from ottla.testing.local_node import LocalNode

REQUESTS = int(os.environ.get("LANE_REQUESTS", "700"))
SEED = int(os.environ.get("LANE_SEED", "31"))
PARTITIONS = 3
TOPICS: dict[str, dict[str, str]] = {
    "plain": {"index_interval_bytes": "200"},
    "rolls": {"index_interval_bytes": "4096", "segment_bytes": "1048576"},
    "transactions": {"index_interval_bytes": "500"},
    "guarded": {},
}
CLIENTS = "lane", "län"
SESSIONS = 4
# The correlation id of what is asked last.
MARKER = 1_000_000


class Session:
    """A fetch session as both clients have begun it."""

    def __init__(self, version: int, ids: tuple[int, int]) -> None:
        self.version = version
        self.ids = ids
        self.epoch = 1


class Fetches:
    """Fetches, drawn from a seed."""

    def __init__(self, seed: int, ids: dict[str, bytes]) -> None:
        self.chance = random.Random(seed)
        self.ids = ids
        self.sessions: list[Session] = []
        # By topic, partition: where the log starts, and the offset behind the records that were read last.
        self.starts: Counter[tuple[str, int]] = Counter()
        self.offsets: Counter[tuple[str, int]] = Counter()

    def request(self, version: int, partitions: list[tuple[str, int]]) -> FetchRequest:
        chance = self.chance
        topics: dict[str, list[FetchPartition]] = {}
        for name, index in partitions:
            start, offset = self.starts[name, index], self.offsets[name, index]
            if chance.random() < 0.15:
                offset = start if chance.random() < 0.8 else chance.choice((start - 1, start + 7, 60, 5000))
            topics.setdefault(name, []).append(
                FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    current_leader_epoch=chance.choice((-1, 0, 0, 1 if chance.random() < 0.05 else 0)),
                    partition_max_bytes=chance.choice((0, 100, 1000, 20_000, 1 << 20, 1 << 20, 1 << 20)),
                )
            )
        rare = chance.random()
        return FetchRequest(
            replica_id=5 if version < 15 and rare < 0.01 else -1,
            max_wait_ms=chance.choice((0, 0, 0, 1)),
            min_bytes=chance.choice((0, 1, 1, 500)),
            max_bytes=chance.choice((150, 3000, 100_000, 50_000_000, 50_000_000, 50_000_000)),
            isolation_level=chance.choice((0, 1)),
            topics=[
                FetchTopic(topic=name, topic_id=self.ids[name], partitions=parts)
                for name, parts in topics.items()
            ],
            rack_id="a" if 0.01 <= rare < 0.05 else "",
        )

    def some_partitions(self, most: int) -> list[tuple[str, int]]:
        chance = self.chance
        every = [(name, index) for name in TOPICS for index in range(PARTITIONS)]
        found = chance.sample(every, chance.randint(1, most))
        if chance.random() < 0.03:
            found.append(chance.choice((("plain", PARTITIONS), ("plain", -1), found[0], ("missing", 0))))
        return found

    def alone(self) -> tuple[int, FetchRequest]:
        """A version, and a fetch without a session."""
        chance = self.chance
        version = chance.randint(4, 18)
        return version, self.request(version, self.some_partitions(chance.choice((1, 3, 12))))

    def first(self) -> tuple[int, FetchRequest]:
        """A fetch that begins a session."""
        version = self.chance.randint(7, 18)
        request = self.request(version, self.some_partitions(12))
        request.session_epoch = 0
        return version, request

    def next(self, session: Session) -> tuple[int, FetchRequest]:
        """A fetch that continues a session, as its clients do, or with other partitions."""
        chance = self.chance
        version = session.version if chance.random() < 0.97 else chance.randint(7, 18)
        kind = chance.random()
        request = self.request(version, [] if kind < 0.3 else self.some_partitions(4 if kind < 0.9 else 12))
        if chance.random() < 0.04:
            name = chance.choice(list(TOPICS))
            request.forgotten_topics_data = [
                ForgottenTopic(topic=name, topic_id=self.ids[name], partitions=[chance.randrange(PARTITIONS)])
            ]
        # As most requests of a client, which is what a session is for.
        if chance.random() < 0.8:
            request.isolation_level = session.ids[0] & 1
        request.session_epoch = session.epoch if chance.random() < 0.98 else 99
        return version, request

    def mutated(self, frame: bytes, version: int) -> bytes:
        """Damage anything behind how long the fetch may wait."""
        chance = self.chance
        body = bytearray(frame)
        at = chance.randrange(24 if version < 15 else 20, len(body))
        match chance.randrange(4):
            case 0:
                body[at] ^= 1 << chance.randrange(8)
            case 1:
                del body[at:]
            case 2:
                body[at:at] = chance.randbytes(chance.randint(1, 4))
            case _:
                body += chance.randbytes(chance.randint(1, 4))
        return bytes(body)

    def batch(self, now_ms: int) -> bytes:
        chance = self.chance
        size = chance.choice((0, 10, 100, 100, 1000, 6000, 200_000 if chance.random() < 0.3 else 50))
        return build_batch(
            [(now_ms + n, None, chance.randbytes(size)) for n in range(chance.choice((1, 1, 5)))]
        )


class Client:
    """A connection of one of the two clients."""

    def __init__(self, node: LocalNode, place: int) -> None:
        self._node = node
        self._wire = WireClient(node.bootstrap_servers)
        self._place = place

    def frame(self, version: int, number: int, request: FetchRequest, session: Session | None) -> bytes:
        request.session_id = 0 if session is None else session.ids[self._place]
        return b"".join(request_parts(version, number, CLIENTS[self._place], request))[4:]

    def answers(self, frames: list[bytes]) -> list[bytes | None]:
        """The answers to some frames that are sent at once; None at the end if the connection was closed."""
        end = b"".join(request_parts(0, MARKER, None, ApiVersionsRequest()))
        self._wire.send_bytes(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames) + end)
        found: list[bytes | None] = []
        while (answer := self._wire.receive_frame()) is not None:
            if struct.unpack_from(">i", answer)[0] == MARKER:
                assert read_response(API[API_VERSIONS], 0, answer)
                return found
            found.append(answer)
        self._wire.close()
        return [*found, None]

    def close(self) -> None:
        self._wire.close()


def without_session(version: int, answer: bytes | None) -> tuple[bytes | None, int]:
    """The answer without the id of the session, which is another for each client, and that id."""
    if answer is None or version < 7:
        return answer, 0
    at = 10 if version < 12 else 11
    if len(answer) < at + 4:
        return answer, 0
    (id,) = struct.unpack_from(">i", answer, at)
    return answer[:at] + b"id" + answer[at + 4 :], id


@pytest.fixture
def by_handler(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests the handler has begun to read for, by client id."""
    counts: Counter[str] = Counter()
    read_now = FetchReader.read_now

    def counted(self: FetchReader) -> bool:
        counts[self._permissions.client_id] += 1  # type: ignore[attr-defined]
        return read_now(self)

    monkeypatch.setattr(FetchReader, "read_now", counted)
    # And it reads the logs in Python, so that what the kernel reads is compared as well.
    monkeypatch.setattr(UnifiedLog, "_read_plain", lambda *_, **__: None)
    return counts


class Writer:
    """Changes what is in the logs."""

    def __init__(self, node: LocalNode, fetches: Fetches, *, guards: bool) -> None:
        self._wire = WireClient(node.bootstrap_servers)
        self._fetches = fetches
        self._guards = guards
        self._now_ms = int(time.time() * 1000)
        settings = {"bootstrap.servers": node.bootstrap_servers, "log_level": 4, "transactional.id": "t"}
        self._producer = Producer(settings)
        self._producer.init_transactions(60)
        self._is_open = False
        self._is_denied = False

    def write(self) -> None:
        chance = self._fetches.chance
        kind = chance.random()
        if kind < 0.7:
            data = [
                PartitionProduceData(index=index, records=self._fetches.batch(self._now_ms))
                for index in chance.sample(range(PARTITIONS), chance.randint(1, 3))
            ]
            name = chance.choice(("plain", "plain", "rolls"))
            produce = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=name, partition_data=data)])
            for part in self._wire.get(produce, 9, ProduceResponse).responses[0].partition_responses:
                assert part.error_code == 0, part
        elif kind < 0.9:
            self.go_on()
        elif kind < 0.95 and self._guards:
            self.guard()
        else:
            name, index = chance.choice(("plain", "rolls")), chance.randrange(PARTITIONS)
            parts = [DeleteRecordsPartition(partition_index=index, offset=chance.choice((1, 3, 20)))]
            topic = DeleteRecordsTopic(name=name, partitions=parts)
            request = DeleteRecordsRequest(topics=[topic], timeout_ms=60_000)
            (done,) = self._wire.get(request, 2, DeleteRecordsResponse).topics[0].partitions
            if not done.error_code:
                self._fetches.starts[name, index] = done.low_watermark

    def go_on(self) -> None:
        """Write in a transaction, or end it."""
        chance = self._fetches.chance
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True
        for _ in range(chance.randint(1, 3)):
            self._producer.produce("transactions", bytes(100), partition=chance.randrange(PARTITIONS))
        assert self._producer.flush(60) == 0
        if chance.random() < 0.5:
            end = (
                self._producer.commit_transaction
                if chance.random() < 0.5
                else self._producer.abort_transaction
            )
            end(60)
            self._is_open = False
            # Its markers are written after that.
            wait_until(
                lambda: all(
                    part.last_stable_offset == part.high_watermark for part in self.probe("transactions")
                )
            )

    def guard(self) -> None:
        """Deny reads of a topic, or allow them again."""
        self._is_denied = not self._is_denied
        if self._is_denied:
            creation = AclCreation(
                resource_type=AclResourceType.TOPIC,
                resource_name="guarded",
                principal="User:ANONYMOUS",
                host="*",
                operation=AclOperation.READ,
                permission_type=AclPermissionType.DENY,
            )
            self._wire.get(CreateAclsRequest(creations=[creation]), 3, CreateAclsResponse)
        else:
            acls = DeleteAclsFilter(
                resource_type_filter=AclResourceType.TOPIC,
                resource_name_filter="guarded",
                principal_filter=None,
                host_filter=None,
                operation=AclOperation.READ,
                permission_type=AclPermissionType.DENY,
            )
            self._wire.get(DeleteAclsRequest(filters=[acls]), 3, DeleteAclsResponse)
        wait_until(lambda: any(part.error_code for part in self.probe("guarded")) == self._is_denied)

    def probe(self, name: str) -> list[PartitionData]:
        """What a fetch of the partitions of a topic finds."""
        parts = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=0)
            for index in range(PARTITIONS)
        ]
        request = FetchRequest(topics=[FetchTopic(topic=name, partitions=parts)])
        return self._wire.get(request, 12, FetchResponse).responses[0].partitions

    def close(self) -> None:
        if self._is_open:
            self._producer.abort_transaction(60)
        self._wire.close()


def note_offsets(fetches: Fetches, version: int, answer: bytes | None) -> None:
    if answer is None:
        return
    response = read_response(API[FETCH], version, answer)[1]
    assert isinstance(response, FetchResponse)
    names = {id: name for name, id in fetches.ids.items()}
    for topic in response.responses:
        name = topic.topic or names.get(bytes(topic.topic_id))
        for part in topic.partitions:
            if name is None or part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                at = name or "", part.partition_index
                fetches.offsets[at] = fetches.starts[at]
            elif part.records:
                for *_, last_offset in iter_offsets(part.records):
                    fetches.offsets[name, part.partition_index] = last_offset + 1


@pytest.mark.slow
@pytest.mark.parametrize("has_authorizer", [False, True])
def test_answers_are_those_of_the_handler(
    by_handler: Counter[str], tmp_path: Path, *, has_authorizer: bool
) -> None:
    settings: dict[str, object] = {
        "native.lane.enable": True,
        "log.retention.ms": -1,
        "auto.create.topics.enable": False,
        "log.dirs": str(tmp_path / "data"),
    }
    if has_authorizer:
        settings |= {"authorizer.class.name": CLASS_NAME, "allow.everyone.if.no.acl.found": True}
    with LocalNode(settings) as node:
        fetch_by_both(node, has_authorizer=has_authorizer)
    # The lane did what it is for, and left to the handler what it is not for.
    assert 0.1 < by_handler[CLIENTS[0]] / by_handler[CLIENTS[1]] < 0.8, by_handler


def fetch_by_both(node: LocalNode, *, has_authorizer: bool) -> None:
    with WireClient(node.bootstrap_servers) as wire:
        ids = {name: create_topic(wire, name, PARTITIONS, **config) for name, config in TOPICS.items()}
    fetches = Fetches(SEED, {**ids, "missing": b"no topic's id..."})
    chance = fetches.chance
    writer = Writer(node, fetches, guards=has_authorizer)
    clients = [Client(node, place) for place in (0, 1)]
    number = 0
    while number < REQUESTS:
        if chance.random() < 0.3:
            writer.write()
        if chance.random() < 0.3 or not fetches.sessions:
            session = None
            asked = [fetches.alone() for _ in range(chance.choice((1, 1, 3)))]
            if chance.random() < 0.2:
                asked = [fetches.first()]
        else:
            session = chance.choice(fetches.sessions)
            asked = [fetches.next(session)]
        frames = [
            [
                client.frame(version, number + n, request, session)
                for n, (version, request) in enumerate(asked)
            ]
            for client in clients
        ]
        is_damaged = len(asked) == 1 and chance.random() < 0.1
        if is_damaged:
            state = chance.getrandbits(64)
            for place in (0, 1):
                chance.seed(state)
                frames[place] = [fetches.mutated(frames[place][0], asked[0][0])]
        number += len(asked)
        answers = [client.answers(some) for client, some in zip(clients, frames, strict=True)]
        assert len(answers[0]) == len(answers[1]), (SEED, number, asked)
        for (version, request), ours, theirs in zip(asked, *answers, strict=False):
            (answer, id), (expected, other) = (without_session(version, each) for each in (ours, theirs))
            assert answer == expected, (SEED, number, version, request, session and session.ids)
            assert bool(id) == bool(other), (SEED, number, version, request)
            if not is_damaged:
                note_offsets(fetches, version, ours)
                if request.session_epoch == 0 and id:
                    fetches.sessions = [*fetches.sessions[1 - SESSIONS :], Session(version, (id, other))]
        if session is not None:
            follow(fetches, session, answers[0], is_damaged=is_damaged)
        for place in (0, 1):
            if None in answers[place]:
                clients[place] = Client(node, place)
    for client in clients:
        client.close()
    writer.close()


def follow(fetches: Fetches, session: Session, answers: list[bytes | None], *, is_damaged: bool) -> None:
    """Note in which epoch the session goes on; one of which that is not known is not used any more."""
    if is_damaged or None in answers:
        fetches.sessions.remove(session)
        return
    (answer,) = answers
    assert answer is not None
    version = session.version
    at = 8 if version < 12 else 9
    (error,) = struct.unpack_from(">h", answer, at)
    if error == ErrorCode.NONE:
        session.epoch += 1
    elif error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
        fetches.sessions.remove(session)
