"""Take part in a share group: subscription and liveness in one request.

- v1: the first stable one
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, nested, string, uuid


class ShareGroupHeartbeatRequest(Request, api_key=76, versions="1", flexible="0+"):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(nullable=True, default=None)
    subscribed_topic_names: list[str] | None = array("string", nullable=True, default=None)


class TopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array("int32")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ShareGroupHeartbeatResponse(Response, api_key=76, versions="1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    member_id: str | None = string(nullable=True, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nested(Assignment, nullable=True, default=None)
