"""Replace the whole configuration of resources; IncrementalAlterConfigs is the better way.

- v2: flexible
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    name: str = string(map_key=True)
    value: str | None = string(nullable=True)


class AlterConfigsResource(Struct):
    resource_type: int = int8(map_key=True)
    resource_name: str = string(map_key=True)
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Request, api_key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    resource_type: int = int8()
    resource_name: str = string()


class AlterConfigsResponse(Response, api_key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
