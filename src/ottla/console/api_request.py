"""A request to the API: its parameters, checked; and the errors that it is answered with.

A handler gets an `ApiRequest` and returns a document, which becomes JSON, or a whole response.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ottla.client.errors import (
    AuthenticationFailed,
    BootstrapFailed,
    ConnectionFailed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
)
from ottla.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 500
MAX_NUMBER: Final = 2**63 - 1

_STATUS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.UNKNOWN_TOPIC_ID: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: 404,
    ErrorCode.RESOURCE_NOT_FOUND: 404,
    ErrorCode.SECURITY_DISABLED: 404,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: 403,
    ErrorCode.SASL_AUTHENTICATION_FAILED: 401,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.REQUEST_TIMED_OUT: 503,
    ErrorCode.UNKNOWN_SERVER_ERROR: 500,
}


class ConsoleError(Exception):
    """A request that is answered with an error. `code` is a name that pages know, the text is for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status: Final = status
        self.code: Final = code
        self.message: Final = message

    def to_json(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}


def bad_request(message: str) -> ConsoleError:
    return ConsoleError(400, "BAD_REQUEST", message)


def not_available(message: str) -> ConsoleError:
    return ConsoleError(404, "NOT_AVAILABLE", message)


def error_of(error: KafkaError) -> ConsoleError:
    """The answer to an error of the cluster, or of the way to it."""
    if isinstance(error, AuthenticationFailed):
        return ConsoleError(401, ErrorCode.SASL_AUTHENTICATION_FAILED.name, error.message)
    if isinstance(error, BootstrapFailed | ConnectionFailed | ConnectionLost | NotKafka):
        return ConsoleError(502, "UNREACHABLE", error.message)
    if isinstance(error, RequestTimedOut):
        return ConsoleError(503, ErrorCode.REQUEST_TIMED_OUT.name, error.message)
    status = _STATUS.get(error.code, 503 if error.retriable else 400)
    return ConsoleError(status, error.code.name, error.message)


class JsonBody:
    """The object of a request's body. A field has the type that is asked for, or the request is refused."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields: Final = fields

    def raw(self, name: str) -> Any:
        return self._fields.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise bad_request(f"{name} has to be text")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._fields.get(name) is None else self.text(name)

    def integer(self, name: str, default: int | None = None, *, low: int = 0, high: int = MAX_NUMBER) -> int:
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise bad_request(f"{name} has to be a whole number from {low} to {high}")
        return value

    def optional_integer(self, name: str, *, low: int = 0) -> int | None:
        return None if self._fields.get(name) is None else self.integer(name, low=low)

    def flag(self, name: str) -> bool:
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise bad_request(f"{name} has to be true or false")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._fields.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise bad_request(f"{name} has to be a list of texts")
        return value

    def optional_texts(self, name: str) -> list[str] | None:
        return None if self._fields.get(name) is None else self.texts(name)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._fields.get(name) or {}
        if not isinstance(value, dict):
            raise bad_request(f"{name} has to be an object")
        return value

    def text_mapping(self, name: str) -> dict[str, str]:
        found = self.mapping(name)
        if not all(isinstance(value, str) for value in found.values()):
            raise bad_request(f"{name} has to be an object of texts")
        return found


@dataclass(slots=True)
class ApiRequest:
    """`params` are the names in the path. `body` is None for requests without one."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that a console looks at, by names in lower case."""
    cookies: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    is_tls: bool = False
    data: bytes = b""

    def body(self) -> JsonBody:
        """The object of the body. 400 if there is none."""
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise bad_request("the body has to be JSON, with Content-Type: application/json")
        try:
            document = json.loads(self.data)
        except (ValueError, RecursionError):
            raise bad_request("the body is no JSON") from None
        if not isinstance(document, dict):
            raise bad_request("the body has to be an object")
        return JsonBody(document)

    def text(self, name: str, default: str = "") -> str:
        return self.query.get(name, default)

    def required(self, name: str) -> str:
        """A parameter that may be any text, but has to be there."""
        if name not in self.query:
            raise bad_request(f"the parameter {name} is missing")
        return self.query[name]

    def integer(self, name: str, default: int | None = None, *, low: int = 0, high: int = MAX_NUMBER) -> int:
        given = self.query.get(name, "")
        if not given and default is not None:
            return default
        try:
            value = int(given) if len(given) < 20 else MAX_NUMBER + 1
        except ValueError:
            value = MAX_NUMBER + 1
        if not low <= value <= high:
            raise bad_request(f"{name} has to be a whole number from {low} to {high}")
        return value

    def optional_integer(self, name: str) -> int | None:
        return self.integer(name) if self.query.get(name) else None

    def flag(self, name: str, *, default: bool = False) -> bool:
        given = self.query.get(name, "").lower()
        if given not in ("", "true", "false", "1", "0"):
            raise bad_request(f"{name} has to be true or false")
        return default if not given else given in ("true", "1")

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """One of some texts; the first if none is given."""
        given = self.query.get(name) or allowed[0]
        if given not in allowed:
            raise bad_request(f"{name} has to be one of {', '.join(each for each in allowed if each)}")
        return given


def page_of(
    request: ApiRequest,
    items: Iterable[T],
    *,
    name: Callable[[T], str],
    sorts: Mapping[str, Callable[[T], Any]],
) -> tuple[list[T], dict[str, Any]]:
    """The page of a list that a request asks for, and the document for its items: those whose name has the
    text that is searched for, in the order that is asked for; what has no value comes last.
    """
    page = request.integer("page", 1, low=1, high=1_000_000)
    size = request.integer("pageSize", DEFAULT_PAGE, low=1, high=MAX_PAGE)
    wanted = request.text("search").lower()
    found = [each for each in items if wanted in name(each).lower()] if wanted else list(items)
    key = sorts[request.choice("sort", tuple(sorts))]
    descending = request.choice("order", ("asc", "desc")) == "desc"
    known = [each for each in found if key(each) is not None]
    known.sort(key=lambda each: key(each), reverse=descending)
    ordered = known + [each for each in found if key(each) is None]
    chosen = ordered[(page - 1) * size : page * size]
    return chosen, {"items": [], "total": len(found), "page": page, "pageSize": size, "problems": []}


def parse_partitions(text: str) -> list[int] | None:
    """
    >>> parse_partitions("0,2-4"), parse_partitions("")
    ([0, 2, 3, 4], None)
    """
    if not text.strip():
        return None
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_small(first) or (dash and not _is_small(last)):
            raise bad_request("partitions have to be numbers such as 0,2 or 0-3")
        low, high = int(first), int(last if dash else first)
        if high < low or high - low > 100_000:
            raise bad_request(f"{part!r} is no range of partitions")
        found |= dict.fromkeys(range(low, high + 1))
    return list(found)


def _is_small(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 8
