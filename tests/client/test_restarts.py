"""Brokers that go away and come back under the same address, with clients that stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode

IMPATIENT = {"retry_backoff_ms": 10, "reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50}


class Restartable:
    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        (self._port,) = free_ports(1)  # reserved while the node is down
        self.start()
        self.servers = self._node.bootstrap_servers

    def stop(self) -> None:
        self._node.stop()

    def start(self) -> None:
        self._node = LocalNode(data_dir=self._folder, port=self._port).start()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Restartable]:
    node = Restartable(tmp_path)
    yield node
    node.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_restart_loses_and_doubles_nothing(node: Restartable, protocol: str) -> None:
    sent = received = 0
    values: list[bytes] = []
    settings: dict[str, Any] = {
        "group_id": "g",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 50,
        "heartbeat_interval_ms": 100,
        **IMPATIENT,
    }
    async with (
        Producer(node.servers, linger_ms=1, **IMPATIENT) as producer,
        Consumer(node.servers, **settings) as consumer,
    ):
        await producer.ready("t")
        consumer.subscribe("t")
        async with asyncio.timeout(150):
            for turn in range(3):
                handles = []
                for _ in range(200):
                    handles.append(producer.send_nowait("t", b"%d" % sent, partition=0))
                    sent += 1
                if turn == 1:
                    await asyncio.to_thread(node.stop)
                    for _ in range(50):
                        handles.append(producer.send_nowait("t", b"%d" % sent, partition=0))
                        sent += 1
                    await asyncio.to_thread(node.start)
                await producer.flush()
                assert [handle.exception() for handle in handles] == [None] * len(handles)
                while received < sent:
                    records = await consumer.poll(timeout_ms=200)
                    values += [record.value for record in records]
                    received = len(set(values))
    assert sorted(set(values), key=int) == [b"%d" % n for n in range(sent)]
    in_log = await read_log(node.servers)
    assert in_log == [b"%d" % n for n in range(sent)]


async def read_log(servers: str) -> list[bytes]:
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        end = (await consumer.end_offsets(consumer.assignment()))[consumer.assignment()[0]]
        values: list[bytes] = []
        async with asyncio.timeout(60):
            while await consumer.position(("t", 0)) < end:
                values += [record.value for record in await consumer.poll()]
        return values
