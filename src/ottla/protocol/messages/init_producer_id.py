"""Get a producer id and epoch; with a transactional id, end what an older producer left.

- v2: flexible
- v3: a producer continues with its own id and epoch
- v4: PRODUCER_FENCED is possible
- v5: TRANSACTION_ABORTABLE is possible
- v6, not stable: two-phase commit
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, boolean, int16, int32, int64, string


class InitProducerIdRequest(Request, api_key=22, versions="0-6", flexible="2+", latest_unstable=True):
    transactional_id: str | None = string(nullable=True)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(versions="3+", default=-1)
    producer_epoch: int = int16(versions="3+", default=-1)
    enable_2pc: bool = boolean(versions="6+")
    keep_prepared_txn: bool = boolean(versions="6+")


class InitProducerIdResponse(Response, api_key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64(versions="6+", default=-1)
    ongoing_txn_producer_epoch: int = int16(versions="6+", default=-1)
