"""Describe classic groups and their members.

- v1: throttle time
- v3: authorized operations
- v4: static members
- v5: flexible
- v6: GROUP_ID_NOT_FOUND for groups that do not exist
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, binary, boolean, int16, int32, string


class DescribeGroupsRequest(Request, api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = array("string")
    include_authorized_operations: bool = boolean(versions="3+")


class DescribedGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(versions="4+", nullable=True, default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = binary()
    member_assignment: bytes = binary()


class DescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = string(versions="6+", nullable=True, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(versions="3+", default=-(2**31))


class DescribeGroupsResponse(Response, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)
