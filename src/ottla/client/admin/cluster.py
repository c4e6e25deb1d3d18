"""The cluster as a whole: its brokers, its quorum, its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from ottla import __version__
from ottla.client.admin.requests import AdminRequests
from ottla.client.cluster_metadata import Broker
from ottla.protocol.acl import AclOperation, operations_of
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from ottla.protocol.messages.add_raft_voter import Listener as AddedListener
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    ReplicaState,
)
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.protocol.messages.unregister_controller import (
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.names import CLUSTER_METADATA_TOPIC
from ottla.runtime.address import Address


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str
    controller_id: int
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class Quorum:
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]


@dataclass(frozen=True, slots=True)
class Feature:
    """The range that the broker supports, and the level in force in the cluster (None: not finalized)."""

    min_supported: int
    max_supported: int
    finalized: int | None


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class ClusterAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def describe(self) -> ClusterInfo:
        """The cluster's id, controller and brokers."""
        answer = await self._requests.any(DescribeClusterRequest(), DescribeClusterResponse)
        self._requests.raise_error(answer, "cluster")
        brokers = sorted(answer.brokers, key=lambda broker: broker.broker_id)
        return ClusterInfo(
            answer.cluster_id,
            answer.controller_id,
            tuple(Broker(b.broker_id, b.host, b.port, b.rack) for b in brokers),
        )

    async def authorized_operations(self) -> frozenset[AclOperation]:
        """What the principal of this client may do with the cluster; all without an authorizer."""
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        answer = await self._requests.any(request, DescribeClusterResponse)
        self._requests.raise_error(answer, "cluster")
        return operations_of(answer.cluster_authorized_operations)

    async def quorum(self) -> Quorum:
        """The quorum of the controllers, with the log end offset of each voter and observer."""
        topic = DescribeQuorumRequestTopicData(
            topic_name=CLUSTER_METADATA_TOPIC,
            partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
        )
        answer = await self._requests.any(DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse)
        self._requests.raise_error(answer, "quorum")
        state = answer.topics[0].partitions[0]
        self._requests.raise_error(state, "quorum")
        return Quorum(
            state.leader_id,
            state.leader_epoch,
            state.high_watermark,
            tuple(state.current_voters),
            tuple(state.observers),
        )

    async def add_voter(self, voter_id: int, directory_id: bytes, listeners: Mapping[str, Address]) -> None:
        """Make a controller that follows the quorum a voter; `listeners` are its controller listeners by
        name. DUPLICATE_VOTER if it is one already.
        """
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=self._requests.timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=[
                AddedListener(name=name, host=address.host, port=address.port)
                for name, address in listeners.items()
            ],
        )
        answer = await self._requests.controller(request, AddRaftVoterResponse, lambda r: [r.error_code])
        self._requests.raise_error(answer, f"voter {voter_id}")

    async def remove_voter(self, voter_id: int, directory_id: bytes) -> None:
        """Remove a voter from the quorum; VOTER_NOT_FOUND if there is none with this id and directory."""
        request = RemoveRaftVoterRequest(cluster_id=None, voter_id=voter_id, voter_directory_id=directory_id)
        answer = await self._requests.controller(request, RemoveRaftVoterResponse, lambda r: [r.error_code])
        self._requests.raise_error(answer, f"voter {voter_id}")

    async def api_versions(self) -> list[tuple[int, int, int]]:
        """The (API key, first version, last version) that a broker announces, by key."""
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        answer = await self._requests.any(request, ApiVersionsResponse)
        if answer.error_code:
            raise KafkaError(ErrorCode.of(answer.error_code))
        return sorted((api.api_key, api.min_version, api.max_version) for api in answer.api_keys)

    async def features(self) -> dict[str, Feature]:
        """Features by name: the levels that brokers support, and the one in force."""
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        answer = await self._requests.any(request, ApiVersionsResponse)
        if answer.error_code:
            raise KafkaError(ErrorCode.of(answer.error_code))
        finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        return {
            feature.name: Feature(feature.min_version, feature.max_version, finalized.get(feature.name))
            for feature in sorted(answer.supported_features, key=lambda feature: feature.name)
        }

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        validate_only: bool = False,
    ) -> None:
        """Set features to these levels; 0 removes one."""
        request = UpdateFeaturesRequest(
            timeout_ms=self._requests.timeout_ms,
            feature_updates=[
                FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        )
        answer = await self._requests.controller(request, UpdateFeaturesResponse, lambda r: [r.error_code])
        self._requests.raise_error(answer, "features")
        for result in answer.results:
            self._requests.raise_error(result, f"feature {result.feature!r}")

    async def unregister_broker(self, broker_id: int) -> None:
        """Unregister a broker that will not come back; BROKER_ID_NOT_REGISTERED if there is none with this
        id.
        """
        request = UnregisterBrokerRequest(broker_id=broker_id)
        answer = await self._requests.controller(request, UnregisterBrokerResponse, lambda r: [r.error_code])
        self._requests.raise_error(answer, f"broker {broker_id}")

    async def unregister_controller(self, controller_id: int) -> None:
        """Unregister a controller that was removed from the quorum and will not come back, which needs
        metadata.version 4.4-IV2; CONTROLLER_ID_NOT_REGISTERED if there is none with this id.
        """
        request = UnregisterControllerRequest(controller_id=controller_id)
        answer = await self._requests.controller(
            request, UnregisterControllerResponse, lambda r: [r.error_code]
        )
        self._requests.raise_error(answer, f"controller {controller_id}")
