"""Commit or abort a transaction.

- v2: PRODUCER_FENCED is possible
- v3: flexible
- v4: TRANSACTION_ABORTABLE is possible
- v5: the epoch is bumped with every transaction, and returned in the response
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, boolean, int16, int32, int64, string


class EndTxnRequest(Request, api_key=26, versions="0-5", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Response, api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(versions="5+", default=-1, ignorable=True)
    producer_epoch: int = int16(versions="5+", default=-1, ignorable=True)
