"""Kafka's error codes and the exceptions that carry them.

An error code is part of the wire contract: its number never changes, and whether it is retriable decides what
a client does next. `ErrorCode` is the one table of number, retriability and default text; code that fails
raises `KafkaError` with a code, which reaches the response unchanged.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ErrorCode(IntEnum):
    """Every error code of Apache Kafka 4.3, with `retriable` and a default `text`."""

    retriable: bool
    text: str

    def __new__(cls, code: int, retriable: bool = False, text: str = "") -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.text = text
        return member

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the error with this number; an unknown number, as of a newer broker, becomes
        UNKNOWN_SERVER_ERROR.
        """
        member = cls._value2member_map_.get(code)
        return member if isinstance(member, ErrorCode) else cls.UNKNOWN_SERVER_ERROR

    UNKNOWN_SERVER_ERROR = -1, False, "The server failed in a way that has no code of its own."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset is below the log start or beyond the log end."
    CORRUPT_MESSAGE = 2, True, "The record batch is damaged: wrong checksum, wrong size or wrong content."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This server does not host the topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This server is not the replica that may serve the request."
    REQUEST_TIMED_OUT = 7, True, "The request was not completed in time."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica of the partition is not available."
    MESSAGE_TOO_LARGE = 10, False, "A record batch is larger than max.message.bytes."
    STALE_CONTROLLER_EPOCH = 11, False, "The controller has moved to another node."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata beside the offset is longer than the server accepts."
    NETWORK_EXCEPTION = 13, True, "The connection ended before the response came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "There is no coordinator to serve this at the moment."
    NOT_COORDINATOR = 16, True, "Another node is the coordinator for this id."
    INVALID_TOPIC_EXCEPTION = (
        17,
        False,
        "The topic name is not valid, or the operation is not allowed on this topic.",
    )
    RECORD_LIST_TOO_LARGE = 18, False, "The records are larger than a segment of the log."
    NOT_ENOUGH_REPLICAS = (
        19,
        True,
        "Fewer replicas are in sync than min.insync.replicas; nothing was appended.",
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "The records were appended, but too few replicas are in sync.",
    )
    INVALID_REQUIRED_ACKS = 21, False, "Required acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The group has moved on from this generation."
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        False,
        "The member shares no protocol with the other members of the group.",
    )
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no member with this id."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside of the range that the broker allows."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorized for this topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorized for this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is outside of the accepted range."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The server does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, False, "This version of the API is not supported."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic with this name already exists."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is below 1 or above the number of usable brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "The configuration is not valid."
    NOT_CONTROLLER = 41, True, "This node is not the active controller."
    INVALID_REQUEST = 42, False, "The request contradicts the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The record format does not allow this request."
    POLICY_VIOLATION = 44, False, "The request breaks a policy of the cluster."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The batch's sequence number does not follow the last one."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The batch's sequence number was seen before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is older than the one known here."
    INVALID_TXN_STATE = 48, False, "The transaction is not in a state that allows this."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is above transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, True, "Another operation on this transaction is still under way."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The marker comes from a coordinator that was replaced."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorized for this transactional id."
    SECURITY_DISABLED = 54, False, "No authorizer is configured."
    OPERATION_NOT_ATTEMPTED = 55, False, "Another part of the request failed, so this part was not tried."
    KAFKA_STORAGE_ERROR = 56, True, "The log directory failed."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "Nothing is known of this producer id; its state may have expired."
    REASSIGNMENT_IN_PROGRESS = 60, False, "A reassignment of the partition is under way."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The principal neither owns nor may renew the token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Tokens cannot be managed over this kind of connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorized for delegation tokens."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The type of the principal is not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no group with this id."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "There is no such fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session is at another epoch."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of the name that this request came in by."
    TOPIC_DELETION_DISABLED = 73, False, "delete.topic.enable is off."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch of the request is older than the server's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch of the request is newer than the server's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The client's version cannot read the compression of the data."
    STALE_BROKER_EPOCH = 77, False, "The broker has registered again since."
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader does not know its high watermark yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id of this response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has as many members as it may have."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that may lead the partition is available."
    ELECTION_NOT_NEEDED = 84, True, "The partition already has the leader that was asked for."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "No reassignment of the partition is under way."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic, so its offsets stay."
    INVALID_RECORD = 87, False, "A record did not pass the broker's checks."
    UNSTABLE_OFFSET_COMMIT = 88, True, "The offset is part of a transaction that is still open."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The quota is used up; try again later."
    PRODUCER_FENCED = 90, False, "A newer producer uses this transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The request names something that does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the rules."
    INCONSISTENT_VOTER_SET = 94, False, "Sender and receiver do not agree on the voters of the quorum."
    INVALID_UPDATE_VERSION = 95, False, "The version to update to is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "The feature levels could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal of a forwarded request could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position is not inside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This server knows no topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "Another live broker uses this id."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker is registered with this id."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic has another id on this server."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session cannot change between topic names and ids."
    INELIGIBLE_REPLICA = 107, False, "A replica of the new in-sync set may not be in it."
    NEW_LEADER_ELECTED = 108, False, "The partition was changed, and its leader with it."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is only in tiered storage now."
    FENCED_MEMBER_EPOCH = 110, False, "The member was fenced: give up all partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still holds this instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support this assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is old; heartbeat for the new one and try again."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request came to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "This kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller with this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is unknown or out of date."
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, False, "The controller refuses the broker's registration."
    TRANSACTION_ABORTABLE = (
        120,
        False,
        "The transaction failed; abort it to go on with this transactional id.",
    )
    INVALID_RECORD_STATE = 121, False, "The record cannot be acknowledged in its present state."
    SHARE_SESSION_NOT_FOUND = 122, True, "There is no such share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session is at another epoch."
    FENCED_STATE_EPOCH = 124, False, "The share group's state is at another epoch."
    INVALID_VOTER_KEY = 125, False, "The voter's id and directory do not match this replica."
    DUPLICATE_VOTER = 126, False, "The voter is already part of the quorum."
    VOTER_NOT_FOUND = 127, False, "The voter is not part of the quorum."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client must start again from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The topology's epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The topology's epoch is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker has as many share sessions as it may have."
    GROUP_DELETION_FAILED = 134, False, "The group could not be deleted; the group's message says why."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = (
        135,
        False,
        "The broker could not take the description of the topology; the message says why.",
    )
    CONTROLLER_ID_NOT_REGISTERED = 136, False, "No controller is registered with this id."


class KafkaError(Exception):
    """A failure that has a code on the wire.

    >>> error = KafkaError(ErrorCode.INVALID_PARTITIONS, "topic 'orders': 0 partitions, at least 1 needed")
    >>> error.code.name, error.retriable
    ('INVALID_PARTITIONS', False)
    """

    __slots__ = ("code", "message")

    code: ErrorCode
    message: str

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = code.text if message is None else message
        super().__init__(code, self.message)

    @property
    def retriable(self) -> bool:
        return self.code.retriable

    def again(self) -> Self:
        """Copy the error, without the frames that it has passed through. An error that is kept, and each time
        that it is raised then, has to be a copy: with its frames it refers to all of their buffers, and
        mostly to itself, so that only a garbage collection would free them.
        """
        copied = type(self).__new__(type(self), *self.args)
        for kind in type(self).__mro__:
            for name in vars(kind).get("__slots__", ()):
                setattr(copied, name, getattr(self, name))
        return copied

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class UnsupportedVersion(KafkaError):
    """A message is not defined for a version, or cannot be expressed in it."""

    __slots__ = ()

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)

    def __reduce__(self) -> tuple[type[UnsupportedVersion], tuple[str]]:
        return type(self), (self.message,)


class TooManyElements(Exception):
    """A request has more elements than may be decoded at once."""


class MalformedMessage(KafkaError):
    """Bytes that are not a message of the version they claim to be; the only error a decoder raises."""

    __slots__ = ()

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)

    def __reduce__(self) -> tuple[type[MalformedMessage], tuple[str]]:
        return type(self), (self.message,)
