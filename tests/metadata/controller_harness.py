"""A controller on its own: requests in, records replayed at once, the image to look at."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ottla.metadata.controller.brokers import HeartbeatReply
from ottla.metadata.controller.controller import Controller
from ottla.metadata.controller.quorum_controller import activation_records
from ottla.metadata.controller.state import (
    ControllerRequestContext,
    ControllerSettings,
    Decision,
    EffectiveConfig,
    Result,
)
from ottla.metadata.features import METADATA_VERSION, SUPPORTED_FEATURES
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType, PartitionRegistration
from ottla.metadata.image.image import MetadataImage, Provenance
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.metadata.log.bootstrap_metadata import bootstrap_records
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.runtime.steps import run_at_once

T = TypeVar("T")
CLUSTER_ID = "test-cluster"
SECOND_NS = 1_000_000_000


class SeededRandom:
    """Randomness from a seed, in the shape of the runtime's."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def randrange(self, start: int, stop: int) -> int:
        return self._random.randrange(start, stop)

    def uuid(self) -> bytes:
        return self._random.randbytes(15) + b"\x7f"


class SmallSchema:
    """Five topic configs: enough to see defaults, overrides, lists and refusals."""

    DEFAULTS: Mapping[str, str] = {
        "cleanup.policy": "delete",
        "min.insync.replicas": "1",
        "retention.ms": "604800000",
        "segment.bytes": "1073741824",
        "unclean.leader.election.enable": "false",
    }

    def validate(
        self, resource: ConfigResource, configs: Mapping[str, str], existing: Mapping[str, str]
    ) -> None:
        if resource.type != ConfigResourceType.TOPIC:
            return
        for name, value in configs.items():
            if name not in self.DEFAULTS:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
            if name.endswith((".ms", ".bytes", ".replicas")) and not value.lstrip("-").isdecimal():
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}")

    def is_list(self, type: int, name: str) -> bool:
        return name == "cleanup.policy"

    def default(self, type: int, name: str) -> str | None:
        return self.DEFAULTS.get(name)

    def topic_config(
        self, name: str, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> str:
        for layer in (topic, broker, cluster, self.DEFAULTS):
            if name in layer:
                return layer[name]
        raise KeyError(name)

    def topic_configs(
        self, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> list[EffectiveConfig]:
        return [
            EffectiveConfig(
                name, self.topic_config(name, topic, broker, cluster), False, 1 if name in topic else 5, False
            )
            for name in sorted(self.DEFAULTS)
        ]


class ControllerHarness:
    """`do` plays the part of the log: what the controller decides is appended and replayed."""

    def __init__(
        self, *, brokers: int = 1, seed: int = 0, bootstrap: bool = True, **settings: int | bool
    ) -> None:
        self.log: list[MetadataRecord] = []
        self.now_ns = 0
        rng = SeededRandom(seed)
        self.controller = Controller(
            MetadataBatchLoader(),
            ControllerSettings(node_id=0, cluster_id=CLUSTER_ID, **settings),  # type: ignore[arg-type]
            SmallSchema(),
            rng,
            rng.uuid,
            now_ns=0,
        )
        if bootstrap:
            self.append(
                activation_records(
                    MetadataImage.EMPTY, bootstrap_records(), transaction_open=False, min_insync_replicas=1
                )
            )
        for broker in range(brokers):
            self.start_broker(broker)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    @property
    def next_offset(self) -> int:
        return len(self.log)

    def append(self, records: Sequence[MetadataRecord]) -> None:
        self.log += records
        run_at_once(self.controller.replay(records, Provenance(self.next_offset - 1, 1, 0)))

    def do(self, decision: Result[T] | Decision[T]) -> T:
        result = result_of(decision)
        if result.records:
            self.append(result.records)
        return result.response

    def register(
        self, broker: int, *, incarnation: int = 1, rack: str | None = None, previous_epoch: int = -1
    ) -> int:
        request = registration(broker, incarnation=incarnation, rack=rack, previous_epoch=previous_epoch)
        return self.do(
            self.controller.register_broker(request, next_offset=self.next_offset, now_ns=self.now_ns)
        )

    def heartbeat(
        self,
        broker: int,
        *,
        want_fence: bool = False,
        want_shut_down: bool = False,
        offset: int | None = None,
        offline_log_dirs: Sequence[bytes] = (),
    ) -> HeartbeatReply:
        request = BrokerHeartbeatRequest(
            broker_id=broker,
            broker_epoch=self.image.cluster.brokers[broker].epoch,
            current_metadata_offset=self.next_offset if offset is None else offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            offline_log_dirs=list(offline_log_dirs),
        )
        reply = self.do(self.controller.process_broker_heartbeat(request, now_ns=self.now_ns))
        if reply.in_controlled_shutdown:
            self.controller.begin_controlled_shutdown(broker, self.next_offset - 1)
        return reply

    def start_broker(self, broker: int, **options: int | str | None) -> None:
        self.register(broker, **options)  # type: ignore[arg-type]
        self.heartbeat(broker)

    def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replicas: int = -1,
        configs: Mapping[str, str | None] | None = None,
        assignments: Sequence[Sequence[int]] = (),
        context: ControllerRequestContext | None = None,
        validate_only: bool = False,
    ) -> CreatableTopicResult:
        request = CreateTopicsRequest(
            topics=[topic(name, partitions, replicas, configs or {}, assignments)],
            validate_only=validate_only,
        )
        response = self.do(self.controller.create_topics(request, context or ControllerRequestContext()))
        [result] = response.topics
        return result

    def partition(self, name: str, index: int = 0) -> PartitionRegistration:
        return self.image.topics.by_name[name].partitions[index]


def result_of(decision: Result[T] | Decision[T]) -> Result[T]:
    """What the controller decides, without appending it."""
    return decision if isinstance(decision, Result) else run_at_once(decision)


def topic(
    name: str,
    partitions: int = -1,
    replicas: int = -1,
    configs: Mapping[str, str | None] | None = None,
    assignments: Sequence[Sequence[int]] = (),
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in enumerate(assignments)
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def registration(
    broker: int, *, incarnation: int = 1, rack: str | None = None, previous_epoch: int = -1
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=broker,
        cluster_id=CLUSTER_ID,
        incarnation_id=bytes([incarnation]) * 16,
        listeners=[Listener(name="PLAINTEXT", host=f"broker-{broker}", port=9092)],
        features=[
            Feature(name=name, min_supported_version=r.min, max_supported_version=r.max)
            for name, r in SUPPORTED_FEATURES.items()
        ],
        rack=rack,
        log_dirs=[directory_of(broker)],
        previous_broker_epoch=previous_epoch,
    )


def directory_of(broker: int) -> bytes:
    return b"directory-of-" + f"{broker:03}".encode()


def raise_metadata_version(world: ControllerHarness, level: int) -> None:
    update = FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=level, upgrade_type=1)
    response = world.do(world.controller.update_features(UpdateFeaturesRequest(feature_updates=[update])))
    assert response.error_code == 0, response
