"""The table of APIs: which requests a node serves, on which listeners, and which module handles each.

ApiVersions announces the APIs in `ROUTES` (Kafka's `ApiVersionManager`), and a node answers no others. A
route names the module of its handler as text: the module is imported when its API is first asked for, so a
node starts without the handlers that it may never need. `docs/compatibility.md` is made from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Final, TypeAlias

from ottla.node.api.services import ApiServices
from ottla.protocol.api import API, API_BY_NAME, BOTH, BROKER_ONLY, CONTROLLER_ONLY, Api, ListenerType
from ottla.protocol.schema import Request, Response

Reply: TypeAlias = Response | Awaitable[Response | None] | None
"""The response, or an awaitable of it; None where the request gets no response (Produce with acks=0)."""

Handler: TypeAlias = Callable[[Any, Any], Reply]
"""`handle(context, request)` of a handler's module."""

FailureResponse: TypeAlias = Callable[[Any, int, str | None], Response | None]
"""`failure_response(request, error code, message)`: the response that says that the whole request failed;
None where no response can say it."""

LocalDecision: TypeAlias = Callable[[ApiServices, Any, int], Awaitable[Response]]
"""`decide(services, request, version)`: the answer of the active controller on this node to a request of this
node's own broker."""


class Forwarding(Enum):
    """What a broker other than the active controller does with a request that the controller decides."""

    NONE = "the broker answers it itself"
    WHOLE = "the dispatcher forwards it as it came, in an Envelope"
    PART = "the handler decides a part and forwards the rest"


class OnFailure(Enum):
    """How a client learns that its whole request failed."""

    ERROR_CODE = "the error code, and the message if there is one, at the top of the response"
    EACH_PART = "the error code for each part that the request names, and at the top if there is a place"
    HANDLER = "the handler's module builds the response, by its `failure_response`"
    CLOSE = "the response has no place for it, so the connection is closed"


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One API as this node serves it."""

    name: str
    # The module in `handlers/`.
    handler: str
    listeners: frozenset[ListenerType]
    _: KW_ONLY
    # The module that handles the request on a controller's listener, where that is another one.
    controller_handler: str | None = None
    forwarding: Forwarding = Forwarding.NONE
    on_failure: OnFailure = OnFailure.ERROR_CODE
    # Whether responses follow from the metadata image alone, unless they wait for it to change.
    cached: bool = False
    # Whether the last version is served although Apache Kafka 4.3 holds it back (decision 0030).
    serves_unstable_version: bool = False
    # Whether a broker announces it only if one of its extensions asks for that.
    is_optional: bool = False
    # Whether the module has a `decide` for what this node's broker asks of this node's controller.
    decides_locally: bool = False
    # Modules of parts that are made when the handler first needs them, to be imported with it.
    parts: tuple[str, ...] = ()

    @property
    def api(self) -> Api:
        return API_BY_NAME[self.name]

    def module_name(self, listener: ListenerType) -> str:
        name = self.handler
        if listener is ListenerType.CONTROLLER and self.controller_handler is not None:
            name = self.controller_handler
        return f"ottla.node.api.handlers.{name}"

    def max_version(self, *, unstable: bool) -> int:
        """The last version that is served; `unstable` is `unstable.api.versions.enable`."""
        unstable = unstable or self.serves_unstable_version
        return self.api.last_version if unstable else self.api.max_version

    def announced_versions(self, listener: ListenerType, *, unstable: bool) -> tuple[int, int]:
        """The first and last version as ApiVersions reports them."""
        return self.api.announced_versions(listener, unstable=unstable or self.serves_unstable_version)

    def load_handler(self, listener: ListenerType) -> Handler:
        """Import the module of the handler, and those of the parts that it will need."""
        for part in self.parts:
            import_module(part)
        handler: Handler = import_module(self.module_name(listener)).handle
        return handler

    def load_failure_response(self, listener: ListenerType) -> FailureResponse:
        if self.on_failure is OnFailure.HANDLER:
            failure_response: FailureResponse = import_module(self.module_name(listener)).failure_response
            return failure_response
        if self.on_failure is OnFailure.EACH_PART:
            from ottla.node.api.response_errors import error_for_each_part

            return error_for_each_part
        return _top_level_error if self.on_failure is OnFailure.ERROR_CODE else _no_response

    def load_decision(self) -> LocalDecision:
        assert self.decides_locally, f"{self.api.name} has no decision of its own"
        decide: LocalDecision = import_module(self.module_name(ListenerType.CONTROLLER)).decide
        return decide


def _top_level_error(request: Request, code: int, message: str | None) -> Response:
    response_class = API[request.API_KEY].response_class
    values: dict[str, Any] = {"error_code": int(code)}
    if any(field.name == "error_message" for field in response_class.FIELDS):
        values["error_message"] = message
    return response_class(**values)


def _no_response(_request: Request, _code: int, _message: str | None) -> None:
    return None


_GROUPS: Final = ("ottla.coordinator.group.service", "ottla.node.config.coordinator_settings")
_SHARE_GROUPS: Final = (
    *_GROUPS,
    "ottla.node.coordinators.partition_metadata_client",
    "ottla.node.coordinators.share_groups",
    "ottla.node.share.persister",
)
_SHARE_STATE: Final = ("ottla.coordinator.share.service", "ottla.node.config.coordinator_settings")
_TRANSACTIONS: Final = (
    "ottla.coordinator.transaction.service",
    "ottla.node.config.coordinator_settings",
    "ottla.node.coordinators.add_partitions_to_txn",
    "ottla.node.coordinators.transaction_marker_channel_manager",
)
_OFFSETS_OF_TRANSACTIONS: Final = (*_GROUPS, *_TRANSACTIONS)
_TELEMETRY: Final = (
    "ottla.node.config.otlp",
    "ottla.node.telemetry.client_metrics_manager",
    "ottla.node.telemetry.client_metrics_store",
    "ottla.node.telemetry.client_telemetry",
    "ottla.node.telemetry.otlp_forwarder",
)

_WHOLE: Final = Forwarding.WHOLE
_PART: Final = Forwarding.PART
_HANDLER: Final = OnFailure.HANDLER
_EACH: Final = OnFailure.EACH_PART
_CLOSE: Final = OnFailure.CLOSE

ROUTES: Final[dict[int, ApiRoute]] = {
    route.api.key: route
    for route in (
        # Records
        ApiRoute("Produce", "produce", BROKER_ONLY, on_failure=_HANDLER),
        # On a controller's listener a Fetch reads the metadata log.
        ApiRoute("Fetch", "fetch", BOTH, controller_handler="fetch_metadata", on_failure=_HANDLER),
        ApiRoute("ListOffsets", "list_offsets", BROKER_ONLY, on_failure=_EACH),
        ApiRoute("OffsetForLeaderEpoch", "offset_for_leader_epoch", BROKER_ONLY, on_failure=_CLOSE),
        ApiRoute("DeleteRecords", "delete_records", BROKER_ONLY, on_failure=_CLOSE),
        # The cluster as clients see it
        ApiRoute("ApiVersions", "api_versions", BOTH),
        # Before a client is known its listener answers these two; afterwards they are out of place.
        ApiRoute("SaslHandshake", "sasl_handshake", BOTH),
        ApiRoute("SaslAuthenticate", "sasl_authenticate", BOTH),
        ApiRoute("Metadata", "metadata", BROKER_ONLY, on_failure=_HANDLER, cached=True),
        ApiRoute("DescribeCluster", "describe_cluster", BOTH),
        ApiRoute("DescribeTopicPartitions", "describe_topic_partitions", BROKER_ONLY, on_failure=_EACH),
        ApiRoute("FindCoordinator", "find_coordinator", BROKER_ONLY, on_failure=_HANDLER),
        # Groups
        ApiRoute("JoinGroup", "join_group", BROKER_ONLY, parts=_GROUPS),
        ApiRoute("SyncGroup", "sync_group", BROKER_ONLY, on_failure=_HANDLER, parts=_GROUPS),
        ApiRoute("Heartbeat", "heartbeat", BROKER_ONLY, on_failure=_HANDLER, parts=_GROUPS),
        ApiRoute("LeaveGroup", "leave_group", BROKER_ONLY, parts=_GROUPS),
        ApiRoute("ConsumerGroupHeartbeat", "consumer_group_heartbeat", BROKER_ONLY, parts=_GROUPS),
        ApiRoute("OffsetCommit", "offset_commit", BROKER_ONLY, on_failure=_EACH, parts=_GROUPS),
        ApiRoute("OffsetFetch", "offset_fetch", BROKER_ONLY, parts=_GROUPS),
        ApiRoute("OffsetDelete", "offset_delete", BROKER_ONLY, parts=_GROUPS),
        ApiRoute("ListGroups", "list_groups", BROKER_ONLY, parts=_GROUPS),
        ApiRoute("DescribeGroups", "describe_groups", BROKER_ONLY, on_failure=_CLOSE, parts=_GROUPS),
        ApiRoute(
            "ConsumerGroupDescribe", "consumer_group_describe", BROKER_ONLY, on_failure=_EACH, parts=_GROUPS
        ),
        ApiRoute("StreamsGroupHeartbeat", "streams_group_heartbeat", BROKER_ONLY, parts=_GROUPS),
        ApiRoute(
            "StreamsGroupDescribe", "streams_group_describe", BROKER_ONLY, on_failure=_EACH, parts=_GROUPS
        ),
        ApiRoute(
            "StreamsGroupTopologyDescriptionUpdate",
            "streams_group_topology_description_update",
            BROKER_ONLY,
            parts=_GROUPS,
        ),
        ApiRoute("DeleteGroups", "delete_groups", BROKER_ONLY, on_failure=_EACH, parts=_SHARE_GROUPS),
        ApiRoute("ShareGroupHeartbeat", "share_group_heartbeat", BROKER_ONLY, parts=_GROUPS),
        ApiRoute("ShareGroupDescribe", "share_group_describe", BROKER_ONLY, on_failure=_EACH, parts=_GROUPS),
        ApiRoute(
            "DescribeShareGroupOffsets",
            "describe_share_group_offsets",
            BROKER_ONLY,
            on_failure=_EACH,
            parts=_SHARE_GROUPS,
        ),
        ApiRoute("AlterShareGroupOffsets", "alter_share_group_offsets", BROKER_ONLY, parts=_SHARE_GROUPS),
        ApiRoute("DeleteShareGroupOffsets", "delete_share_group_offsets", BROKER_ONLY, parts=_SHARE_GROUPS),
        # Share groups, to the leaders of partitions
        ApiRoute("ShareFetch", "share_fetch", BROKER_ONLY),
        ApiRoute("ShareAcknowledge", "share_acknowledge", BROKER_ONLY),
        ApiRoute("DescribeShareRecords", "describe_share_records", BROKER_ONLY),
        ApiRoute("AlterShareRecords", "alter_share_records", BROKER_ONLY),
        # The state of share groups, between brokers
        ApiRoute(
            "InitializeShareGroupState",
            "initialize_share_group_state",
            BROKER_ONLY,
            on_failure=_EACH,
            parts=_SHARE_STATE,
        ),
        ApiRoute(
            "ReadShareGroupState", "read_share_group_state", BROKER_ONLY, on_failure=_EACH, parts=_SHARE_STATE
        ),
        ApiRoute(
            "WriteShareGroupState",
            "write_share_group_state",
            BROKER_ONLY,
            on_failure=_EACH,
            parts=_SHARE_STATE,
        ),
        ApiRoute(
            "DeleteShareGroupState",
            "delete_share_group_state",
            BROKER_ONLY,
            on_failure=_EACH,
            parts=_SHARE_STATE,
        ),
        ApiRoute(
            "ReadShareGroupStateSummary",
            "read_share_group_state_summary",
            BROKER_ONLY,
            on_failure=_EACH,
            parts=_SHARE_STATE,
        ),
        # Transactions
        ApiRoute(
            "InitProducerId",
            "init_producer_id",
            BROKER_ONLY,
            on_failure=_HANDLER,
            serves_unstable_version=True,
        ),
        ApiRoute(
            "AddPartitionsToTxn",
            "add_partitions_to_txn",
            BROKER_ONLY,
            on_failure=_HANDLER,
            parts=_TRANSACTIONS,
        ),
        ApiRoute("AddOffsetsToTxn", "add_offsets_to_txn", BROKER_ONLY, parts=_OFFSETS_OF_TRANSACTIONS),
        ApiRoute(
            "TxnOffsetCommit",
            "txn_offset_commit",
            BROKER_ONLY,
            on_failure=_EACH,
            parts=_OFFSETS_OF_TRANSACTIONS,
        ),
        ApiRoute("EndTxn", "end_txn", BROKER_ONLY, parts=_TRANSACTIONS),
        ApiRoute("WriteTxnMarkers", "write_txn_markers", BROKER_ONLY, on_failure=_HANDLER),
        ApiRoute("ListTransactions", "list_transactions", BROKER_ONLY, parts=_TRANSACTIONS),
        ApiRoute(
            "DescribeTransactions",
            "describe_transactions",
            BROKER_ONLY,
            on_failure=_EACH,
            parts=_TRANSACTIONS,
        ),
        ApiRoute("DescribeProducers", "describe_producers", BROKER_ONLY, on_failure=_CLOSE),
        # Topics and partitions
        ApiRoute(
            "CreateTopics",
            "create_topics",
            BOTH,
            forwarding=_WHOLE,
            on_failure=_EACH,
            decides_locally=True,
        ),
        ApiRoute("DeleteTopics", "delete_topics", BOTH, forwarding=_WHOLE, on_failure=_EACH),
        ApiRoute("CreatePartitions", "create_partitions", BOTH, forwarding=_WHOLE, on_failure=_EACH),
        ApiRoute("ElectLeaders", "elect_leaders", BOTH, forwarding=_WHOLE, on_failure=_EACH),
        ApiRoute(
            "AlterPartitionReassignments",
            "alter_partition_reassignments",
            BOTH,
            forwarding=_WHOLE,
            on_failure=_EACH,
        ),
        ApiRoute("ListPartitionReassignments", "list_partition_reassignments", BOTH, forwarding=_WHOLE),
        # Settings
        ApiRoute("DescribeConfigs", "describe_configs", BOTH, on_failure=_CLOSE),
        ApiRoute("AlterConfigs", "alter_configs", BOTH, forwarding=_PART, on_failure=_EACH),
        ApiRoute(
            "IncrementalAlterConfigs",
            "incremental_alter_configs",
            BOTH,
            forwarding=_PART,
            on_failure=_EACH,
        ),
        ApiRoute("ListConfigResources", "list_config_resources", BROKER_ONLY),
        ApiRoute(
            "DescribeUserScramCredentials", "describe_user_scram_credentials", BOTH, on_failure=_HANDLER
        ),
        ApiRoute(
            "AlterUserScramCredentials",
            "alter_user_scram_credentials",
            BOTH,
            forwarding=_WHOLE,
            on_failure=_HANDLER,
        ),
        ApiRoute("DescribeClientQuotas", "describe_client_quotas", BROKER_ONLY, on_failure=_HANDLER),
        ApiRoute("AlterClientQuotas", "alter_client_quotas", BOTH, forwarding=_WHOLE, on_failure=_EACH),
        ApiRoute("UpdateFeatures", "update_features", BOTH, forwarding=_WHOLE),
        # The metrics of clients
        ApiRoute(
            "GetTelemetrySubscriptions",
            "get_telemetry_subscriptions",
            BROKER_ONLY,
            is_optional=True,
            parts=_TELEMETRY,
        ),
        ApiRoute("PushTelemetry", "push_telemetry", BROKER_ONLY, is_optional=True, parts=_TELEMETRY),
        # ACLs
        ApiRoute("DescribeAcls", "describe_acls", BOTH),
        ApiRoute("CreateAcls", "create_acls", BOTH, forwarding=_WHOLE, on_failure=_EACH),
        ApiRoute("DeleteAcls", "delete_acls", BOTH, forwarding=_WHOLE, on_failure=_EACH),
        # Delegation tokens
        ApiRoute("CreateDelegationToken", "create_delegation_token", BOTH, forwarding=_PART),
        ApiRoute("RenewDelegationToken", "renew_delegation_token", BOTH, forwarding=_PART),
        ApiRoute("ExpireDelegationToken", "expire_delegation_token", BOTH, forwarding=_PART),
        ApiRoute("DescribeDelegationToken", "describe_delegation_token", BOTH),
        # Log directories
        ApiRoute("DescribeLogDirs", "describe_log_dirs", BROKER_ONLY),
        ApiRoute("AlterReplicaLogDirs", "alter_replica_log_dirs", BROKER_ONLY, on_failure=_CLOSE),
        ApiRoute("AssignReplicasToDirs", "assign_replicas_to_dirs", CONTROLLER_ONLY, decides_locally=True),
        # Brokers to the controller
        ApiRoute("BrokerRegistration", "broker_registration", CONTROLLER_ONLY, decides_locally=True),
        ApiRoute("BrokerHeartbeat", "broker_heartbeat", CONTROLLER_ONLY, decides_locally=True),
        ApiRoute("UnregisterBroker", "unregister_broker", BOTH, forwarding=_WHOLE),
        ApiRoute("UnregisterController", "unregister_controller", BOTH, forwarding=_WHOLE),
        ApiRoute("ControllerRegistration", "controller_registration", CONTROLLER_ONLY, decides_locally=True),
        ApiRoute("AlterPartition", "alter_partition", CONTROLLER_ONLY, decides_locally=True),
        ApiRoute("AllocateProducerIds", "allocate_producer_ids", CONTROLLER_ONLY, decides_locally=True),
        ApiRoute("Envelope", "envelope", CONTROLLER_ONLY, decides_locally=True),
        # The quorum
        ApiRoute("Vote", "vote", CONTROLLER_ONLY),
        ApiRoute("BeginQuorumEpoch", "begin_quorum_epoch", CONTROLLER_ONLY),
        ApiRoute("EndQuorumEpoch", "end_quorum_epoch", CONTROLLER_ONLY),
        ApiRoute("FetchSnapshot", "fetch_snapshot", CONTROLLER_ONLY),
        ApiRoute("DescribeQuorum", "describe_quorum", BOTH, forwarding=_WHOLE),
        ApiRoute("AddRaftVoter", "add_raft_voter", BOTH, forwarding=_WHOLE),
        ApiRoute("RemoveRaftVoter", "remove_raft_voter", BOTH, forwarding=_WHOLE),
        ApiRoute("UpdateRaftVoter", "update_raft_voter", CONTROLLER_ONLY),
    )
}
