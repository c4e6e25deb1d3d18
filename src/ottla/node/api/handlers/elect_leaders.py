"""ElectLeaders: give leadership back to the preferred replicas, or (unclean) to any replica that lives.

Version 1 names the kind of election and has an error for the whole request; 2 is flexible.
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


async def handle(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    if not context.allowed(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.topic_partitions == []:
        return ElectLeadersResponse()
    return await context.node.control(lambda controller: controller.elect_leaders(request))


def failed(request: ElectLeadersRequest, code: int, message: str | None) -> ElectLeadersResponse:
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
