"""Ask which APIs and versions the server has; the first request of a connection.

A version that the server does not know is answered in version 0 with UNSUPPORTED_VERSION and the range of
this very API. The header of the response has no tagged fields in any version.

- v1: throttle time
- v3: flexible; name and version of the client; features
- v4: features whose lowest level is 0 are reported too
- v5: the cluster and the node that the client means to reach; REBOOTSTRAP_REQUIRED (KIP-1242)
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Request, api_key=18, versions="0-5", flexible="3+"):
    client_software_name: str = string(versions="3+", ignorable=True)
    client_software_version: str = string(versions="3+", ignorable=True)
    cluster_id: str | None = string(versions="5+", nullable=True, default=None, ignorable=True)
    node_id: int = int32(versions="5+", default=-1, ignorable=True)


class ApiVersion(Struct):
    api_key: int = int16(map_key=True)
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Struct):
    name: str = string(map_key=True)
    min_version: int = int16()
    max_version: int = int16()


class FinalizedFeatureKey(Struct):
    name: str = string(map_key=True)
    max_version_level: int = int16()
    min_version_level: int = int16()


class ApiVersionsResponse(Response, api_key=18, versions="0-5", flexible="3+"):
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, versions="3+", tag=0, ignorable=True
    )
    finalized_features_epoch: int = int64(versions="3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, versions="3+", tag=2, ignorable=True
    )
    zk_migration_ready: bool = boolean(versions="3+", tag=3, ignorable=True)
