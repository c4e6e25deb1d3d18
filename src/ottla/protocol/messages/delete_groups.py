"""Delete groups that have no members.

- v2: flexible
- v3: why a group was not deleted; GROUP_DELETION_FAILED
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string


class DeleteGroupsRequest(Request, api_key=42, versions="0-3", flexible="2+"):
    groups_names: list[str] = array("string")


class DeletableGroupResult(Struct):
    group_id: str = string(map_key=True)
    error_code: int = int16()
    error_message: str | None = string(versions="3+", nullable=True, default=None, ignorable=True)


class DeleteGroupsResponse(Response, api_key=42, versions="0-3", flexible="2+"):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
