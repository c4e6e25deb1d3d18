"""The API table: every request of Apache Kafka 4.4, its versions, and what goes around its body; and the few
that only Ottla has, under numbers that Kafka is far from (decision 86).

The table holds ranges only; each node decides which APIs it announces. Message classes are imported on first
use, so that the table itself costs almost nothing.

Three rules are not in the messages: a flexible request has header v2 and a flexible response header v1; but
the response of ApiVersions always has header v0, as the client does not know the versions yet; and Produce is
announced from version 0, although 0 to 2 are gone, because librdkafka reads a higher minimum as no Produce at
all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Final

from ottla.protocol.schema import MAX_VERSION, Request, Response


class ListenerType(Enum):
    """The kinds of listeners that an API is served on."""

    BROKER = "broker"
    CONTROLLER = "controller"


BROKER_ONLY: Final = frozenset({ListenerType.BROKER})
CONTROLLER_ONLY: Final = frozenset({ListenerType.CONTROLLER})
BOTH: Final = BROKER_ONLY | CONTROLLER_ONLY
NEVER: Final = MAX_VERSION

PRODUCE: Final = 0
FETCH: Final = 1
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36
FETCH_SNAPSHOT: Final = 59
_FIRST_OWN: Final = 10_000


@dataclass(frozen=True, slots=True)
class Api:
    """One line of the table.

    >>> API[1].name, API[1].request_class.__name__, API[1].max_version
    ('Fetch', 'FetchRequest', 18)
    """

    key: int
    name: str
    min_version: int
    # The last version that is declared, a not yet stable one included.
    last_version: int
    # The first version with tagged fields; versions from the future follow the same rule.
    flexible_from: int
    listeners: frozenset[ListenerType]
    latest_unstable: bool = False
    # A broker forwards the request to the active controller, in an Envelope.
    forwardable: bool = False
    # Sent by nodes of the cluster only; needs the right CLUSTER_ACTION.
    cluster_action: bool = False

    @property
    def is_of_kafka(self) -> bool:
        """Whether Apache Kafka has it. A broker announces the others to Ottla's own clients only."""
        return self.key < _FIRST_OWN

    @property
    def max_version(self) -> int:
        """The last stable version: the highest that is announced and served by default."""
        return self.last_version - 1 if self.latest_unstable else self.last_version

    def supports(self, version: int, *, unstable: bool = False) -> bool:
        return self.min_version <= version <= (self.last_version if unstable else self.max_version)

    def announced_versions(self, listener: ListenerType, *, unstable: bool = False) -> tuple[int, int]:
        """The first and last version as ApiVersions reports them on this kind of listener."""
        first = 0 if self.key == PRODUCE and listener is ListenerType.BROKER else self.min_version
        return first, self.last_version if unstable else self.max_version

    @property
    def module_name(self) -> str:
        return "ottla.protocol.messages." + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()

    @property
    def request_class(self) -> type[Request]:
        cls: type[Request] = getattr(import_module(self.module_name), self.name + "Request")
        return cls

    @property
    def response_class(self) -> type[Response]:
        cls: type[Response] = getattr(import_module(self.module_name), self.name + "Response")
        return cls


API: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        Api(0, "Produce", 3, 13, 9, BROKER_ONLY),
        Api(1, "Fetch", 4, 18, 12, BOTH),
        Api(2, "ListOffsets", 1, 11, 6, BROKER_ONLY),
        Api(3, "Metadata", 0, 13, 9, BROKER_ONLY),
        Api(8, "OffsetCommit", 2, 10, 8, BROKER_ONLY),
        Api(9, "OffsetFetch", 1, 10, 6, BROKER_ONLY),
        Api(10, "FindCoordinator", 0, 6, 3, BROKER_ONLY),
        Api(11, "JoinGroup", 0, 9, 6, BROKER_ONLY),
        Api(12, "Heartbeat", 0, 4, 4, BROKER_ONLY),
        Api(13, "LeaveGroup", 0, 5, 4, BROKER_ONLY),
        Api(14, "SyncGroup", 0, 5, 4, BROKER_ONLY),
        Api(15, "DescribeGroups", 0, 6, 5, BROKER_ONLY),
        Api(16, "ListGroups", 0, 5, 3, BROKER_ONLY),
        Api(17, "SaslHandshake", 0, 1, NEVER, BOTH),
        Api(18, "ApiVersions", 0, 5, 3, BOTH),
        Api(19, "CreateTopics", 2, 7, 5, BOTH, forwardable=True),
        Api(20, "DeleteTopics", 1, 6, 4, BOTH, forwardable=True),
        Api(21, "DeleteRecords", 0, 2, 2, BROKER_ONLY),
        Api(22, "InitProducerId", 0, 6, 2, BROKER_ONLY, latest_unstable=True),
        Api(23, "OffsetForLeaderEpoch", 2, 4, 4, BROKER_ONLY),
        Api(24, "AddPartitionsToTxn", 0, 5, 3, BROKER_ONLY),
        Api(25, "AddOffsetsToTxn", 0, 4, 3, BROKER_ONLY),
        Api(26, "EndTxn", 0, 5, 3, BROKER_ONLY),
        Api(27, "WriteTxnMarkers", 1, 2, 1, BROKER_ONLY, cluster_action=True),
        Api(28, "TxnOffsetCommit", 0, 6, 3, BROKER_ONLY),
        Api(29, "DescribeAcls", 1, 3, 2, BOTH),
        Api(30, "CreateAcls", 1, 3, 2, BOTH, forwardable=True),
        Api(31, "DeleteAcls", 1, 3, 2, BOTH, forwardable=True),
        Api(32, "DescribeConfigs", 1, 4, 4, BOTH),
        Api(33, "AlterConfigs", 0, 2, 2, BOTH, forwardable=True),
        Api(34, "AlterReplicaLogDirs", 1, 2, 2, BROKER_ONLY),
        Api(35, "DescribeLogDirs", 1, 5, 2, BROKER_ONLY),
        Api(36, "SaslAuthenticate", 0, 2, 2, BOTH),
        Api(37, "CreatePartitions", 0, 3, 2, BOTH, forwardable=True),
        Api(38, "CreateDelegationToken", 1, 3, 2, BOTH, forwardable=True),
        Api(39, "RenewDelegationToken", 1, 2, 2, BOTH, forwardable=True),
        Api(40, "ExpireDelegationToken", 1, 2, 2, BOTH, forwardable=True),
        Api(41, "DescribeDelegationToken", 1, 3, 2, BOTH),
        Api(42, "DeleteGroups", 0, 3, 2, BROKER_ONLY),
        Api(43, "ElectLeaders", 0, 2, 2, BOTH, forwardable=True),
        Api(44, "IncrementalAlterConfigs", 0, 1, 1, BOTH, forwardable=True),
        Api(45, "AlterPartitionReassignments", 0, 1, 0, BOTH, forwardable=True),
        Api(46, "ListPartitionReassignments", 0, 0, 0, BOTH, forwardable=True),
        Api(47, "OffsetDelete", 0, 0, NEVER, BROKER_ONLY),
        Api(48, "DescribeClientQuotas", 0, 1, 1, BROKER_ONLY),
        Api(49, "AlterClientQuotas", 0, 1, 1, BOTH, forwardable=True),
        Api(50, "DescribeUserScramCredentials", 0, 0, 0, BOTH),
        Api(51, "AlterUserScramCredentials", 0, 0, 0, BOTH, forwardable=True),
        Api(52, "Vote", 0, 2, 0, CONTROLLER_ONLY, cluster_action=True),
        Api(53, "BeginQuorumEpoch", 0, 1, 1, CONTROLLER_ONLY, cluster_action=True),
        Api(54, "EndQuorumEpoch", 0, 1, 1, CONTROLLER_ONLY, cluster_action=True),
        Api(55, "DescribeQuorum", 0, 2, 0, BOTH, forwardable=True, cluster_action=True),
        Api(56, "AlterPartition", 2, 3, 0, CONTROLLER_ONLY, cluster_action=True),
        Api(57, "UpdateFeatures", 0, 2, 0, BOTH, forwardable=True, cluster_action=True),
        Api(58, "Envelope", 0, 0, 0, CONTROLLER_ONLY, cluster_action=True),
        Api(59, "FetchSnapshot", 0, 1, 0, CONTROLLER_ONLY),
        Api(60, "DescribeCluster", 0, 2, 0, BOTH),
        Api(61, "DescribeProducers", 0, 0, 0, BROKER_ONLY),
        Api(62, "BrokerRegistration", 0, 4, 0, CONTROLLER_ONLY, cluster_action=True),
        Api(63, "BrokerHeartbeat", 0, 2, 0, CONTROLLER_ONLY, cluster_action=True),
        Api(64, "UnregisterBroker", 0, 0, 0, BOTH, forwardable=True),
        Api(65, "DescribeTransactions", 0, 0, 0, BROKER_ONLY),
        Api(66, "ListTransactions", 0, 2, 0, BROKER_ONLY),
        Api(67, "AllocateProducerIds", 0, 0, 0, CONTROLLER_ONLY, forwardable=True, cluster_action=True),
        Api(68, "ConsumerGroupHeartbeat", 0, 1, 0, BROKER_ONLY),
        Api(69, "ConsumerGroupDescribe", 0, 1, 0, BROKER_ONLY),
        Api(70, "ControllerRegistration", 0, 0, 0, CONTROLLER_ONLY),
        Api(71, "GetTelemetrySubscriptions", 0, 0, 0, BROKER_ONLY),
        Api(72, "PushTelemetry", 0, 0, 0, BROKER_ONLY),
        Api(73, "AssignReplicasToDirs", 0, 0, 0, CONTROLLER_ONLY),
        Api(74, "ListConfigResources", 0, 1, 0, BROKER_ONLY),
        Api(75, "DescribeTopicPartitions", 0, 0, 0, BROKER_ONLY),
        Api(76, "ShareGroupHeartbeat", 1, 1, 0, BROKER_ONLY),
        Api(77, "ShareGroupDescribe", 1, 1, 0, BROKER_ONLY),
        Api(78, "ShareFetch", 1, 2, 0, BROKER_ONLY),
        Api(79, "ShareAcknowledge", 1, 2, 0, BROKER_ONLY),
        Api(80, "AddRaftVoter", 0, 1, 0, BOTH, forwardable=True),
        Api(81, "RemoveRaftVoter", 0, 0, 0, BOTH, forwardable=True),
        Api(82, "UpdateRaftVoter", 0, 0, 0, CONTROLLER_ONLY),
        Api(83, "InitializeShareGroupState", 0, 0, 0, BROKER_ONLY, cluster_action=True),
        Api(84, "ReadShareGroupState", 0, 0, 0, BROKER_ONLY, cluster_action=True),
        Api(85, "WriteShareGroupState", 0, 1, 0, BROKER_ONLY, cluster_action=True),
        Api(86, "DeleteShareGroupState", 0, 0, 0, BROKER_ONLY, cluster_action=True),
        Api(87, "ReadShareGroupStateSummary", 0, 1, 0, BROKER_ONLY, cluster_action=True),
        Api(88, "StreamsGroupHeartbeat", 0, 1, 0, BROKER_ONLY),
        Api(89, "StreamsGroupDescribe", 0, 1, 0, BROKER_ONLY),
        Api(90, "DescribeShareGroupOffsets", 0, 1, 0, BROKER_ONLY),
        Api(91, "AlterShareGroupOffsets", 0, 0, 0, BROKER_ONLY),
        Api(92, "DeleteShareGroupOffsets", 0, 0, 0, BROKER_ONLY),
        Api(93, "StreamsGroupTopologyDescriptionUpdate", 0, 0, 0, BROKER_ONLY),
        Api(94, "UnregisterController", 0, 0, 0, BOTH, forwardable=True),
        Api(10_000, "DescribeShareRecords", 0, 0, 0, BROKER_ONLY),
        Api(10_001, "AlterShareRecords", 0, 0, 0, BROKER_ONLY),
    )
}

API_BY_NAME: Final[dict[str, Api]] = {api.name: api for api in API.values()}

# Keys of requests that Kafka 4.0 removed with ZooKeeper; they stay reserved, and give log lines a name.
REMOVED: Final = {4: "LeaderAndIsr", 5: "StopReplica", 6: "UpdateMetadata", 7: "ControlledShutdown"}


def api_name(key: int) -> str:
    """Return a name for log lines, also for an unknown key."""
    api = API.get(key)
    return api.name if api is not None else REMOVED.get(key, f"unknown API {key}")
