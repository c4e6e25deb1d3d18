"""Delete topics.

- v3: TOPIC_DELETION_DISABLED is possible
- v4: flexible
- v5: error messages; THROTTLING_QUOTA_EXCEEDED is possible
- v6: topics by id
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string, uuid


class DeleteTopicState(Struct):
    name: str | None = string(nullable=True, default=None)
    topic_id: bytes = uuid()


class DeleteTopicsRequest(Request, api_key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = array(DeleteTopicState, versions="6+")
    topic_names: list[str] = array("string", versions="0-5", ignorable=True)
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = string(nullable="6+", map_key=True)
    topic_id: bytes = uuid(versions="6+", ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(versions="5+", nullable=True, default=None, ignorable=True)


class DeleteTopicsResponse(Response, api_key=20, versions="1-6", flexible="4+"):
    throttle_time_ms: int = int32()
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
