"""Produce requests that the kernel answers as a whole (the lane), beside a node without it: the answers and
the files are the same, for plain requests, unusual ones and damaged ones.

`LANE_REQUESTS` and `LANE_SEED` make the comparison longer, or repeat it.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.principals import ADMIN, client_of, own_settings
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, create_topic, produce_request

from ottla.node.api.handlers import produce
from ottla.node.api.handlers.produce import ProduceReply
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.api import API, API_VERSIONS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.records.types import FIRST_BROKER_PRODUCER_ID, Codec
from ottla.runtime import disk
from ottla.security.authorizer.audit_log import LOGGER_NAME
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.local_node import LocalNode

REQUESTS = int(os.environ.get("LANE_REQUESTS", "1000"))
SEED = int(os.environ.get("LANE_SEED", "31"))
PARTITIONS = 3
TOPICS: dict[str, dict[str, str]] = {
    "plain": {"index_interval_bytes": "200", "segment_bytes": "1048576"},
    "compact": {"cleanup_policy": "compact"},
    "gzip": {"compression_type": "gzip"},
    "small": {"max_message_bytes": "300"},
    "due": {"flush_messages": "5"},
}
LANE = {"native.lane.enable": True, "log.retention.ms": -1, "auto.create.topics.enable": False}
# The correlation id of what is asked last.
MARKER = 1_000_000
TIMES = re.compile(rb"-?\d{13,19}")


class Frames:
    """Requests as bytes, drawn from a seed. Topic ids are those of a node, so they are filled in later."""

    def __init__(self, seed: int, now_ms: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = now_ms
        # By topic, partition: the next sequence of the only idempotent producer.
        self.sequences: Counter[tuple[str, int]] = Counter()

    def batch(self, topic: str, partition: int, producer_id: int) -> bytes:
        chance = self.chance
        count = chance.choice((1, 1, 1, 2, 5))
        size = chance.choice((0, 10, 100, 100, 1000, 60_000 if chance.random() < 0.2 else 50))
        when = self.now_ms + chance.choice((0, 0, 0, 0, -5, 10**7 if chance.random() < 0.2 else 1))
        key = None if topic != "compact" or chance.random() < 0.1 else b"k%d" % chance.randrange(9)
        headers = [("h", b"v"), ("é", None)] if chance.random() < 0.1 else []
        records = [(when + n, key, chance.randbytes(size), headers) for n in range(count)]
        kind = chance.random()
        if kind < 0.6:
            return build_batch(records)
        if kind < 0.94:
            at = topic, partition
            sequence = self.sequences[at]
            if chance.random() < 0.9:
                self.sequences[at] += count
            else:
                sequence += chance.choice((-count, -1, 1, 7))
            epoch = 0 if chance.random() < 0.98 else chance.choice((-1, 1))
            return build_batch(
                records, producer_id=producer_id, producer_epoch=epoch, base_sequence=max(sequence, -1)
            )
        if kind < 0.96:
            return build_batch(records, codec=Codec.GZIP)
        if kind < 0.97:
            return build_batch(
                records, transactional=True, producer_id=producer_id, producer_epoch=0, base_sequence=0
            )
        if kind < 0.98:
            return build_batch(records, base_offset=3)
        damaged = bytearray(build_batch(records))
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        return bytes(damaged)

    def some(self, number: int, producer_id: int) -> list[bytes]:
        """Requests to be sent at once. One that may close its connection is alone: what becomes of those
        beside it would be a matter of time.
        """
        chance = self.chance
        if chance.random() < 0.3:
            frame = self.produce(number, producer_id, chance.choice((0, 0, 1)))
            return [self.mutated(frame) if chance.random() < 0.5 else frame]
        return [
            self.produce(
                number + n, producer_id, chance.choice((-1, -1, 1, 2 if chance.random() < 0.1 else 1))
            )
            for n in range(chance.choice((1, 1, 2, 5, 20)))
        ]

    def produce(self, number: int, producer_id: int, acks: int) -> bytes:
        chance = self.chance
        version = chance.choice((7, 9, 9, 10, 11, 12, 12, 13, 13, 13))
        topics = []
        for name in chance.sample([*TOPICS, "missing"], chance.choice((1, 1, 1, 2))):
            if chance.random() < 0.7:
                name = "plain"
            parts = [
                PartitionProduceData(
                    index=index,
                    records=None if chance.random() < 0.01 else self.batch(name, index, producer_id),
                )
                for index in self.indexes()
            ]
            topics.append(TopicProduceData(name=name, topic_id=_placeholder(name), partition_data=parts))
        transaction = "t" if chance.random() < 0.02 else None
        request = ProduceRequest(
            transactional_id=transaction, acks=acks, timeout_ms=60_000, topic_data=topics
        )
        client_id = chance.choice((None, "", "lane", "é"))
        return b"".join(request_parts(version, number, client_id, request))[4:]

    def indexes(self) -> list[int]:
        chance = self.chance
        if chance.random() < 0.9:
            return chance.sample(range(PARTITIONS), chance.choice((1, 1, 2, 3)))
        return [chance.randint(-1, PARTITIONS) for _ in range(chance.randint(1, 3))]

    def mutated(self, frame: bytes) -> bytes:
        """Damage anything behind the correlation id."""
        chance = self.chance
        body = bytearray(frame)
        at = chance.randrange(8, min(len(body), 120))
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


def _placeholder(topic: str) -> bytes:
    return b"id of " + topic.encode().ljust(10, b".")


class Side:
    """One of the two nodes, and a connection to it."""

    def __init__(self, node: LocalNode) -> None:
        self.node = node
        self.wire = WireClient(node.bootstrap_servers)
        self.ids = {
            name: create_topic(self.wire, name, PARTITIONS, **config) for name, config in TOPICS.items()
        }
        request = InitProducerIdRequest(transaction_timeout_ms=60_000)
        self.producer_id = self.wire.get(request, 4, InitProducerIdResponse).producer_id

    def answers(self, frames: list[bytes]) -> list[bytes | None]:
        """The answers to some frames that are sent at once; None at the end if the connection was closed."""
        end = b"".join(request_parts(0, MARKER, None, ApiVersionsRequest()))
        data = b"".join(struct.pack(">i", len(frame)) + frame for frame in map(self._with_ids, frames)) + end
        self.wire.send_bytes(data)
        found: list[bytes | None] = []
        while (answer := self.wire.receive_frame()) is not None:
            if struct.unpack_from(">i", answer)[0] == MARKER:
                assert read_response(API[API_VERSIONS], 0, answer)
                return found
            for name, id in self.ids.items():
                answer = answer.replace(id, _placeholder(name))
            found.append(TIMES.sub(b"time", answer))
        self.wire.close()
        return [*found, None]

    def _with_ids(self, frame: bytes) -> bytes:
        for name, id in self.ids.items():
            frame = frame.replace(_placeholder(name), id)
        return frame


@pytest.fixture
def left_to_python(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How many requests the handler has answered on the node with the lane (True), and on the one without."""
    counts: Counter[bool] = Counter()
    reply = produce._Produce.reply

    def counted(self: produce._Produce) -> ProduceReply:
        counts[self.context.config.flag("native.lane.enable")] += 1
        return reply(self)

    monkeypatch.setattr(produce._Produce, "reply", counted)
    return counts


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for name in TOPICS
        for path in sorted(directory.glob(f"{name}-*/*"))
        if path.name != "partition.metadata"
    }


@pytest.mark.slow
def test_answers_and_files_are_those_of_the_handler(tmp_path: Path, left_to_python: Counter[bool]) -> None:
    dirs = tmp_path / "lane", tmp_path / "python"
    frames = Frames(SEED, int(time.time() * 1000))
    with (
        LocalNode({**LANE, "log.dirs": str(dirs[0])}) as first,
        LocalNode({**LANE, "log.dirs": str(dirs[1]), "native.lane.enable": False}) as second,
    ):
        sides = Side(first), Side(second)
        assert sides[0].producer_id == sides[1].producer_id
        number = 0
        while number < REQUESTS:
            some = frames.some(number, sides[0].producer_id)
            number += len(some)
            ours, theirs = (side.answers(some) for side in sides)
            assert ours == theirs, (SEED, number, some)
        for side in sides:
            side.wire.close()
    written, expected = (files(directory) for directory in dirs)
    assert written.keys() == expected.keys()
    assert [name for name in written if written[name] != expected[name]] == []
    assert any(data for name, data in written.items() if name.endswith(".timeindex"))
    # The lane did what it is for, and left to the handler what it is not for.
    assert 0.1 < left_to_python[True] / left_to_python[False] < 0.8, left_to_python


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalNode]:
    with LocalNode({**LANE, "log.dirs": str(tmp_path / "data")}) as node:
        yield node


def test_a_write_that_fails_leaves_the_rest_to_the_handler(
    node: LocalNode, left_to_python: Counter[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was appended before is answered with its offsets, and nothing is there twice."""
    with WireClient(node.bootstrap_servers) as wire:
        create_topic(wire, "plain", PARTITIONS)
        batch = build_batch([(int(time.time() * 1000), None, b"value")])
        request = produce_request("plain", *[batch] * PARTITIONS)

        def offsets() -> list[tuple[int, int]]:
            response = wire.get(request, 9, ProduceResponse)
            return [(part.error_code, part.base_offset) for part in response.responses[0].partition_responses]

        # The first ones may find logs whose creation is not durable yet.
        end, before = 0, -1
        while left_to_python[True] != before:
            before = left_to_python[True]
            assert offsets() == [(0, end)] * 3
            end += 1
        pwrite = disk._RealFile.pwrite
        failed: list[str] = []

        def fail_once(self: disk._RealFile, data: disk.Buffer, offset: int) -> None:
            if "plain-1" in self.path and not failed:
                failed.append(self.path)
                raise OSError(5, "Input/output error", self.path)
            pwrite(self, data, offset)

        monkeypatch.setattr(disk._RealFile, "pwrite", fail_once)
        assert offsets() == [(0, end)] * 3
        assert left_to_python[True] == before + 1
        monkeypatch.undo()
        assert offsets() == [(0, end + 1)] * 3


def test_what_is_allowed_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also if the kernel leaves the request to the handler, which asks again."""
    authorizer = {"authorizer.class.name": CLASS_NAME, "super.users": "User:ANONYMOUS"}
    settings = {**LANE, **authorizer, "log.dirs": str(tmp_path / "data")}
    with LocalNode(settings) as node, WireClient(node.bootstrap_servers) as wire:
        create_topic(wire, "plain", PARTITIONS)
        with caplog.at_level(logging.DEBUG, LOGGER_NAME):
            for codec in (Codec.NONE, Codec.GZIP):
                batch = build_batch([(int(time.time() * 1000), None, b"value")], codec=codec)
                parts = [PartitionProduceData(index=0, records=batch)]
                request = ProduceRequest(
                    acks=1, topic_data=[TopicProduceData(name="plain", partition_data=parts)]
                )
                assert (
                    not wire.get(request, 9, ProduceResponse).responses[0].partition_responses[0].error_code
                )
    lines = [record.getMessage() for record in caplog.records]
    assert sum("is Allowed operation = WRITE" in line for line in lines) == 2, lines


@pytest.mark.slow
def test_a_writer_of_a_topic_does_not_pass_for_a_broker(
    tmp_path: Path, left_to_python: Counter[bool]
) -> None:
    """Also where the broker's batch would be the next one of a producer that the partition knows."""
    own_id = 7
    broker_id = FIRST_BROKER_PRODUCER_ID | own_id
    settings = {**own_settings(["alice"]), **LANE, "log.dirs": str(tmp_path / "data")}
    with (
        LocalNode(settings) as node,
        client_of(node.bootstrap_servers, ADMIN) as admin,
        client_of(node.bootstrap_servers, "alice") as alice,
    ):
        create_topic(admin, "plain", 1)
        may_write = AclCreation(
            resource_type=AclResourceType.TOPIC,
            resource_name="plain",
            resource_pattern_type=PatternType.LITERAL,
            principal="User:alice",
            host="*",
            operation=AclOperation.WRITE,
            permission_type=AclPermissionType.ALLOW,
        )
        made = admin.get(CreateAclsRequest(creations=[may_write]), 3, CreateAclsResponse)
        assert made.results[0].error_code == 0

        def produce_as(client: WireClient, producer_id: int, sequence: int) -> ErrorCode:
            batch = build_batch(
                [(int(time.time() * 1000), None, b"value")],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            )
            data = TopicProduceData(
                name="plain", partition_data=[PartitionProduceData(index=0, records=batch)]
            )
            response = client.get(ProduceRequest(acks=-1, topic_data=[data]), 9, ProduceResponse)
            return ErrorCode(response.responses[0].partition_responses[0].error_code)

        for sequence in range(2):
            assert produce_as(admin, broker_id, sequence) is ErrorCode.NONE
        sequences = itertools.count()

        def is_taken_by_the_lane() -> bool:
            before = left_to_python[True]
            assert produce_as(alice, own_id, next(sequences)) is ErrorCode.NONE
            return left_to_python[True] == before

        wait_until(is_taken_by_the_lane)  # it takes none as long as the node makes logs
        assert produce_as(alice, broker_id, 2) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert produce_as(admin, broker_id, 2) is ErrorCode.NONE


@pytest.mark.slow
def test_what_replicas_do_not_have_in_time_times_out() -> None:
    """With acks=all and followers the kernel appends, and the response waits."""
    with LocalCluster(nodes=2, settings={"replica.lag.time.max.ms": 60_000}, controllers=1) as cluster:
        with WireClient(cluster.node(1).bootstrap_servers) as any_node:
            create_topic(any_node, "two", replicas=2)
        leader = cluster.leader("two")
        (follower,) = {1, 2} - {leader}
        with WireClient(cluster.node(leader).bootstrap_servers) as wire:

            def produced(timeout_ms: int) -> tuple[int, int]:
                batch = build_batch([(int(time.time() * 1000), None, b"value")])
                request = produce_request("two", batch, timeout_ms=timeout_ms)
                (part,) = wire.get(request, 9, ProduceResponse).responses[0].partition_responses
                return part.error_code, part.base_offset

            # The broker learns that it leads the partition a moment after others do.
            wait_until(lambda: produced(60_000) == (0, 0))
            assert [produced(60_000) for _ in range(2)] == [(0, 1), (0, 2)]
            cluster.pause(follower)
            assert produced(50) == (int(ErrorCode.REQUEST_TIMED_OUT), 3)
            cluster.resume(follower)
            assert produced(60_000) == (0, 4)
