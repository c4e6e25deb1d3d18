"""Apache Kafka 4.3.1 and Ottla on each other's metadata: what one wrote, the other loads and goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.log.directory.meta_properties import read_meta_properties
from ottla.metadata.controller.quorum_controller import ActiveController, QuorumController
from ottla.metadata.controller.state import ControllerSettings
from ottla.metadata.features import (
    KRAFT_VERSION,
    METADATA_VERSION,
    METADATA_VERSIONS,
    SUPPORTED_FEATURES,
    bootstrap_levels,
)
from ottla.metadata.image.delta import apply_records
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.bootstrap_metadata import format_directory, read_bootstrap
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime
from ottla.testing.cluster_plan import free_ports
from tests.metadata.controller_harness import SmallSchema, registration, topic
from tests.support import java, kafka_libs
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
API_TABLE = Path(__file__).parents[1] / "support" / "java" / "ApiTable.java"
DUMP = "org.apache.kafka.tools.DumpLogSegments"


async def open_log(runtime: Runtime, dir: Path) -> QuorumController:
    properties = read_meta_properties(runtime.disk, str(dir))
    assert properties is not None
    assert properties.directory_id is not None
    log = await MetadataLog.open(
        runtime,
        str(dir),
        node_id=properties.node_id,
        directory_id=properties.directory_id,
        static_voters=VoterSet.of(
            Voter(ReplicaKey(properties.node_id), {"CONTROLLER": Address("127.0.0.1", 9093)})
        ),
    )
    active_controller = ActiveController(
        log,
        lambda: QuorumController.activate(
            runtime,
            log,
            ControllerSettings(node_id=properties.node_id, cluster_id=properties.cluster_id),
            SmallSchema(),
            read_bootstrap(runtime.disk, str(dir)),
        ),
    )
    log.start()
    await log.until(lambda: active_controller.current is not None and log.is_caught_up)
    return active_controller.require()


async def beat(qc: QuorumController, broker: int, *, leave: bool = False) -> None:
    epoch = qc.controller.image.cluster.brokers[broker].epoch
    request = BrokerHeartbeatRequest(
        broker_id=broker,
        broker_epoch=epoch,
        current_metadata_offset=qc.log.next_offset,
        want_fence=leave,
        want_shut_down=leave,
    )
    await qc.process_broker_heartbeat(request)


async def join(qc: QuorumController, runtime: Runtime, dir: Path) -> None:
    """Bring the broker up, as a node does when it starts."""
    properties = read_meta_properties(runtime.disk, str(dir))
    assert properties is not None
    assert properties.directory_id is not None
    request = registration(properties.node_id)
    request.cluster_id = properties.cluster_id
    request.log_dirs = [properties.directory_id]
    await qc.register_broker(request, supersede=True)
    await beat(qc, properties.node_id)


async def create(qc: QuorumController, name: str, broker: int, **configs: str) -> None:
    request = CreateTopicsRequest(
        topics=[topic(name, configs=dict(configs), assignments=[[broker], [broker]])]
    )
    response = await qc.decide(lambda controller: controller.create_topics(request))
    assert response.topics[0].error_code == ErrorCode.NONE, response


def dump(dir: Path) -> str:
    """Every log and snapshot of the metadata partition in the words of Kafka's tool."""
    files = sorted(
        str(path)
        for path in (dir / "__cluster_metadata-0").iterdir()
        if path.suffix in (".log", ".checkpoint")
    )
    return java.run_tool(DUMP, "--cluster-metadata-decoder", "--files", ",".join(files)).out


async def test_what_kafka_wrote_is_loaded_and_kafka_goes_on_after_ottla(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path, properties={"metadata.log.max.record.bytes.between.snapshots": "1000"})
    with kafka:
        kafka.tool(
            TOPICS, "--create", "--topic", "orders", "--partitions", "3", "--config", "retention.ms=1000"
        )
        kafka.tool(TOPICS, "--create", "--topic", "gone")
        wait_until(lambda: "gone" in kafka.tool(TOPICS, "--list").out.split(), "the broker does not know it")
        kafka.tool(TOPICS, "--delete", "--topic", "gone")
        kafka.tool(
            CONFIGS,
            "--alter",
            "--entity-type",
            "brokers",
            "--entity-default",
            "--add-config",
            "log.cleaner.threads=2",
        )
    runtime = Runtime.real()
    try:
        qc = await open_log(runtime, kafka.data_dir)
        image = qc.image
        assert set(image.topics.by_name) == {"orders"}
        assert len(image.topics.by_name["orders"].partitions) == 3
        assert image.config(ConfigResource(ConfigResourceType.TOPIC, "orders")) == {"retention.ms": "1000"}
        assert image.config(ConfigResource(ConfigResourceType.BROKER, ""))["log.cleaner.threads"] == "2"
        assert image.metadata_version.release == "4.3-IV0"
        assert apply_records(MetadataImage.EMPTY, image.records()) == image
        await join(qc, runtime, kafka.data_dir)
        await create(qc, "from-ottla", kafka.node_id, **{"segment.bytes": "1048576"})
        await beat(qc, kafka.node_id, leave=True)
        await qc.log.close()
    finally:
        runtime.close()
    with kafka:
        listed = kafka.tool(TOPICS, "--list").out.split()
        assert {"orders", "from-ottla"} <= set(listed)
        described = kafka.tool(TOPICS, "--describe", "--topic", "from-ottla").out
        assert "PartitionCount: 2" in described
        assert "segment.bytes=1048576" in described


@pytest.mark.parametrize("snapshot", [pytest.param(False, marks=pytest.mark.exhaustive), True])
async def test_kafka_starts_on_a_directory_that_ottla_formatted(tmp_path: Path, snapshot: bool) -> None:
    kafka = ApacheKafka(tmp_path, cluster_id="MkU3OEVBNTcwNTJENDM2Qg")
    runtime = Runtime.real()
    try:
        format_directory(
            runtime.disk,
            runtime.random,
            runtime.clock,
            str(kafka.data_dir),
            cluster_id=kafka.cluster_id,
            node_id=kafka.node_id,
        )
        qc = await open_log(runtime, kafka.data_dir)
        await join(qc, runtime, kafka.data_dir)
        await create(qc, "letters", kafka.node_id, **{"retention.ms": "5000"})
        if snapshot:
            await qc.log.write_snapshot(qc.image)
            await create(qc, "after", kafka.node_id)
        await beat(qc, kafka.node_id, leave=True)
        await qc.log.close()
        text = dump(kafka.data_dir)
        assert "letters" in text
        assert "LeaderChange:" in text
        assert "rror" not in text
    finally:
        runtime.close()
    with kafka:
        described = kafka.tool(TOPICS, "--describe", "--topic", "letters").out
        assert "PartitionCount: 2" in described
        assert "retention.ms=5000" in described
        assert f"Leader: {kafka.node_id}" in described


async def test_dynamic_voters_are_understood_both_ways(tmp_path: Path) -> None:
    port, controller_port = free_ports(2)
    kafka = ApacheKafka(
        tmp_path,
        cluster_id="MkU3OEVBNTcwNTJENDM2Qg",
        properties={
            "controller.quorum.voters": "",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        },
    )
    kafka.port, kafka.controller_port = port, controller_port
    runtime = Runtime.real()
    try:
        directory_id = runtime.random.uuid()
        voter = Voter(
            ReplicaKey(kafka.node_id, directory_id), {"CONTROLLER": Address("127.0.0.1", controller_port)}
        )
        format_directory(
            runtime.disk,
            runtime.random,
            runtime.clock,
            str(kafka.data_dir),
            cluster_id=kafka.cluster_id,
            node_id=kafka.node_id,
            directory_id=directory_id,
            dynamic_voters=VoterSet.of(voter),
        )
        qc = await open_log(runtime, kafka.data_dir)
        await join(qc, runtime, kafka.data_dir)
        await create(qc, "letters", kafka.node_id)
        await beat(qc, kafka.node_id, leave=True)
        await qc.log.close()
        with kafka:
            assert "letters" in kafka.tool(TOPICS, "--list").out.split()
            kafka.tool(TOPICS, "--create", "--topic", "from-kafka")
        qc = await open_log(runtime, kafka.data_dir)
        assert qc.log.kraft_version == 1
        assert qc.log.voters.voters[kafka.node_id].key == voter.key
        assert {"letters", "from-kafka"} <= set(qc.image.topics.by_name)
        await qc.log.close()
    finally:
        runtime.close()


def test_levels_are_those_of_kafka_4_4() -> None:
    printed = java.run_tool(str(API_TABLE), bundle=kafka_libs.NEW_CLIENT).out.splitlines()
    metadata, features = (
        [line.split()[1:] for line in printed if line.startswith(kind)] for kind in ("metadata ", "feature ")
    )
    assert metadata == [
        [str(level), version.release, str(version.changed).lower()]
        for level, version in METADATA_VERSIONS.items()
    ]
    for name, levels in SUPPORTED_FEATURES.items():
        if name not in (METADATA_VERSION, KRAFT_VERSION):
            bootstrap = [
                next(v.level for v in METADATA_VERSIONS.values() if bootstrap_levels(v).get(name, 0) >= level)
                for level in range(levels.min, levels.max + 1)
            ]
            assert [each for each in features if each[0] == name] == [
                [name, str(level), str(since)] for level, since in enumerate(bootstrap)
            ]
