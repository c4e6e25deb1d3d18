"""Requests to a schema registry that answers as Confluent's does. They block: make them in the pool."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from ottla.runtime.http import HttpError, HttpRequest, TlsContext, http_fetch

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
# What a registry says if it has no schema of an id.
SCHEMA_NOT_FOUND: Final = 40403
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_MAX_ERROR: Final = 4_000


class RegistryRequestError(Exception):
    """The registry refuses a request. `code` is its own, or the status where it says none."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status: Final = status
        self.code: Final = code


@dataclass(frozen=True, slots=True)
class RegistryClient:
    """`url` may have a user and a password, which are sent to it only; `headers` makes those that a request
    needs besides, as a token. Of several addresses the next is asked where one cannot be reached.
    """

    urls: tuple[str, ...]
    headers: Callable[[], Mapping[str, str]] | None = field(default=None, repr=False)
    tls: TlsContext | None = field(default=None, repr=False)
    timeout_seconds: float = 10.0

    @classmethod
    def of(cls, url: str, **more: Any) -> RegistryClient:
        """The client of an address, or of several with commas between them. ValueError if it is none."""
        urls = tuple(each.strip().rstrip("/") for each in url.split(",") if each.strip())
        for each in urls or ("",):
            parts = urlsplit(each)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("the address of a schema registry begins with http:// or https://")
        return cls(urls, **more)

    def call(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The document that answers a request. RegistryRequestError if the registry refuses it, HttpError if
        none can be reached.
        """
        given = {name: _parameter(value) for name, value in query.items() if value is not None}
        target = path + (f"?{urlencode(given)}" if given else "")
        data = None if body is None else json.dumps(body).encode()
        for index, url in enumerate(self.urls):
            try:
                return self._call(url, method, target, data)
            except HttpError:
                if index + 1 == len(self.urls):
                    raise
            except RegistryRequestError as error:
                if error.status < 500 or index + 1 == len(self.urls):
                    raise
        raise AssertionError("a client has an address")

    def _call(self, url: str, method: str, target: str, data: bytes | None) -> Any:
        parts = urlsplit(url)
        headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        if self.headers is not None:
            headers |= self.headers()
        response = http_fetch(
            HttpRequest(
                f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{target}",
                method,
                headers,
                data,
                self.timeout_seconds,
                self.timeout_seconds,
                _MAX_ANSWER_BYTES,
                self.tls,
            )
        )
        if response.status == 204:
            return None
        try:
            document = json.loads(response.body)
        except (ValueError, RecursionError):
            document = None
        if response.status != 200:
            raise _refusal(response.status, document)
        return document


def part(text: str | int) -> str:
    """A name as a part of a path."""
    return quote(str(text), safe="")


def _parameter(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refusal(status: int, document: object) -> RegistryRequestError:
    """The registry's own error; that of a proxy before it has only a status."""
    found = document if isinstance(document, dict) else {}
    code, message = found.get("error_code"), found.get("message")
    text = message if isinstance(message, str) and message else f"the registry answers {status}"
    return RegistryRequestError(status, code if isinstance(code, int) else status, text[:_MAX_ERROR])
