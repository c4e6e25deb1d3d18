"""Tell the controller that a broker lives, and what it wants.

- v1: log directories that failed
- v2: cordoned log directories
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, array, boolean, int16, int32, int64


class BrokerHeartbeatRequest(Request, api_key=63, versions="0-2", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64()
    want_fence: bool = boolean()
    want_shut_down: bool = boolean()
    offline_log_dirs: list[bytes] = array("uuid", versions="1+", tag=0)
    cordoned_log_dirs: list[bytes] | None = array("uuid", versions="2+", nullable=True, tag=1, default=None)


class BrokerHeartbeatResponse(Response, api_key=63, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    is_caught_up: bool = boolean()
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean()
