"""The Kafka improvement proposals that show on the wire, with the APIs and versions that each needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Kip(NamedTuple):
    number: int
    title: str
    needs: Mapping[str, int]
    """Versions of APIs; served if a node serves them all."""


# fmt: off
KIPS: Final[tuple[Kip, ...]] = (
    Kip(11, "authorization by ACLs", {"CreateAcls": 1, "DeleteAcls": 1, "DescribeAcls": 1}),
    Kip(43, "SASL mechanisms", {"SaslHandshake": 1}),
    Kip(48, "delegation tokens", {
        "CreateDelegationToken": 1, "RenewDelegationToken": 1, "ExpireDelegationToken": 1,
        "DescribeDelegationToken": 1
    }),
    Kip(74, "limits on the size of fetches", {"Fetch": 4}),
    Kip(79, "offsets by time", {"ListOffsets": 1}),
    Kip(98, "idempotent and transactional producers", {
        "InitProducerId": 0, "AddPartitionsToTxn": 0, "AddOffsetsToTxn": 0, "EndTxn": 0,
        "TxnOffsetCommit": 0
    }),
    Kip(101, "leader epochs instead of high watermarks for truncation", {"OffsetForLeaderEpoch": 2}),
    Kip(107, "deletion of records before an offset", {"DeleteRecords": 0}),
    Kip(110, "zstd", {"Produce": 7, "Fetch": 10}),
    Kip(113, "several data directories, and moves between them", {
        "AlterReplicaLogDirs": 1, "DescribeLogDirs": 1
    }),
    Kip(124, "request quotas", {"DescribeClientQuotas": 0, "AlterClientQuotas": 0}),
    Kip(133, "describing and changing settings", {"DescribeConfigs": 1, "AlterConfigs": 0}),
    Kip(152, "errors of SASL authentication", {"SaslAuthenticate": 0}),
    Kip(195, "adding partitions", {"CreatePartitions": 0}),
    Kip(226, "changing a broker's settings while it runs", {"DescribeConfigs": 1, "AlterConfigs": 0}),
    Kip(227, "incremental fetch sessions", {"Fetch": 7}),
    Kip(229, "deleting groups", {"DeleteGroups": 0}),
    Kip(320, "detection of truncated logs by clients", {"OffsetForLeaderEpoch": 3, "Fetch": 9}),
    Kip(339, "changing single settings", {"IncrementalAlterConfigs": 0}),
    Kip(345, "static members of groups", {"JoinGroup": 5, "LeaveGroup": 3}),
    Kip(360, "producers that recover by a new epoch", {"InitProducerId": 3}),
    Kip(394, "member ids before joining", {"JoinGroup": 4}),
    Kip(430, "authorized operations in descriptions", {"DescribeGroups": 3, "Metadata": 8}),
    Kip(447, "one transactional producer for many partitions", {"TxnOffsetCommit": 3, "OffsetFetch": 7}),
    Kip(455, "reassignment of partitions", {
        "AlterPartitionReassignments": 0, "ListPartitionReassignments": 0
    }),
    Kip(460, "election of leaders", {"ElectLeaders": 1}),
    Kip(464, "the broker's defaults for new topics", {"CreateTopics": 4}),
    Kip(467, "errors of single records", {"Produce": 8}),
    Kip(482, "tagged fields", {"ApiVersions": 3}),
    Kip(496, "deleting committed offsets", {"OffsetDelete": 0}),
    Kip(511, "names and versions of clients", {"ApiVersions": 3}),
    Kip(516, "topic ids", {"Metadata": 10, "Fetch": 13, "DeleteTopics": 6}),
    Kip(518, "listing groups by state", {"ListGroups": 4}),
    Kip(525, "settings in the answer to a new topic", {"CreateTopics": 5}),
    Kip(546, "client quotas", {"DescribeClientQuotas": 0, "AlterClientQuotas": 0}),
    Kip(554, "SCRAM credentials", {"DescribeUserScramCredentials": 0, "AlterUserScramCredentials": 0}),
    Kip(569, "types and documentation of settings", {"DescribeConfigs": 3}),
    Kip(584, "feature levels", {"UpdateFeatures": 0, "ApiVersions": 3}),
    Kip(595, "the quorum of controllers", {
        "Vote": 0, "BeginQuorumEpoch": 0, "EndQuorumEpoch": 0, "DescribeQuorum": 0
    }),
    Kip(630, "snapshots of the metadata, for other nodes", {"FetchSnapshot": 0}),
    Kip(664, "finding and ending hanging transactions", {
        "DescribeProducers": 0, "DescribeTransactions": 0, "ListTransactions": 0, "WriteTxnMarkers":
        1
    }),
    Kip(699, "several coordinators in one request", {"FindCoordinator": 4}),
    Kip(700, "description of the cluster", {"DescribeCluster": 0}),
    Kip(709, "offsets of several groups in one request", {"OffsetFetch": 8}),
    Kip(714, "metrics of clients", {"GetTelemetrySubscriptions": 0, "PushTelemetry": 0}),
    Kip(734, "the offset of the greatest timestamp", {"ListOffsets": 7}),
    Kip(800, "reasons for joining and leaving", {"JoinGroup": 8, "LeaveGroup": 5}),
    Kip(827, "sizes of data directories", {"DescribeLogDirs": 4}),
    Kip(836, "how far members of the quorum lag", {"DescribeQuorum": 1}),
    Kip(848, "the consumer protocol: groups balanced by the broker", {
        "ConsumerGroupHeartbeat": 0, "ConsumerGroupDescribe": 0
    }),
    Kip(853, "changing the voters of the quorum", {
        "AddRaftVoter": 0, "RemoveRaftVoter": 0, "UpdateRaftVoter": 0
    }),
    Kip(858, "data directories under KRaft", {"AssignReplicasToDirs": 0}),
    Kip(890, "transactions that late messages cannot enter", {
        "Produce": 12, "EndTxn": 5, "TxnOffsetCommit": 5, "AddPartitionsToTxn": 4
    }),
    Kip(932, "share groups", {
        "ShareGroupHeartbeat": 1, "ShareGroupDescribe": 1, "ShareFetch": 1, "ShareAcknowledge": 1
    }),
    Kip(939, "two-phase commit", {"InitProducerId": 6}),
    Kip(951, "the new leader in errors", {"Produce": 10, "Fetch": 16}),
    Kip(966, "eligible leader replicas", {"DescribeTopicPartitions": 0}),
    Kip(994, "transactions by duration", {"ListTransactions": 1}),
    Kip(1043, "all types of groups in lists", {"ListGroups": 5, "DescribeGroups": 6}),
    Kip(1071, "streams groups", {"StreamsGroupHeartbeat": 0, "StreamsGroupDescribe": 0}),
    Kip(1142, "listing what has settings", {"ListConfigResources": 1}),
    Kip(1152, "transactions by pattern", {"ListTransactions": 2}),
)
# fmt: on
