"""ReadShareGroupStateSummary: read the epochs and start offsets of share partitions, without their batches.

The group coordinator sends it to describe the offsets of a share group; it fences no leader.

Version 1 has the number of completed deliveries (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.share.persister import StateSummary
from ottla.coordinator.share.service import ShareCoordinatorService
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import respond
from ottla.protocol.messages.read_share_group_state_summary import (
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
)
from ottla.protocol.schema import Response


def handle(
    context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> Response | Awaitable[Response]:
    return respond(
        context,
        request,
        request.group_id,
        request.topics,
        lambda part: part.leader_epoch,
        ShareCoordinatorService.read_summary,
        _fill_in,
    )


def _fill_in(part: PartitionResult, summary: StateSummary) -> None:
    part.state_epoch = summary.state_epoch
    part.leader_epoch = summary.leader_epoch
    part.start_offset = summary.start_offset
    part.delivery_complete_count = summary.delivery_complete_count
