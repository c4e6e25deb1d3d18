"""Encode responses, also those to requests that failed as a whole."""

from __future__ import annotations

import logging

from ottla.node.api.context import ApiRequestContext
from ottla.node.api.routes import FailureResponse
from ottla.node.network.connection import Parts, ProtocolViolation
from ottla.protocol.api import API, API_VERSIONS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.headers import response_parts
from ottla.protocol.schema import Request, Response, drop_newer_fields

log = logging.getLogger(__name__)


def encode(context: ApiRequestContext, response: Response) -> Parts:
    """Encode a response; ProtocolViolation if that cannot be done."""
    try:
        return response_parts(context.api, context.version, context.correlation_id, response)
    except Exception as error:
        raise not_encodable(context, response, error) from None


def not_encodable(context: ApiRequestContext, response: Response, error: Exception) -> ProtocolViolation:
    """Log a fault of the node's, and return what closes the connection instead of a response."""
    log.error("%s version %d: %r cannot be sent", context.api.name, context.version, response, exc_info=error)
    return ProtocolViolation(f"its {context.api.name} request has no proper answer")


def unsupported_api_versions() -> Response:
    """The response to a version of ApiVersions that is not served: the range that is, for version 0."""
    from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

    api = API[API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)],
    )


def make_failure_response(
    context: ApiRequestContext, failure_response: FailureResponse, request: Request, error: Exception
) -> Response:
    """Make the response that says that the whole request failed. An error other than KafkaError is a fault of
    the node's and is logged with its traceback. ProtocolViolation where no response can say it.
    """
    if isinstance(error, ProtocolViolation):
        raise error
    if isinstance(error, KafkaError):
        code, message = error.code, error.message
    else:
        log.error(
            "%s version %d of client %r failed",
            context.api.name,
            context.version,
            context.client_id,
            exc_info=error,
        )
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
    response = failure_response(request, code, message)
    if response is None:
        raise ProtocolViolation(f"its {context.api.name} request failed: {code.name} {message or ''}")
    drop_newer_fields(response, context.version)
    return response


def downgrade_fenced_error(error: KafkaError, *, knows_fenced: bool) -> KafkaError:
    """Replace PRODUCER_FENCED by INVALID_PRODUCER_EPOCH for versions of an API that do not know it."""
    if error.code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, error.message)
    return error
