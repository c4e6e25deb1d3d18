"""Clients that mean ill, or are broken: the node lives, stays small, and other connections do not notice.

A real process is under attack while an ordinary client goes on asking. Each attack ends with the node
answering as before, its memory within bounds, and its connections given back. `HOSTILE_SCALE` multiplies the
attackers.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ottla.protocol.headers import request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.fetch import FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.schema import Request
from ottla.records.builder import build_batch
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, fetch_request, produce_request

pytestmark = pytest.mark.slow

SCALE = int(os.environ.get("HOSTILE_SCALE", "1"))
DEADLINE_SECONDS = 60
MB = 1024 * 1024
MAX_GROWTH_BYTES = 300 * MB
MAX_PEAK_BYTES = 700 * MB
# However hard the attack, an ordinary request is answered within this time.
MAX_PAUSE_SECONDS = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    data_dir: Path = tmp_path_factory.mktemp("hostile")
    with NodeProcess(data_dir, "--set", "auto.create.topics.enable=false") as node:
        with WireClient(node.bootstrap) as wire:
            keep = [CreatableTopicConfig(name="retention.ms", value="-1")]  # the records are from 1970
            topics = [CreatableTopic(name="victim", num_partitions=1, replication_factor=1, configs=keep)]
            wire.get(CreateTopicsRequest(topics=topics, timeout_ms=9000), 7, CreateTopicsResponse)
            for _ in range(8):
                wire.ask(produce(bytes(900_000)), 9)
        yield node


@pytest.fixture(autouse=True)
def unharmed(node: NodeProcess) -> Iterator[None]:
    """Whatever a test does: an ordinary client is served all the while, and nothing is left behind."""
    process = psutil.Process(node.pid)
    before, handles = process.memory_info().rss, process.num_fds()
    with WireClient(node.bootstrap, timeout_s=MAX_PAUSE_SECONDS) as bystander:
        ping(bystander)
        yield
        ping(bystander)
    wait_until(lambda: process.num_fds() <= handles + 10, "the handles were not given back")
    assert process.memory_info().rss - before < MAX_GROWTH_BYTES
    assert peak_bytes(process) < MAX_PEAK_BYTES
    assert "level=error" not in node.stderr()


def peak_bytes(process: psutil.Process) -> int:
    """The most that the process ever had, where the system tells."""
    status = Path(f"/proc/{process.pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else process.memory_info().rss


def ping(client: WireClient) -> None:
    assert client.get(ApiVersionsRequest(), 0, ApiVersionsResponse).error_code == 0


def connect(node: NodeProcess) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", node.port), DEADLINE_SECONDS)
    made.settimeout(DEADLINE_SECONDS)
    return made


def closed_by_node(victim: socket.socket) -> bool:
    """Read whatever comes until the node closes the connection."""
    with contextlib.suppress(ConnectionError):
        while victim.recv(MB):
            pass
    return True


def frame(request: Request, version: int) -> bytes:
    return b"".join(request_parts(version, 7, "hostile", request))


def produce(value: bytes) -> ProduceRequest:
    batch = build_batch([(0, None, value)])
    return produce_request("victim", memoryview(batch), timeout_ms=9000)


def fetch_everything() -> FetchRequest:
    return fetch_request("victim", partition_max_bytes=2**31 - 1, min_bytes=1, max_bytes=2**31 - 1)


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) + bytes(200),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\xff" * 300,
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -5),
        struct.pack(">i", 101 * MB),
        struct.pack(">ihh", 4, 3, 0),
        struct.pack(">i", 0),
    ],
    ids=["http", "tls", "ssh", "ones", "huge", "negative", "oversized", "no-header", "empty"],
)
def test_what_is_not_a_request_closes_its_connection(node: NodeProcess, opening: bytes) -> None:
    with connect(node) as victim:
        victim.sendall(opening)
        assert closed_by_node(victim)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (MetadataRequest(topics=[MetadataRequestTopic(name="")] * 2_000_000), 1),
        (CreateTopicsRequest(topics=[CreatableTopic(name="")] * 400_000), 7),
        (FetchRequest(topics=[FetchTopic(topic="", partitions=[])] * 600_000), 12),
    ],
    ids=["metadata", "create-topics", "fetch"],
)
def test_millions_of_tiny_elements_are_refused_unread(
    node: NodeProcess, request_: Request, version: int
) -> None:
    with connect(node) as victim:
        with contextlib.suppress(ConnectionError):
            victim.sendall(frame(request_, version))
        assert closed_by_node(victim)


def test_a_question_that_is_repeated_is_answered_once(node: NodeProcess) -> None:
    resources = [DescribeConfigsResource(resource_type=4, resource_name="1")] * 50_000
    with WireClient(node.bootstrap, timeout_s=DEADLINE_SECONDS) as wire:
        wire.send(DescribeConfigsRequest(resources=resources, include_documentation=True), 4)
        answer = wire.receive_frame()
    assert answer is not None
    assert len(answer) < MB


def test_clients_that_never_read_are_held_back(node: NodeProcess) -> None:
    """Each asks for 7 MB a hundred times and reads nothing of it."""
    request = frame(fetch_everything(), 12)
    with contextlib.ExitStack() as stack, WireClient(node.bootstrap, timeout_s=MAX_PAUSE_SECONDS) as other:
        for _ in range(30 * SCALE):
            victim = stack.enter_context(connect(node))
            victim.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                victim.sendall(request * 100)
            ping(other)


def test_clients_that_wait_hundreds_of_times_at_once_and_vanish(node: NodeProcess) -> None:
    """Each asks for what will not come for ten minutes, more often than is worked on at once."""
    patient = fetch_request(
        "victim", 8, partition_max_bytes=MB, max_wait_ms=600_000, min_bytes=1, max_bytes=MB
    )
    request = frame(patient, 12)
    with contextlib.ExitStack() as stack, WireClient(node.bootstrap, timeout_s=MAX_PAUSE_SECONDS) as other:
        for _ in range(100 * SCALE):
            stack.enter_context(connect(node)).sendall(request * 600)
            ping(other)


def test_clients_that_write_a_byte_at_a_time_cost_little(node: NodeProcess) -> None:
    """Each announces a request of 90 MB and sends hardly any of it."""
    with contextlib.ExitStack() as stack, WireClient(node.bootstrap, timeout_s=MAX_PAUSE_SECONDS) as other:
        victims = [stack.enter_context(connect(node)) for _ in range(100 * SCALE)]
        for victim in victims:
            victim.sendall(struct.pack(">i", 90 * MB))
        for _ in range(10):
            for victim in victims:
                victim.sendall(b"\0")
            ping(other)


def test_a_flood_of_requests_that_are_not_waited_for(node: NodeProcess) -> None:
    """Thousands of requests at once on each connection, whose responses the client does not read."""
    count = 3000
    request = frame(MetadataRequest(topics=None), 12)
    with contextlib.ExitStack() as stack, WireClient(node.bootstrap, timeout_s=MAX_PAUSE_SECONDS) as other:
        victims = [stack.enter_context(connect(node)) for _ in range(5 * SCALE)]
        for victim in victims:
            victim.setblocking(False)
        for _ in range(count):
            for victim in victims:
                with contextlib.suppress(BlockingIOError):
                    victim.send(request)
        ping(other)


def test_connections_that_come_and_go(node: NodeProcess) -> None:
    """Hundreds at once, which are then gone: some properly, some by a reset, some in mid-request."""
    chance = random.Random(3)
    request = frame(fetch_everything(), 12)
    with WireClient(node.bootstrap, timeout_s=MAX_PAUSE_SECONDS) as other:
        for _ in range(3):
            victims = [connect(node) for _ in range(200 * SCALE)]
            for victim in victims:
                victim.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    victim.sendall(request[: chance.randint(0, len(request))])
                if chance.random() < 0.5:
                    victim.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            ping(other)
            for victim in victims:
                victim.close()


def test_half_closed_connections_still_get_their_answer(node: NodeProcess) -> None:
    with connect(node) as victim:
        victim.sendall(frame(ApiVersionsRequest(), 0) * 3)
        victim.shutdown(socket.SHUT_WR)
        victim.settimeout(DEADLINE_SECONDS)
        with victim.makefile("rb") as stream:
            for _ in range(3):
                (size,) = struct.unpack(">i", stream.read(4))
                assert len(stream.read(size)) == size
            assert stream.read() == b""
