"""Encode responses, also those to requests that failed as a whole."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Final

from ottla.node.api.context import ApiRequestContext
from ottla.node.api.routes import FailureResponse
from ottla.node.network.connection import Parts, ProtocolViolation
from ottla.protocol.api import API, API_VERSIONS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.headers import response_parts
from ottla.protocol.schema import Request, Response, Struct, drop_newer_fields

log = logging.getLogger(__name__)


# What a message may have that quotes a request, and what the log shows of a response.
_MAX_MESSAGE: Final = 2_000
_PARTS_OF_A_TURN: Final = 1_000
_MAX_LOGGED: Final = 1_000


def encode(context: ApiRequestContext, response: Response) -> Parts:
    """Encode a response; ProtocolViolation if that cannot be done."""
    try:
        return response_parts(context.api, context.version, context.correlation_id, response)
    except Exception as error:
        if not _shorten_messages(response):
            raise _not_encodable(context, response, error) from None
    try:
        return response_parts(context.api, context.version, context.correlation_id, response)
    except Exception as error:
        raise _not_encodable(context, response, error) from None


def _shorten_messages(struct: Struct) -> bool:
    """Shorten messages that are longer than a string may be, as they name what a client has named; whether
    there were any.
    """
    shortened = False
    for field in struct.FIELDS:
        value = getattr(struct, field.name)
        if isinstance(value, str) and len(value) > _MAX_MESSAGE:
            if field.name.endswith(("message", "detail")):
                setattr(struct, field.name, value[:_MAX_MESSAGE] + "…")
                shortened = True
        elif isinstance(value, Struct):
            shortened |= _shorten_messages(value)
        elif field.struct is not None and isinstance(value, list):
            for each in value:
                shortened |= _shorten_messages(each)
    return shortened


def _not_encodable(context: ApiRequestContext, response: Response, error: Exception) -> ProtocolViolation:
    """Log a fault of the node's, and return what closes the connection instead of a response."""
    text = repr(response)[:_MAX_LOGGED]
    log.error("%s version %d: %s cannot be sent", context.api.name, context.version, text, exc_info=error)
    return ProtocolViolation(f"its {context.api.name} request has no proper answer")


def has_many_parts(response: Response) -> bool:
    """Whether a response has so many parts, in its lists and in theirs, that they take a turn to encode."""
    count = 0
    for name, inner in _lists(type(response)):
        parts = getattr(response, name) or ()
        count += len(parts)
        if count > _PARTS_OF_A_TURN:
            return True
        for part in parts if inner else ():
            for each in inner:
                count += len(getattr(part, each) or ())
            if count > _PARTS_OF_A_TURN:
                return True
    return False


@lru_cache(maxsize=256)
def _lists(cls: type[Struct]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The lists of a message, each with those of its elements."""
    return tuple(
        (field.name, () if field.struct is None else tuple(name for name, _ in _lists(field.struct)))
        for field in cls.FIELDS
        if field.kind == "array"
    )


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
        raise ProtocolViolation(str(error))  # the error itself would refer to this frame, and that to it
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
