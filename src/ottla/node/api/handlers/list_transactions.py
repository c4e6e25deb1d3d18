"""ListTransactions: list transactional ids that this broker coordinates, by state, producer, age and name.

Version 1 can filter by the duration for which a transaction has been open (KIP-994).
Version 2 can filter by a regular expression that matches the whole id (KIP-1152).
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.coordinator.transaction.requests import ListTransactions
from ottla.coordinator.transaction.transaction_metadata import BY_TITLE
from ottla.node.api.context import RequestContext
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from ottla.protocol.re2_syntax import compile_re2


async def handle(context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    matches = _matcher(request.transactional_id_pattern)
    names = await context.build(dict.fromkeys, request.state_filters)
    wanted = ListTransactions(
        states=frozenset(BY_TITLE[name] for name in names if name in BY_TITLE) if names else None,
        producer_ids=await context.build(frozenset, request.producer_id_filters),
        duration_ms=request.duration_filter,
        matches=matches,
    )
    unknown_states = [name for name in names if name not in BY_TITLE]
    found = await context.broker.coordinators.transactions.service.list(wanted)
    return ListTransactionsResponse(
        unknown_state_filters=unknown_states,
        transaction_states=[
            TransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.title,
            )
            for each in found
            if context.allowed(
                AclOperation.DESCRIBE,
                AclResourceType.TRANSACTIONAL_ID,
                each.transactional_id,
                log_denied=False,
            )
        ],
    )


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    if not pattern:
        return None
    try:
        compiled = compile_re2(pattern)
    except ValueError as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"Transaction ID pattern `{pattern}` is not a valid regular expression: {error}",
        ) from None
    return lambda text: compiled.fullmatch(text) is not None
