"""Three replicas on real files and connections: one is elected, replicates its writes, and may resign."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.log import NoRoom
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from tests.raft.driver_harness import (
    DEADLINE_S,
    Replica,
)
from tests.support.waiting import until


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[list[Replica]]:
    replicas = [Replica(id, tmp_path / str(id)) for id in (1, 2, 3)]
    for replica in replicas:
        await replica.listen()
    voters = VoterSet.of(
        *(Voter(ReplicaKey(each.id), {"CONTROLLER": Address("127.0.0.1", each.port)}) for each in replicas)
    )
    for replica in replicas:
        await replica.boot(voters)
    yield replicas
    for replica in replicas:
        if not replica.client.is_closed:
            await replica.stop()
        replica.runtime.close()


async def write(replicas: list[Replica], value: bytes) -> Replica:
    """Append a value at the leader, again if leadership moves meanwhile; the leader that committed it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await until(lambda: any(replica.leads for replica in replicas))
            leader = next(replica for replica in replicas if replica.leads)
            if await _write_by(leader, replicas, value):
                return leader


async def _write_by(leader: Replica, replicas: list[Replica], value: bytes) -> bool:
    leader.append(value)
    await until(lambda: not leader.leads or all(value in replica.values() for replica in replicas))
    return leader.leads


async def test_writes_survive_the_leader(replicas: list[Replica]) -> None:
    leader = await write(replicas, b"first")
    await leader.stop()
    rest = [replica for replica in replicas if replica is not leader]
    await write(rest, b"second")
    for replica in rest:
        values = replica.values()
        assert values.index(b"first") < values.index(b"second")
    await until(lambda: rest[0].values() == rest[1].values())
    assert all(replica.failure is None for replica in replicas)


async def test_a_leader_that_resigns_hands_over(replicas: list[Replica]) -> None:
    leader = await write(replicas, b"first")
    await leader.client.resign(5_000)
    others = [replica for replica in replicas if replica is not leader]
    await until(lambda: any(replica.leads for replica in others))
    description = next(replica for replica in others if replica.leads).client.describe()
    assert description is not None
    assert [info.key.id for info in description.voters] == [1, 2, 3]
    assert description.epoch > 1


def cannot_write(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoRoom("no room")

    monkeypatch.setattr(replica.client.log, "append_as_leader", refuse)


@pytest.mark.slow
async def test_a_leader_without_room_resigns_and_follows_the_next_one(
    replicas: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await write(replicas, b"first")
    cannot_write(leader, monkeypatch)
    with pytest.raises(KafkaError, match="no room") as refused:
        leader.append(b"lost")
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    assert not leader.leads
    others = [replica for replica in replicas if replica is not leader]
    await until(lambda: any(replica.leads for replica in others))
    assert await write(replicas, b"second") is not leader  # all three have it
    assert leader.failure is None


@pytest.mark.slow
async def test_an_error_of_the_program_at_a_deadline_fails_the_replica(
    replicas: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await write(replicas, b"first")

    def broken(_: int) -> None:
        raise AssertionError("not expected")

    monkeypatch.setattr(leader.client._machine, "poll", broken)
    leader.client._poll()
    assert isinstance(leader.failure, AssertionError)
    await write([replica for replica in replicas if replica is not leader], b"second")


async def test_one_that_is_alone_waits_until_it_can(tmp_path: Path) -> None:
    replica = Replica(1, tmp_path)
    await replica.listen()
    address = Address("127.0.0.1", replica.port)
    await replica.boot(VoterSet.of(Voter(ReplicaKey(1), {"CONTROLLER": address})))
    try:
        await write([replica], b"first")
        with pytest.MonkeyPatch.context() as monkeypatch:
            cannot_write(replica, monkeypatch)
            with pytest.raises(KafkaError, match="no room"):
                replica.append(b"lost")
        assert replica.failure is None
        await write([replica], b"second")
    finally:
        await replica.stop()
        replica.runtime.close()


async def test_a_replica_of_another_cluster_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Address] = []

    async def ask(channel: InterNodeClient, address: Address, *_: object, **__: object) -> None:
        asked.append(address)
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)

    monkeypatch.setattr(InterNodeClient, "request", ask)
    replica = Replica(1, tmp_path, cluster_id="ours")
    await replica.listen()
    addresses = {1: Address("127.0.0.1", replica.port), 2: Address("theirs", 9093)}
    await replica.boot(
        VoterSet.of(*(Voter(ReplicaKey(id), {"CONTROLLER": at}) for id, at in addresses.items()))
    )
    try:
        await until(lambda: len(asked) >= 3)
        told = "the controller at theirs:9093 is of another cluster: this node was formatted for ours"
        assert caplog.text.count(told) == 1
        assert not replica.leads
    finally:
        await replica.stop()
        replica.runtime.close()
