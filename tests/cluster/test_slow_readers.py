"""Clients that use up the memory for connections of a leader and hardly read: replication goes on."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import blocking
from ottla.protocol.names import TopicPartition
from ottla.testing.local_cluster import LocalCluster
from tests.support.process_status import process_status
from tests.support.waiting import wait_until

pytestmark = pytest.mark.exhaustive

MB = 1024 * 1024
SETTINGS = {
    "connections.memory.max.bytes": 16 * MB,
    "socket.send.buffer.bytes": 16_384,
    "offsets.topic.num.partitions": 1,
}
RECORDS = 100
COMMITS = 10
# They take much less in a second than new ones are given, so that the memory fills up on any machine, and
# something within each second, so that only those with large responses are closed.
READ_EVERY_S = 0.4
NEW_AT_ONCE = 8


def _fetch_request(topic: str, partition: int) -> bytes:
    """Version 4: everything of the partition, from its beginning."""
    name = topic.encode()
    body = struct.pack(">hhih", 1, 4, 7, 1) + b"x" + struct.pack(">iiiib", -1, 100, 1, 10 * MB, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, partition, 0, 10 * MB)
    return struct.pack(">i", len(body)) + body


class SlowReaders:
    """Clients that ask for much and take a little of it now and then, so that most are not closed."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port = port
        self._request = request
        self._sockets: list[socket.socket] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def add(self) -> None:
        sock = socket.socket()
        self._sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", self._port))
        sock.sendall(self._request)
        sock.setblocking(False)

    def _read(self) -> None:
        while not self._stopped.wait(READ_EVERY_S):
            for sock in list(self._sockets):
                with contextlib.suppress(OSError):
                    sock.recv(2048)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()
            for sock in self._sockets:
                sock.close()


def test_slow_readers_of_a_leader_do_not_hold_its_followers_up() -> None:
    with (
        LocalCluster(nodes=3, settings=SETTINGS) as cluster,
        blocking.Admin(cluster.bootstrap_servers) as admin,
    ):
        admin.topics.create("t", partitions=3, replication_factor=3)
        committed = TopicPartition("t", 0)
        admin.groups.alter_offsets("g", {committed: 0})
        leader = cluster.node(cluster.leader("__consumer_offsets"))
        led = next(number for number in range(3) if cluster.leader("t", number) == leader.id)
        with blocking.Producer(cluster.bootstrap_servers) as producer:
            for _ in range(RECORDS):
                producer.send("t", os.urandom(100_000), partition=led)
        readers = SlowReaders(leader.port, _fetch_request("t", led))

        def clients() -> dict[str, Any]:
            pool: dict[str, Any] = process_status(leader)["connection_memory"]["clients"]
            return pool

        def is_full() -> bool:
            for _ in range(NEW_AT_ONCE):
                readers.add()
            pool = clients()
            return bool(pool["requests"] + pool["responses"] >= pool["limit"])

        # Followers always have a fetch in progress.
        assert clients()["requests"] == 0, "fetches of followers count as those of clients"
        with readers.running():
            wait_until(is_full, "slow readers did not use the memory up")
            # Each commit needs a follower, whose fetches are answered from another part of the memory.
            for number in range(1, COMMITS + 1):
                readers.add()
                assert admin.groups.alter_offsets("g", {committed: number}) == {committed: None}
        cluster.wait_in_sync()
