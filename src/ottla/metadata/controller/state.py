"""The state that every decision of the controller starts from: the image, the settings and the caller.

The modules beside it (`topics`, `partitions`, `brokers`, ...) are functions from a `ControllerState`
and a request to a `Result`: the records to append and the response to give once they are committed. They do
not change the state. A function that may touch many partitions is a `Decision`: it yields after each, so that
its driver can let heartbeats through; no other decision is made meanwhile. Invariant: replaying the records
of a result onto the state's image always succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.metadata.controller.partition_change_builder import PartitionChangeBuilder
from ottla.metadata.controller.partition_index import PartitionIndex
from ottla.metadata.controller.placement import RandomSource, UsableBroker
from ottla.metadata.features import SUPPORTED_FEATURES, MetadataVersion, VersionRange
from ottla.metadata.image.entities import (
    CLUSTER_DEFAULT,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    ConfigResource,
    ConfigResourceType,
    PartitionRegistration,
    TopicImage,
)
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.steps import Steps

# The most records that one request may write, as in Kafka.
MAX_RECORDS_PER_REQUEST: Final = 10_000
# The most partitions that one request may create; checked before anything is allocated.
MAX_PARTITIONS_PER_REQUEST: Final = 10_000

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class ApiError(NamedTuple):
    """An error code and its message."""

    code: ErrorCode
    message: str | None = None

    @classmethod
    def of(cls, error: KafkaError) -> ApiError:
        return cls(error.code, error.message)

    @property
    def failed(self) -> bool:
        return self.code is not ErrorCode.NONE


NO_ERROR: Final = ApiError(ErrorCode.NONE)


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """The records to append, and the response to give once they are committed (Kafka's ControllerResult).
    Those that are not `atomic` may be appended in several batches.
    """

    records: Sequence[MetadataRecord]
    response: T
    atomic: bool = True


Decision: TypeAlias = Steps[Result[T]]
"""A result that takes a step for each partition that it concerns."""


class EffectiveConfig(NamedTuple):
    """A topic config as CreateTopics returns it; `source` is Kafka's number of the ConfigSource."""

    name: str
    value: str | None
    read_only: bool
    source: int
    sensitive: bool


class ConfigSchema(Protocol):
    """The part of the node's table of configs that the controller uses."""

    def validate(
        self, resource: ConfigResource, configs: Mapping[str, str], existing: Mapping[str, str]
    ) -> None:
        """Raise KafkaError when `configs`, the whole overrides of the resource, are not valid."""

    def is_list(self, type: int, name: str) -> bool:
        """Whether APPEND and SUBTRACT make sense for the config."""

    def default(self, type: int, name: str) -> str | None:
        """The default that APPEND and SUBTRACT start from when there is no override."""

    def topic_config(
        self, name: str, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> str:
        """The effective value: of the topic, else of this broker, else of the cluster, else static or
        default.
        """

    def topic_configs(
        self, topic: Mapping[str, str], broker: Mapping[str, str], cluster: Mapping[str, str]
    ) -> list[EffectiveConfig]:
        """Every effective topic config, sorted by name."""


def _allow(_operation: int, _resource_type: int, _name: str) -> bool:
    return True


def _no_quota(_partitions: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ControllerRequestContext:
    """The permissions of the caller, and its quota on partition changes.

    `apply_partition_change_quota` raises KafkaError THROTTLING_QUOTA_EXCEEDED when the caller has exceeded
    it.
    """

    allowed: Callable[[int, int, str], bool] = _allow
    apply_partition_change_quota: Callable[[int], None] = _no_quota
    forwarded: bool = True  # whether a broker, which has validated what only it can, forwarded the request
    # As `allowed`, for what refuses nothing by itself: a denial is not logged.
    without_log: Callable[[int, int, str], bool] | None = None

    def allowed_silently(self, operation: int, resource_type: int, name: str) -> bool:
        return (self.without_log or self.allowed)(operation, resource_type, name)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    node_id: int
    cluster_id: str
    num_partitions: int = 1
    default_replication_factor: int = 1
    session_timeout_ms: int = 9_000
    max_elections_per_imbalance: int = 1_000
    min_insync_replicas: int = 1
    delete_topic_enable: bool = True
    supported_features: Mapping[str, VersionRange] = field(default_factory=lambda: SUPPORTED_FEATURES)


@dataclass(slots=True)
class ControllerState:
    """The state on which decisions are made; `image` has everything appended so far, committed or not yet."""

    image: MetadataImage
    settings: ControllerSettings
    schema: ConfigSchema
    random: RandomSource
    new_uuid: Callable[[], bytes]
    voters: Sequence[int] = ()  # the controllers of the quorum
    kraft_version: int = 0
    # Raise `kraft.version`, or only validate that (the second argument); KafkaError says why it is refused.
    upgrade_quorum: Callable[[int, bool], None] | None = None
    index: PartitionIndex = field(default_factory=PartitionIndex)  # over `image`
    # The settings of topics that were looked up in this image: decisions ask for each partition again.
    _looked_up: tuple[MetadataImage, dict[tuple[str, str], str]] | None = None

    @property
    def version(self) -> MetadataVersion:
        return self.image.metadata_version

    @property
    def elr_enabled(self) -> bool:
        return self.image.features.elr_enabled

    # Brokers

    def is_active(self, broker: int) -> bool:
        return self.image.cluster.is_active(broker)

    def default_directory(self, broker: int) -> bytes:
        if not self.version.directory_assignment:
            return DIRECTORY_MIGRATING
        registration = self.image.cluster.brokers.get(broker)
        return DIRECTORY_UNASSIGNED if registration is None else registration.default_directory

    def usable_brokers(self) -> Iterator[UsableBroker]:
        for broker in self.image.cluster.brokers.values():
            if not (broker.in_controlled_shutdown and not broker.fenced) and broker.has_uncordoned_directory:
                yield UsableBroker(broker.id, broker.rack, broker.fenced)

    def check_broker_epoch(self, broker: int, epoch: int) -> None:
        registration = self.image.cluster.brokers.get(broker)
        if registration is None:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker}"
            )
        if registration.epoch != epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected broker epoch {registration.epoch}, but got broker epoch {epoch}",
            )

    # Configs

    def topic_config(self, topic: str, name: str) -> str:
        if self._looked_up is None or self._looked_up[0] is not self.image:
            self._looked_up = self.image, {}
        known = self._looked_up[1]
        value = known.get((topic, name))
        if value is None:
            value = known[topic, name] = self.schema.topic_config(
                name,
                self.image.config(ConfigResource(ConfigResourceType.TOPIC, topic)),
                self._controller_configs(),
                self.image.config(CLUSTER_DEFAULT),
            )
        return value

    def topic_configs(self, overrides: Mapping[str, str]) -> list[EffectiveConfig]:
        return self.schema.topic_configs(
            overrides, self._controller_configs(), self.image.config(CLUSTER_DEFAULT)
        )

    def unclean_election_enabled(self, topic: str) -> bool:
        return self.topic_config(topic, "unclean.leader.election.enable").lower() == "true"

    def min_isr(self, topic: TopicImage) -> int:
        """The effective `min.insync.replicas`, at most the number of replicas."""
        configured = int(self.topic_config(topic.name, "min.insync.replicas"))
        first = topic.partitions.get(0)
        return configured if first is None else min(configured, len(first.replicas))

    def _controller_configs(self) -> Mapping[str, str]:
        return self.image.config(ConfigResource(ConfigResourceType.BROKER, str(self.settings.node_id)))

    # Partitions

    def partition_change_builder(
        self,
        topic: TopicImage,
        partition_id: int,
        partition: PartitionRegistration,
        *,
        may_lead: Callable[[int], bool] | None = None,
    ) -> PartitionChangeBuilder:
        """Start a change of a partition; a leader must be active and have the replica's directory online."""
        acceptable = self.is_active if may_lead is None else may_lead
        brokers = self.image.cluster.brokers

        def is_acceptable_leader(replica: int) -> bool:
            registration = brokers.get(replica)
            if registration is None or not acceptable(replica):
                return False
            return replica not in partition.replicas or registration.has_online_directory(
                partition.directory(replica)
            )

        return PartitionChangeBuilder(
            partition,
            topic.id,
            partition_id,
            is_acceptable_leader=is_acceptable_leader,
            default_directory=self.default_directory,
            version=self.version,
            min_isr=self.min_isr(topic),
            elr_enabled=self.elr_enabled,
        )


def check_record_count(records: Sequence[MetadataRecord]) -> None:
    if len(records) > MAX_RECORDS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "Unable to perform excessively large batch operation. "
            f"The request would write {len(records)} metadata records, and at most "
            f"{MAX_RECORDS_PER_REQUEST} are "
            "allowed; split it into smaller requests.",
        )


def repeated(items: Iterable[H]) -> Steps[set[H]]:
    """The items that come more than once."""
    seen: set[H] = set()
    again: set[H] = set()
    for item in items:
        (again if item in seen else seen).add(item)
        yield
    return again
