"""Requests to a schema registry, and their answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass
class RegistryClient:
    url: str

    def call(
        self, method: str, path: str, body: Any = None, *, content_type: str = CONTENT_TYPE, accept: str = ""
    ) -> tuple[int, Any]:
        """The status of an answer, and its JSON."""
        headers = {"Content-Type": content_type} | ({"Accept": accept} if accept else {})
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.content_type = answer.headers["Content-Type"]
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            self.content_type = error.headers["Content-Type"]
            return error.code, json.loads(error.read())

    def get(self, path: str) -> Any:
        return self.ok("GET", path)

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.call(method, path, body)
        assert status in (200, 204), (method, path, status, answer)
        return answer

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        found = self.ok("POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema), **more})
        return int(found["id"])

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """The code and the text of an error."""
        status, answer = self.call(method, path, body)
        assert status >= 400, (method, path, status, answer)
        code = answer["error_code"]
        assert status == (code // 100 if code >= 1000 else code)
        return code, answer["message"]


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
    }
