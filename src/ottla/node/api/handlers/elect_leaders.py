"""ElectLeaders: make the preferred replicas leaders, or (unclean) any replica that is alive.

Version 1 names the kind of election and has an error for the whole request; 2 is flexible.
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


async def handle(context: ApiRequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    context.require_of_cluster(AclOperation.ALTER)
    if request.topic_partitions == []:
        return ElectLeadersResponse()
    return await context.controller.control(lambda controller: controller.elect_leaders(request))


def failure_response(request: ElectLeadersRequest, code: int, message: str | None) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=int(code),
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=int(code), error_message=message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )
