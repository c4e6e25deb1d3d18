"""Update the addresses and versions of a voter."""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, nested, string, uint16, uuid


class Listener(Struct):
    name: str = string(map_key=True)
    host: str = string()
    port: int = uint16()


class KRaftVersionFeature(Struct):
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class UpdateRaftVoterRequest(Request, api_key=82, versions="0", flexible="0+"):
    cluster_id: str | None = string(nullable=True)
    current_leader_epoch: int = int32()
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    listeners: list[Listener] = array(Listener)
    kraft_version_feature: KRaftVersionFeature = nested(KRaftVersionFeature)


class CurrentLeader(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)
    host: str = string()
    port: int = int32()


class UpdateRaftVoterResponse(Response, api_key=82, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    current_leader: CurrentLeader = nested(CurrentLeader, tag=0)
