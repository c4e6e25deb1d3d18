"""A browser without pages: calls the console's API as the pages do."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        code: str = self.document["error"]["code"]
        return code


class Refused(AssertionError):
    """The status and the body of the answer to a request for a stream."""


@dataclass(slots=True)
class ApiClient:
    """`url` is that of the server. Keeps the cookie and the token of its session."""

    url: str
    tls: ssl.SSLContext | None = None
    cookie: str | None = None
    token: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=TIMEOUT_SECONDS, context=self.tls
            )
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        /,
        *,
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> Answer:
        """Send a request as it is, without a token."""
        target = f"{path}?{urlencode(query)}" if query else path
        sent = {**self.headers, **(headers or {})}
        if self.cookie is not None:
            sent.setdefault("Cookie", self.cookie)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = self.connection()
        try:
            connection.request(method, target, data, sent)
            response = connection.getresponse()
            for name, value in response.getheaders():
                if name.lower() == "set-cookie":
                    self.cookie = value.partition(";")[0]
            return Answer(response.status, {n.lower(): v for n, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def send(self, method: str, path: str, body: object = None, /, **query: object) -> Answer:
        """Send a request with the token of the session."""
        if self.token is None:
            self.token = self.request("GET", "/api/session").document["csrfToken"]
        return self.request(method, path, body, headers={"X-Ottla-Csrf": self.token}, **query)

    def get(self, path: str, /, **query: object) -> Any:
        answer = self.request("GET", path, **query)
        assert answer.status == 200, answer
        return answer.document

    def post(self, path: str, body: object = None, /, **query: object) -> Any:
        answer = self.send("POST", path, {} if body is None else body, **query)
        assert answer.status == 200, answer
        return answer.document

    def delete(self, path: str, /, **query: object) -> Any:
        answer = self.send("DELETE", path, **query)
        assert answer.status == 200, answer
        return answer.document

    @contextmanager
    def events(self, path: str, /, **query: object) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events of a stream, as names and documents, until it ends or the block does."""
        connection = self.connection()
        headers = {} if self.cookie is None else {"Cookie": self.cookie}
        connection.request("GET", f"{path}?{urlencode(query)}", headers=headers)
        response = connection.getresponse()
        if response.status != 200:
            raise Refused(response.status, response.read())

        def read() -> Iterator[tuple[str, Any]]:
            name = ""
            for line in response:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    yield name, json.loads(text.removeprefix("data: "))
                    if name in ("end", "error"):
                        return

        try:
            yield read()
        finally:
            connection.close()
