"""A transaction is ended in each of its partitions, also where the leader is away when it is decided."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.sim_nodes import SimNodes

from ottla.client.producer import Producer
from ottla.protocol.names import TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.runtime.runtime import Runtime

ROLES = {1: "broker,controller", 2: "broker", 3: "broker"}
SETTINGS = {"transaction.state.log.num.partitions": "1", "transaction.state.log.replication.factor": "1"}


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_a_leader_that_is_away_writes_its_marker_when_it_is_back(commits: bool) -> None:
    nodes = SimNodes(ROLES, settings=SETTINGS)
    written, ended, away = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def transact(runtime: Runtime) -> None:
        async with Producer("node1:9092", runtime=runtime, transactional_id="ledger") as producer:
            producer.transactions.begin()
            for partition in range(len(ROLES)):
                await producer.send("orders", b"a", partition=partition)
            written.set()
            await away.wait()
            await (producer.transactions.commit() if commits else producer.transactions.abort())
            ended.set()

    def is_ended(index: int, leader: int) -> bool:
        """Whether the log has the record and its marker, and readers get both."""
        node = nodes.nodes.get(leader)
        if node is None or not node.shared.state.ready.is_set():
            return False
        log = nodes.broker(leader).replicas.partition(TopicPartition("orders", index)).log
        return log.log_end_offset == log.last_stable_offset == 2

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("orders", through=1, partitions=len(ROLES), replicas=1)
        client = asyncio.ensure_future(nodes.as_client(transact))
        await nodes.until(written.is_set)
        coordinator = nodes.partition(TRANSACTION_STATE_TOPIC, by=1).leader
        leaders = {index: nodes.partition("orders", index, by=1).leader for index in range(len(ROLES))}
        assert sorted(leaders.values()) == sorted(ROLES)
        lost = next(id for id in (2, 3) if id != coordinator)
        nodes.kill(lost)
        away.set()
        await nodes.until(ended.is_set)
        await client
        others = [(index, leader) for index, leader in leaders.items() if leader != lost]
        await nodes.until(lambda: all(is_ended(*each) for each in others))
        nodes.boot(lost)
        await nodes.ready(lost)
        await nodes.until(lambda: all(is_ended(*each) for each in leaders.items()))

    nodes.run(life())
