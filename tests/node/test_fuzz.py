"""Thousands of random requests: the node stays up, does not grow, and other clients do not notice.

Requests with random but well-formed contents, mutations of them, and plain noise, on connections that
come and go. `FUZZ_SECONDS` and `FUZZ_SEED` make it longer, or repeat a run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import struct
import time
from collections.abc import Iterator

import psutil
import pytest
from tests.support.messages import MessageMaker
from tests.support.wire import WireClient, create_topic

from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API
from ottla.protocol.headers import request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.schema import Struct
from ottla.testing.local_node import LocalNode

SECONDS = float(os.environ.get("FUZZ_SECONDS", "6"))
SEED = int(os.environ.get("FUZZ_SEED", "20261115"))
# It would end the test rather than the node: a broker that unregisters itself.
NOT_SENT = {API_KEY for API_KEY in ROUTES if API[API_KEY].name == "UnregisterBroker"}
MAX_GROWTH_BYTES = 100 * 1024 * 1024


def well_formed(chance: random.Random) -> bytes:
    api = API[chance.choice(sorted(ROUTES.keys() - NOT_SENT))]
    version = chance.randint(api.min_version, api.max_version)
    request = MessageMaker(chance.random()).make(api.request_class, version)
    if chance.random() < 0.7:
        point_at_what_exists(chance, version, request)
    client_id = chance.choice((None, "", "fuzz"))
    return b"".join(request_parts(version, chance.randrange(2**31), client_id, request))


def point_at_what_exists(chance: random.Random, version: int, struct: Struct) -> None:
    """Let names and numbers match the one topic that exists, so that a request gets past the first checks."""
    for field in struct.FIELDS:
        value = getattr(struct, field.name)
        if not field.in_version(version):
            continue
        if field.name in ("topic", "name", "topic_name") and isinstance(value, str):
            setattr(struct, field.name, "fuzz")
        elif field.name in ("partition", "partition_index", "index"):
            setattr(struct, field.name, 0)
        elif field.name in ("fetch_offset", "offset", "timestamp", "leader_epoch", "current_leader_epoch"):
            setattr(struct, field.name, chance.randint(-6, 3))
        elif field.name in ("acks", "replica_id", "isolation_level", "resource_type"):
            setattr(struct, field.name, chance.choice((-1, 0, 1, 2, 4)))
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Struct):
                    point_at_what_exists(chance, version, item)


def mutated(chance: random.Random, frame: bytes) -> bytes:
    body = bytearray(frame[4:])
    for _ in range(chance.randint(1, 4)):
        match chance.randrange(4):
            case 0 if body:
                body[chance.randrange(len(body))] = chance.randrange(256)
            case 1:
                del body[chance.randint(0, len(body)) :]
            case 2:
                at = chance.randint(0, len(body))
                body[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3 if len(body) > 4:
                at = chance.randrange(len(body) - 3)
                body[at : at + 4] = struct.pack(">i", chance.choice((-1, 0, 2**31 - 1, -(2**31), 10**6)))
    return struct.pack(">i", len(body)) + body


def rubbish(chance: random.Random) -> bytes:
    match chance.randrange(10):
        case 0:
            return chance.randbytes(chance.randint(1, 200))
        case 1:
            return struct.pack(">i", chance.randint(-(2**31), 2**31 - 1)) + chance.randbytes(20)
        case 2 | 3 | 4:
            return well_formed(chance)
        case _:
            return mutated(chance, well_formed(chance))


@pytest.fixture
def node() -> Iterator[LocalNode]:
    # Random requests must not create things by the thousand.
    with LocalNode({"auto.create.topics.enable": False}) as node:
        yield node


@pytest.mark.slow
def test_the_node_outlives_random_requests(node: LocalNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    chance = random.Random(SEED)
    memory = psutil.Process().memory_info
    with WireClient(node.bootstrap_servers) as other:
        create_topic(other, "fuzz")
        before = 0
        sent = 0
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline or sent <= 100:  # a slow machine takes longer
            with socket.create_connection(("127.0.0.1", node.port)) as victim:
                victim.settimeout(5)
                with contextlib.suppress(OSError):
                    for _ in range(chance.randint(1, 20)):
                        victim.sendall(rubbish(chance))
                        sent += 1
                    if chance.random() < 0.5:
                        victim.shutdown(socket.SHUT_WR)
                        victim.recv(65536)
            answer = other.get(ApiVersionsRequest(), 0, ApiVersionsResponse)
            assert answer.error_code == 0
            before = before or memory().rss
        assert memory().rss - before < MAX_GROWTH_BYTES
    failures = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not failures, "\n".join(
        f"{record.getMessage()}\n{record.exc_text or ''}" for record in failures[:5]
    )
