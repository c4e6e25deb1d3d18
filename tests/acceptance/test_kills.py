"""The real process is killed again and again under load: what it acknowledged is there, in order, once.

A librdkafka producer with idempotence writes to several partitions all the while, through every death of the
node. After each restart, and at the end, every record that was ever acknowledged must be at the offset that
was acknowledged, and no record may be there twice. `KILL_ROUNDS` makes it longer.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.testing.cluster_plan import free_ports
from tests.support.acknowledged_workload import Load, read_all
from tests.support.node_process import NodeProcess
from tests.support.wire import WireClient

ROUNDS = int(os.environ.get("KILL_ROUNDS", "4"))
SEED = int(os.environ.get("KILL_SEED", str(random.SystemRandom().randrange(2**31))))
PARTITIONS = 3
CODECS = ("none", "lz4", "zstd")


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, pytest.param(ROUNDS, marks=pytest.mark.exhaustive)])
def test_what_was_acknowledged_outlives_every_kill(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(SEED)
    print(f"repeat with KILL_SEED={SEED}")
    (port,) = free_ports(1)  # that no other process gets while the node is dead
    with NodeProcess(tmp_path, listen=f"127.0.0.1:{port}") as first:
        # Small segments, so that a kill also meets a roll and a snapshot of producers.
        settings = [CreatableTopicConfig(name="internal.segment.bytes", value="200000")]
        topic = CreatableTopic(name="load", num_partitions=PARTITIONS, replication_factor=1, configs=settings)
        with WireClient(first.bootstrap) as wire:
            created = wire.get(CreateTopicsRequest(topics=[topic], timeout_ms=9000), 7, CreateTopicsResponse)
        assert created.topics[0].error_code == 0
        bootstrap = first.bootstrap
        first.kill()
    with Load(bootstrap, "load", PARTITIONS, codec=chance.choice(CODECS)) as load:
        for _ in range(rounds):
            with NodeProcess(tmp_path, listen=f"127.0.0.1:{port}") as node:
                before = [dict(records) for records in load.acknowledged]
                load.wait_for_more(chance.randint(1, 3000))
                for partition, acknowledged in enumerate(before):
                    assert acknowledged.items() <= read_all(bootstrap, "load", partition).items()
                node.kill()
        with NodeProcess(tmp_path, listen=f"127.0.0.1:{port}"):
            load.finish()
            load.check(bootstrap)
