"""DescribeUserScramCredentials: which users have credentials of which mechanisms, and their iterations.

Without users it describes all. Keys and salts are in no response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable

from ottla.metadata.image.entities import ScramUser
from ottla.node.api.context import RequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.steps import Steps


def handle(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse | Awaitable[DescribeUserScramCredentialsResponse]:
    context.require_of_cluster(AclOperation.DESCRIBE)
    return context.run_bulky(_respond(context, request), len(request.users or context.image.scram))


def _respond(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> Steps[DescribeUserScramCredentialsResponse]:
    if request.users:
        users = Counter(user.name for user in request.users)
    else:
        users = Counter(dict.fromkeys((user.name for user in context.image.scram), 1))
    response = DescribeUserScramCredentialsResponse()
    for name, count in users.items():
        response.results.append(_describe(context, name, count))
        yield
    return response


def failure_response(
    request: DescribeUserScramCredentialsRequest, code: int, message: str | None
) -> DescribeUserScramCredentialsResponse:
    """As Kafka's: a result for each user, without its name."""
    return DescribeUserScramCredentialsResponse(
        error_code=int(code),
        error_message=message,
        results=[
            DescribeUserScramCredentialsResult(error_code=int(code), error_message=None)
            for _ in request.users or ()
        ],
    )


def _describe(context: RequestContext, name: str, count: int) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name)
    credentials = context.image.scram
    if count > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
        return result
    for mechanism in ScramMechanism:
        credential = credentials.get(ScramUser(mechanism, name))
        if credential is not None:
            result.credential_infos.append(
                CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
            )
    if not result.credential_infos:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
    return result
