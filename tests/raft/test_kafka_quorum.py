"""Ottla and Apache Kafka as the two voters of one quorum: neither gets anywhere without the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from ottla.protocol.names import METADATA_PARTITION_DIR
from ottla.raft.config import QuorumConfig
from ottla.raft.states import Role
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address
from ottla.testing.cluster_plan import free_ports
from tests.raft.driver_harness import (
    Replica,
)
from tests.support.apache_kafka import ApacheKafka, ApacheKafkaError
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
NEVER_MS = 3_600_000
START_S = 150
LOG = f"{METADATA_PARTITION_DIR}/{0:020d}.log"


class Pair:
    """Kafka is voter 1, Ottla voter 2."""

    def __init__(self, tmp_path: Path, config: QuorumConfig, **properties: str) -> None:
        client_port, *ports = free_ports(3)
        addresses = {id: Address("127.0.0.1", port) for id, port in enumerate(ports, 1)}
        self.voters = VoterSet.of(
            *(Voter(ReplicaKey(id), {"CONTROLLER": address}) for id, address in addresses.items())
        )
        self.ottla = Replica(2, tmp_path / "ottla", cluster_id=CLUSTER_ID, config=config)
        self.ottla.port = ports[1]
        voters = ",".join(f"{id}@{address.host}:{address.port}" for id, address in addresses.items())
        self.kafka = ApacheKafka(
            tmp_path / "kafka",
            cluster_id=CLUSTER_ID,
            properties={
                "controller.quorum.voters": voters,
                **{name.replace("_", "."): value for name, value in properties.items()},
            },
        )
        self.kafka.port, self.kafka.controller_port = client_port, ports[0]

    async def __aenter__(self) -> Pair:
        await self.ottla.listen()
        await self.ottla.boot(self.voters)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.kafka.kill)
        await self.ottla.stop()
        self.ottla.runtime.close()


async def test_kafka_leads_and_ottla_follows(tmp_path: Path) -> None:
    """Kafka's broker is ready only once its registration is committed, which takes Ottla's vote and disk."""
    config = QuorumConfig(election_timeout_ms=NEVER_MS, fetch_timeout_ms=NEVER_MS)
    async with Pair(tmp_path, config) as pair:
        ottla, kafka = pair.ottla, pair.kafka
        await asyncio.to_thread(kafka.start)
        # It learns what is committed by its next fetch.
        await until(lambda: ottla.high_watermark > 5 and ottla.client.status.leader_id == 1)
        core = ottla.client.status
        assert core.role is Role.FOLLOWER
        ours = (ottla.dir / LOG).read_bytes()
        theirs = (kafka.data_dir / LOG).read_bytes()
        size = min(len(ours), len(theirs))
        assert size > 500
        assert ours[:size] == theirs[:size]
        state = json.loads((ottla.dir / METADATA_PARTITION_DIR / "quorum-state").read_bytes())
        assert (state["leaderId"], state["votedId"], state["leaderEpoch"]) == (1, 1, core.epoch)
        await asyncio.to_thread(kafka.stop)
        assert ottla.failure is None


async def test_ottla_leads_and_kafka_follows(tmp_path: Path) -> None:
    """Ottla commits the first record of its epoch only once Kafka has fetched it."""
    config = QuorumConfig(election_timeout_ms=100, fetch_timeout_ms=20_000)
    async with Pair(tmp_path, config, controller_quorum_election_timeout_ms=str(NEVER_MS)) as pair:
        ottla = pair.ottla
        # There is no controller behind this leader, so the broker does not come up; the voter does.
        start = asyncio.create_task(asyncio.to_thread(pair.kafka.start, timeout_s=START_S))
        try:
            await until(lambda: ottla.leads and ottla.high_watermark > 0, START_S)
            description = ottla.client.describe()
            assert description is not None
            [kafka] = [info for info in description.voters if info.key.id == 1]
            assert kafka.end_offset >= 1
        finally:
            await asyncio.to_thread(pair.kafka.kill)
            with contextlib.suppress(ApacheKafkaError):
                await start
        assert ottla.failure is None
