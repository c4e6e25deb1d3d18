"""Thousands of votes, epochs and registrations that make no sense, sent to a controller's listener.

A client that reaches that listener can disturb elections, as in Apache Kafka; but the node must stay up, lead
again by itself, and never answer with a fault of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Iterator

import pytest
from tests.node.test_fuzz import mutated
from tests.support.messages import MessageMaker
from tests.support.wire import WireClient, create_topic

from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API, ListenerType
from ottla.protocol.headers import request_parts
from ottla.protocol.schema import Struct
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode

SECONDS = float(os.environ.get("FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("FUZZ_SEED", "20261115"))
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
NOT_SENT = {key for key in ROUTES if API[key].name == "UnregisterBroker"}
SENT = sorted(key for key in ROUTES.keys() - NOT_SENT if ListenerType.CONTROLLER in API[key].listeners)


@pytest.fixture
def door() -> int:
    return free_ports(1)[0]


@pytest.fixture
def node(door: int) -> Iterator[LocalNode]:
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{door}",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{door}",
        "cluster.id": CLUSTER_ID,
        "controller.quorum.election.timeout.ms": "50",
    }
    with LocalNode(settings) as node:
        yield node


def point_at_the_quorum(chance: random.Random, version: int, message: Struct) -> None:
    """Let the request get past the first checks: it is about this cluster and its metadata log."""
    for field in message.FIELDS:
        value = getattr(message, field.name)
        if not field.in_version(version):
            continue
        if field.name == "cluster_id":
            setattr(message, field.name, CLUSTER_ID)
        elif field.name in ("topic", "name", "topic_name") and isinstance(value, str):
            setattr(message, field.name, "__cluster_metadata")
        elif field.name == "topic_id":
            setattr(message, field.name, bytes(15) + b"\1")
        elif field.name in ("partition", "partition_index", "index"):
            setattr(message, field.name, 0)
        elif field.name.endswith("_epoch") and isinstance(value, int):
            setattr(message, field.name, chance.randint(-2, 20))
        elif field.name == "broker_id":
            # Not this node's own id: a client of this listener may act for any broker, and remove it.
            setattr(message, field.name, chance.choice((-1, 0, 2)))
        elif field.name.endswith("_id") and isinstance(value, int):
            setattr(message, field.name, chance.choice((-1, 0, 1, 2)))
        elif field.name.endswith("offset"):
            setattr(message, field.name, chance.randint(-2, 40))
        elif isinstance(value, list):
            del value[chance.choice((1, 1, 1, len(value))) :]
            for item in value:
                if isinstance(item, Struct):
                    point_at_the_quorum(chance, version, item)


def rubbish(chance: random.Random) -> bytes:
    api = API[chance.choice(SENT)]
    version = chance.randint(api.min_version, api.max_version)
    request = MessageMaker(chance.random()).make(api.request_class, version)
    if chance.random() < 0.8:
        point_at_the_quorum(chance, version, request)
    frame = b"".join(request_parts(version, chance.randrange(2**31), "fuzz", request))
    return mutated(chance, frame) if chance.random() < 0.2 else frame


@pytest.mark.slow
def test_the_controller_outlives_random_requests(
    node: LocalNode, door: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    chance = random.Random(SEED)
    deadline = time.monotonic() + SECONDS
    sent = 0
    while time.monotonic() < deadline or sent <= 50 * SECONDS:  # a slow machine takes longer
        with socket.create_connection(("127.0.0.1", door)) as victim, contextlib.suppress(OSError):
            victim.settimeout(0.2)
            for _ in range(chance.randint(1, 20)):
                victim.sendall(rubbish(chance))
                sent += 1
            victim.recv(65536)
    with WireClient(node.bootstrap_servers) as client:
        create_topic(client, "still")
    assert [record.getMessage() for record in caplog.records] == []
