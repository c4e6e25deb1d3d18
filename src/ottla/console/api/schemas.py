"""The schemas of a registry: subjects, versions and their differences, a check, registration, deletion.

They are there for consoles that act as their operator; users that log in ask the registry themselves, which
knows their rights.
"""

from __future__ import annotations

import json
from difflib import unified_diff
from typing import Any, Final

from ottla.console.api_request import ApiRequest, ConsoleError, bad_request, not_available, page_of
from ottla.console.context import ApiContext, ConsoleRoute
from ottla.runtime.http import HttpError
from ottla.schemas.registry_client import RegistryClient, RegistryRequestError, part

_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
# A comparison takes the square of these at worst.
_MAX_COMPARED_LINES: Final = 3_000
_SHOWN_AROUND: Final = 5


def _call(client: RegistryClient, method: str, path: str, body: object = None, **query: object) -> Any:
    try:
        return client.call(method, path, body, **query)
    except RegistryRequestError as error:
        status = error.status if error.status in (401, 403, 404, 409, 422) else 502
        raise ConsoleError(status, f"REGISTRY_{error.code}", str(error)) from None
    except HttpError as error:
        raise ConsoleError(502, "UNREACHABLE", str(error)) from None


def _client(context: ApiContext) -> RegistryClient:
    url = context.config.managed_registry_url
    if url is None:
        raise not_available("this console has no schema registry")
    return RegistryClient.of(url)


async def list_subjects(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    client, pool = _client(context), context.runtime.pool
    names = await pool.run(_call, client, "GET", "/subjects")
    chosen, page = page_of(request, names, name=str, sorts={"subject": str})
    page["items"] = await pool.run(_latest, client, chosen)
    return page


def _latest(client: RegistryClient, names: list[str]) -> list[dict[str, Any]]:
    found = []
    for name in names:
        try:
            schema = _call(client, "GET", f"/subjects/{part(name)}/versions/latest")
        except ConsoleError as error:
            if error.status != 404:
                raise
            continue  # it was deleted meanwhile
        found.append(_row(schema))
    return found


def _row(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "subject": schema["subject"],
        "version": schema["version"],
        "id": schema["id"],
        "type": schema.get("schemaType") or "AVRO",
    }


async def describe_subject(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    return await context.runtime.pool.run(
        _described,
        _client(context),
        request.required("name"),
        request.text("version", "latest"),
        request.text("against"),
    )


def _described(client: RegistryClient, name: str, version: str, against: str) -> dict[str, Any]:
    path = f"/subjects/{part(name)}/versions"
    versions = _call(client, "GET", path)
    schema = _call(client, "GET", f"{path}/{part(version)}")
    config = _call(client, "GET", f"/config/{part(name)}", defaultToGlobal=True)
    text = _pretty(schema)
    found = {
        **_row(schema),
        "versions": versions,
        "compatibility": config.get("compatibilityLevel"),
        "text": text,
        "references": schema.get("references") or [],
        "difference": None,
    }
    if against:
        other = _call(client, "GET", f"{path}/{part(against)}")
        found["difference"] = _difference(_pretty(other), text)
    return found


def _pretty(schema: dict[str, Any]) -> str:
    text: str = schema["schema"]
    if schema.get("schemaType") == "PROTOBUF":
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _difference(old: str, new: str) -> list[str]:
    """The lines that differ, with some around, each after a sign: what is gone, what came, what stays."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > _MAX_COMPARED_LINES:
        raise bad_request(f"schemas of more than {_MAX_COMPARED_LINES} lines are not compared here")
    return list(unified_diff(before, after, lineterm="", n=_SHOWN_AROUND))[2:]


def _given(request: ApiRequest) -> tuple[str, dict[str, Any]]:
    body = request.body()
    subject, kind, text = body.text("subject"), body.text("type", "AVRO"), body.text("schema")
    if not subject or not text:
        raise bad_request("a schema needs a subject and a text")
    if kind not in _TYPES:
        raise bad_request(f"type has to be one of {', '.join(_TYPES)}")
    return subject, {"schema": text, "schemaType": kind, "references": body.raw("references") or []}


async def check_schema(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    subject, body = _given(request)
    path = f"/compatibility/subjects/{part(subject)}/versions"
    found = await context.runtime.pool.run(_verbose, _client(context), path, body)
    return {"compatible": found["is_compatible"], "messages": found.get("messages") or []}


def _verbose(client: RegistryClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _call(client, "POST", path, body, verbose=True)
    return found


async def register_schema(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    subject, body = _given(request)
    path = f"/subjects/{part(subject)}"
    pool, client = context.runtime.pool, _client(context)
    registered = await pool.run(_call, client, "POST", f"{path}/versions", body)
    found = await pool.run(_call, client, "POST", path, body)
    return {"id": registered["id"], "version": found["version"]}


async def delete_schema(context: ApiContext, request: ApiRequest) -> dict[str, Any]:
    path = f"/subjects/{part(request.required('name'))}"
    if version := request.text("version"):
        path += f"/versions/{part(version)}"
    await context.runtime.pool.run(_call, _client(context), "DELETE", path)
    return {}


ROUTES: Final = (
    ConsoleRoute("GET", "/api/schemas", list_subjects),
    ConsoleRoute("POST", "/api/schemas", register_schema),
    ConsoleRoute("DELETE", "/api/schemas", delete_schema),
    ConsoleRoute("GET", "/api/schemas/subject", describe_subject),
    ConsoleRoute("POST", "/api/schemas/check", check_schema),
)
