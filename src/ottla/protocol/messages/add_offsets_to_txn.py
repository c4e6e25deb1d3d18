"""Add the offsets of a group to a transaction.

- v2: PRODUCER_FENCED is possible
- v3: flexible
- v4: TRANSACTION_ABORTABLE is possible
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, int16, int32, int64, string


class AddOffsetsToTxnRequest(Request, api_key=25, versions="0-4", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Response, api_key=25, versions="0-4", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
