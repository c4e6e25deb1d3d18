"""List the groups that a broker coordinates.

- v1: throttle time
- v3: flexible
- v4: states, and a filter by them
- v5: types, and a filter by them
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string


class ListGroupsRequest(Request, api_key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = array("string", versions="4+")
    types_filter: list[str] = array("string", versions="5+")


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(versions="4+", ignorable=True)
    group_type: str = string(versions="5+", ignorable=True)


class ListGroupsResponse(Response, api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
