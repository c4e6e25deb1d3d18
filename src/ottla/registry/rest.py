"""The registry's REST API, as Confluent's clients and tools use it.

Paths are looked up here rather than in the server's router: `/contexts/{context}` before any of them
qualifies the subjects behind it, and errors have the registry's form also where there is no such path.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote

from ottla.registry import registry as queries
from ottla.registry.errors import RegistryError
from ottla.registry.registry import Page, Registry, SchemaRequest, parse_version
from ottla.registry.state import RegistryState
from ottla.registry.stored import JsonObject, StoredSchema
from ottla.registry.subjects import (
    CONTEXT_PREFIX,
    DEFAULT_CONTEXT,
    WILDCARD,
    QualifiedSubject,
    context_prefix,
)
from ottla.runtime.heavy_work import HeavyWork
from ottla.runtime.http_server import (
    HttpProblem,
    HttpRoute,
    HttpServerRequest,
    HttpServerResponse,
)
from ottla.schemas.definitions import SchemaType

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
# Those of answers, the one that is preferred first.
_PRODUCED: Final = (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json")
_CONSUMED: Final = frozenset((*_PRODUCED, "application/octet-stream"))
_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
# What reading or writing JSON takes on a slow core.
_BYTES_PER_US: Final = 20
# Reading JSON holds up all threads, and 100,000 empty lists take 50 ms: more than the texts of the largest
# schemas have that fit into a record.
_MAX_VALUES: Final = 250_000
_MAX_PARAMETERS: Final = 100
_METHODS: Final = ("GET", "POST", "PUT", "DELETE")


class RegistryRight(Enum):
    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    CONFIGURE = "configure"


class RegistryAccess(Protocol):
    """Who may do what."""

    def allows(self, request: HttpServerRequest, right: RegistryRight, subject: str | None) -> bool:
        """Whether a client may do this to a subject; None is the registry as a whole."""
        ...


@dataclass(slots=True)
class _Call:
    """A request, with the parts of its path that have names."""

    request: HttpServerRequest
    parts: dict[str, str]
    query: dict[str, list[str]]
    # The prefix of the context that the path begins with; None if it names none.
    context: str | None
    takes_alias: bool
    body: Any = None

    @property
    def client(self) -> str:
        """Whom costly work is counted for."""
        return f"registry {self.request.principal} {self.request.peer.host}"

    @property
    def subject(self) -> str:
        return self.qualified(self.parts["subject"])

    @property
    def aliased(self) -> str:
        """The subject that may be given by an alias; empty if there is none."""
        if self.takes_alias and "subject" in self.parts:
            return self.subject
        return self.subject_of_id if "id" in self.parts and self.text("subject") else ""

    @property
    def scope(self) -> str | None:
        """The subject of settings; None is global, as the default context is."""
        text = self.parts.get("subject")
        if text is None:
            return self.context or None
        return self.qualified(text) or None

    def qualified(self, subject: str) -> str:
        if not subject.startswith((CONTEXT_PREFIX, WILDCARD)):
            subject = (self.context or "") + subject
        return str(QualifiedSubject.parse(subject))

    @property
    def prefix(self) -> str:
        """What subjects of a list begin with."""
        prefix = self.text("subjectPrefix")
        return prefix if prefix.startswith((CONTEXT_PREFIX, WILDCARD)) else (self.context or "") + prefix

    @property
    def version(self) -> int:
        return parse_version(self.parts["version"])

    @property
    def id(self) -> int:
        return _number(self.parts["id"])

    @property
    def subject_of_id(self) -> str:
        return self.qualified(self.text("subject"))

    def text(self, name: str) -> str:
        return self.query.get(name, [""])[0]

    def flag(self, name: str) -> bool:
        return self.text(name).lower() == "true"

    @property
    def page(self) -> Page:
        offset, limit = self.text("offset"), self.text("limit")
        return Page(_number(offset) if offset else 0, _number(limit) if limit else -1)


def _number(text: str) -> int:
    """A number of a path or a parameter. What is none is no path there is, as with Confluent."""
    try:
        number = int(text) if text.isascii() else 2**31
    except ValueError:
        number = 2**31
    if abs(number) >= 2**31:
        raise RegistryError.not_found()
    return number


_Answer: TypeAlias = "Callable[[RegistryApi, _Call], Awaitable[object]]"
_NO_CONTENT: Final = object()
_NOT_ACCEPTABLE: Final = 406


@dataclass(frozen=True, slots=True)
class _Text:
    """An answer that is the text of a schema rather than JSON made of it."""

    text: str


class RegistryApi:
    """`answers` counts what was answered, by its status."""

    def __init__(
        self,
        registry: Registry,
        access: RegistryAccess,
        work: HeavyWork,
        *,
        cluster_id: str,
        version: str,
        answers: Counter[int],
    ) -> None:
        self._registry: Final = registry
        self._access: Final = access
        self._work: Final = work
        self._cluster_id: Final = cluster_id
        self._version: Final = version
        self._answers: Final = answers

    def routes(self, prefix: str = "") -> list[HttpRoute]:
        """The routes below a path of a server; what is behind it is the path of the registry."""

        async def handle(request: HttpServerRequest) -> HttpServerResponse:
            return await self._handle(request, request.path[len(prefix) :])

        return [HttpRoute(method, f"{prefix}/{{path*}}", handle, _MAX_BODY_BYTES) for method in _METHODS] + (
            [HttpRoute("GET", prefix, handle)] if prefix else []
        )

    async def _handle(self, request: HttpServerRequest, path: str) -> HttpServerResponse:
        try:
            _content_type(request)
            answer, call = _find(request, path)
            await self._resolve_alias(call)
            if request.method in ("POST", "PUT"):
                call.body = await self._body(request, call.client)
            return await self._response(await answer(self, call), request, 200, call.client)
        except RegistryError as error:
            found = {"error_code": error.code, "message": error.message}
            return await self._response(found, request, error.status, "errors")
        except HttpProblem as problem:
            found = {"error_code": problem.status, "message": problem.text}
            return await self._response(found, request, problem.status, "errors")

    async def _resolve_alias(self, call: _Call) -> None:
        """Have a name that is an alias mean its subject; settings are those of the alias itself."""
        name = call.aliased
        if name:
            found = await self._registry.read(lambda state: queries.without_alias(state, name))
            if found != name:
                call.parts["subject"], call.query["subject"], call.context = found, [found], None

    async def _body(self, request: HttpServerRequest, client: str) -> Any:
        kind = (request.headers.get("content-type") or "").partition(";")[0].strip().lower()
        if kind not in _CONSUMED:
            raise RegistryError(415, "HTTP 415 Unsupported Media Type")
        data = await request.read()
        if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise RegistryError(413, f"The body has more than {_MAX_VALUES} values.")
        try:
            cost_us = len(data) // _BYTES_PER_US
            if self._work.fits_turn(cost_us):
                return json.loads(data)
            return await self._work.run(client, cost_us, json.loads, data)
        except (ValueError, RecursionError) as error:
            raise RegistryError(400, f"The body is no JSON: {str(error) or 'nested too deeply'}") from None

    async def _response(
        self, found: object, request: HttpServerRequest, status: int, client: str
    ) -> HttpServerResponse:
        if found is _NO_CONTENT:
            status = 204
        self._answers[status] += 1
        if found is _NO_CONTENT:
            return HttpServerResponse(status)
        kind = CONTENT_TYPE if status == _NOT_ACCEPTABLE else _content_type(request)
        if isinstance(found, _Text):
            data = found.text.encode("utf-8", "replace")
        else:
            cost_us = 1 + _size(found) // _BYTES_PER_US
            if self._work.fits_turn(cost_us):
                data = _encode(found)
            else:
                data = await self._work.run(client, cost_us, _encode, found)
        return HttpServerResponse(status, data, kind)

    # Rights

    def _check(self, call: _Call, right: RegistryRight, subject: str | None) -> None:
        if not self._access.allows(call.request, right, subject):
            raise RegistryError(40301, f"User is denied operation {right.value.capitalize()} on this server.")

    def _may_read(self, call: _Call, subject: str) -> bool:
        return self._access.allows(call.request, RegistryRight.READ, subject)

    def _check_one(self, call: _Call, found: Sequence[StoredSchema]) -> None:
        """A schema may be read by those who may read a subject that has it."""
        if found and not any(self._may_read(call, each.subject) for each in found):
            self._check(call, RegistryRight.READ, found[0].subject)

    async def _text_of(self, call: _Call, schema: StoredSchema) -> _Text:
        return _Text(await self._registry.formatted_text(call.client, schema, call.text("format")))

    async def _response_of(self, call: _Call, schema: StoredSchema) -> JsonObject:
        """A schema as the body of an answer, in the format that the request asks for."""
        text = await self._text_of(call, schema)
        answer = {**schema.to_response(), "schema": text.text}
        parent = QualifiedSubject.parse(schema.subject)
        if call.text("referenceFormat") == "qualified" and parent.context != DEFAULT_CONTEXT:
            for each in answer.get("references", ()):
                each["subject"] = str(parent.child(each["subject"]))
        return answer

    # The server

    async def _root(self, _: _Call) -> JsonObject:
        return {}

    async def _metadata_id(self, _: _Call) -> JsonObject:
        clusters = {"kafka-cluster": self._cluster_id, "schema-registry-cluster": "schema-registry"}
        return {"id": "", "scope": {"path": [], "clusters": clusters}}

    async def _metadata_version(self, _: _Call) -> JsonObject:
        return {"version": f"ottla {self._version}", "commitId": ""}

    async def _metadata_deployment(self, _: _Call) -> JsonObject:
        return {}

    async def _contexts(self, call: _Call) -> list[str]:
        found = await self._registry.read(lambda state: state.contexts)
        prefix = call.text("contextPrefix")
        return call.page.of(each for each in found if each.startswith(prefix))

    async def _delete_context(self, call: _Call) -> object:
        prefix = _context(call.parts["context"])
        self._check(call, RegistryRight.DELETE, None)
        await self._registry.delete_context(prefix)
        return _NO_CONTENT

    # Schemas

    async def _types(self, _: _Call) -> list[str]:
        return [each.value for each in (SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO)]

    async def _schemas(self, call: _Call) -> list[JsonObject]:
        prefix = call.prefix

        def query(state: RegistryState) -> tuple[list[StoredSchema], dict[str, list[str]]]:
            aliases = queries.aliases(state, prefix) if call.flag("aliases") else {}
            found = queries.listed(
                state,
                prefix,
                call.page,
                deleted=call.flag("deleted"),
                latest_only=call.flag("latestOnly"),
                rule_type=call.text("ruleType"),
                more=aliases,
            )
            return found, aliases

        found, aliases = await self._registry.read(query)
        return [
            each.to_response() | ({"aliases": aliases[each.subject]} if each.subject in aliases else {})
            for each in found
            if self._may_read(call, each.subject)
        ]

    async def _owners(self, call: _Call, *, deleted: bool) -> list[StoredSchema]:
        found = await self._registry.read(
            lambda state: queries.with_id(state, call.id, call.subject_of_id, deleted=True)
        )
        self._check_one(call, found)
        return [each for each in found if deleted or not each.is_deleted]

    async def _by_id(self, call: _Call) -> StoredSchema:
        found = await self._registry.read(lambda state: queries.by_id(state, call.id, call.subject_of_id))
        if not self._may_read(call, found.subject):
            await self._owners(call, deleted=True)
        return found

    async def _schema_by_id(self, call: _Call) -> JsonObject:
        found = await self._by_id(call)
        answer = await self._response_of(call, found)
        del answer["id"]
        if not call.text("subject"):
            del answer["subject"], answer["version"]
        if call.flag("fetchMaxId"):
            context = QualifiedSubject.parse(found.subject).context
            answer["maxId"] = await self._registry.read(lambda state: state.max_id(context))
        return answer

    async def _text_by_id(self, call: _Call) -> _Text:
        return await self._text_of(call, await self._by_id(call))

    async def _subjects_of_id(self, call: _Call) -> list[str]:
        found = await self._owners(call, deleted=call.flag("deleted"))
        return call.page.of(dict.fromkeys(each.subject for each in found))

    async def _versions_of_id(self, call: _Call) -> list[JsonObject]:
        found = await self._owners(call, deleted=call.flag("deleted"))
        return call.page.of({"subject": each.subject, "version": each.version} for each in found)

    async def _schema_by_guid(self, call: _Call) -> JsonObject:
        found = await self._registry.read(lambda state: queries.by_guid(state, call.parts["guid"]))
        self._check_one(call, [schema for _, schema in found])
        answer = await self._response_of(call, found[0][1])
        del answer["id"], answer["subject"], answer["version"]
        return answer

    async def _ids_of_guid(self, call: _Call) -> list[JsonObject]:
        found = await self._registry.read(lambda state: queries.by_guid(state, call.parts["guid"]))
        self._check_one(call, [schema for _, schema in found])
        return [{"context": context, "id": schema.id} for context, schema in found]

    # Subjects

    async def _subjects(self, call: _Call) -> list[str]:
        is_given = call.context is not None or "subjectPrefix" in call.query
        prefix = call.prefix if is_given else queries.ALL_CONTEXTS
        found = await self._registry.read(
            lambda state: queries.subjects(
                state, prefix, deleted=call.flag("deleted"), deleted_only=call.flag("deletedOnly")
            )
        )
        return call.page.of(each for each in found if self._may_read(call, each))

    async def _look_up(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.READ, call.subject)
        found = await self._registry.look_up(
            call.client,
            call.subject,
            SchemaRequest.parse(call.body),
            normalize=call.flag("normalize"),
            deleted=call.flag("deleted"),
        )
        return await self._response_of(call, found)

    async def _latest_with_metadata(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.READ, call.subject)
        wanted = dict(zip(call.query.get("key", ()), call.query.get("value", ()), strict=False))
        found = await self._registry.read(
            lambda state: queries.with_metadata(state, call.subject, wanted, deleted=call.flag("deleted"))
        )
        return await self._response_of(call, found)

    async def _delete_subject(self, call: _Call) -> list[int]:
        self._check(call, RegistryRight.DELETE, call.subject)
        return await self._registry.delete_subject(call.subject, permanent=call.flag("permanent"))

    async def _versions(self, call: _Call) -> list[int]:
        self._check(call, RegistryRight.READ, call.subject)
        found = await self._registry.read(
            lambda state: queries.versions(
                state,
                call.subject,
                deleted=call.flag("deleted"),
                deleted_only=call.flag("deletedOnly"),
                as_negative=call.flag("deletedAsNegative"),
            )
        )
        return call.page.of(found)

    async def _register(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.WRITE, call.subject)
        return await self._registry.register(
            call.client,
            call.subject,
            SchemaRequest.parse(call.body),
            normalize=call.flag("normalize"),
            force=call.flag("force"),
        )

    async def _of_version(self, call: _Call, *, deleted: bool) -> StoredSchema:
        self._check(call, RegistryRight.READ, call.subject)
        version = call.version
        return await self._registry.read(
            lambda state: queries.version(state, call.subject, version, deleted=deleted)
        )

    async def _version_of(self, call: _Call) -> JsonObject:
        return await self._response_of(call, await self._of_version(call, deleted=call.flag("deleted")))

    async def _text_of_version(self, call: _Call) -> _Text:
        return await self._text_of(call, await self._of_version(call, deleted=call.flag("deleted")))

    async def _referenced_by(self, call: _Call) -> list[int]:
        self._check(call, RegistryRight.READ, call.subject)
        version = call.version
        found = await self._registry.read(
            lambda state: queries.referenced_by(state, call.subject, version, deleted=call.flag("deleted"))
        )
        return call.page.of(found)

    async def _delete_version(self, call: _Call) -> int:
        self._check(call, RegistryRight.DELETE, call.subject)
        return await self._registry.delete_version(
            call.subject, call.version, permanent=call.flag("permanent")
        )

    # Compatibility

    async def _compatible(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.READ, call.subject)
        return await self._registry.check(
            call.client,
            call.subject,
            call.version if "version" in call.parts else None,
            SchemaRequest.parse(call.body),
            normalize=call.flag("normalize"),
            verbose=call.flag("verbose"),
        )

    # Settings

    async def _config(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.READ, call.scope)
        in_scope = call.flag("defaultToGlobal")
        return await self._registry.read(lambda state: queries.config(state, call.scope, in_scope=in_scope))

    async def _put_config(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.CONFIGURE, call.scope)
        return await self._registry.update_config(call.scope, call.body)

    async def _delete_config(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.CONFIGURE, call.scope)
        return await self._registry.delete_config(call.scope)

    async def _mode(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.READ, call.scope)
        in_scope = call.flag("defaultToGlobal")
        found = await self._registry.read(lambda state: queries.mode(state, call.scope, in_scope=in_scope))
        return {"mode": found}

    async def _put_mode(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.CONFIGURE, call.scope)
        if not isinstance(call.body, dict):
            raise RegistryError(422, "The body has to be an object with a mode.")
        given = call.body.get("mode")
        if given is not None and not isinstance(given, str):
            raise RegistryError.invalid_mode()
        mode = None if given is None else given.upper()
        await self._registry.set_mode(call.scope, mode, force=call.flag("force"))
        return {"mode": given}

    async def _delete_mode(self, call: _Call) -> JsonObject:
        self._check(call, RegistryRight.CONFIGURE, call.scope)
        found = await self._registry.delete_mode(call.scope, recursive=call.flag("recursive"))
        return {} if found is None else {"mode": found}


# Paths

_ROUTES: Final[dict[str, dict[str, _Answer]]] = {
    "": {"GET": RegistryApi._root},
    "v1/metadata/id": {"GET": RegistryApi._metadata_id},
    "v1/metadata/version": {"GET": RegistryApi._metadata_version},
    "v1/metadata/deployment": {"GET": RegistryApi._metadata_deployment},
    "contexts": {"GET": RegistryApi._contexts},
    "contexts/{context}": {"DELETE": RegistryApi._delete_context},
    "schemas": {"GET": RegistryApi._schemas},
    "schemas/types": {"GET": RegistryApi._types},
    "schemas/ids/{id}": {"GET": RegistryApi._schema_by_id},
    "schemas/ids/{id}/schema": {"GET": RegistryApi._text_by_id},
    "schemas/ids/{id}/subjects": {"GET": RegistryApi._subjects_of_id},
    "schemas/ids/{id}/versions": {"GET": RegistryApi._versions_of_id},
    "schemas/guids/{guid}": {"GET": RegistryApi._schema_by_guid},
    "schemas/guids/{guid}/ids": {"GET": RegistryApi._ids_of_guid},
    "subjects": {"GET": RegistryApi._subjects},
    "subjects/{subject}": {"POST": RegistryApi._look_up, "DELETE": RegistryApi._delete_subject},
    "subjects/{subject}/metadata": {"GET": RegistryApi._latest_with_metadata},
    "subjects/{subject}/versions": {"GET": RegistryApi._versions, "POST": RegistryApi._register},
    "subjects/{subject}/versions/{version}": {
        "GET": RegistryApi._version_of,
        "DELETE": RegistryApi._delete_version,
    },
    "subjects/{subject}/versions/{version}/schema": {"GET": RegistryApi._text_of_version},
    "subjects/{subject}/versions/{version}/referencedby": {"GET": RegistryApi._referenced_by},
    "compatibility/subjects/{subject}/versions": {"POST": RegistryApi._compatible},
    "compatibility/subjects/{subject}/versions/{version}": {"POST": RegistryApi._compatible},
    "config": {
        "GET": RegistryApi._config,
        "PUT": RegistryApi._put_config,
        "DELETE": RegistryApi._delete_config,
    },
    "config/{subject}": {
        "GET": RegistryApi._config,
        "PUT": RegistryApi._put_config,
        "DELETE": RegistryApi._delete_config,
    },
    "mode": {"GET": RegistryApi._mode, "PUT": RegistryApi._put_mode, "DELETE": RegistryApi._delete_mode},
    "mode/{subject}": {
        "GET": RegistryApi._mode,
        "PUT": RegistryApi._put_mode,
        "DELETE": RegistryApi._delete_mode,
    },
}
_BY_LENGTH: Final[dict[int, list[tuple[list[str], dict[str, _Answer]]]]] = {}
for _path, _answers in _ROUTES.items():
    _template = _path.split("/") if _path else []
    _BY_LENGTH.setdefault(len(_template), []).append((_template, _answers))


def _context(text: str) -> str:
    try:
        return context_prefix(text)
    except ValueError as error:
        raise RegistryError(400, str(error)) from None


def _content_type(request: HttpServerRequest) -> str:
    """The type of an answer that the client likes best. RegistryError if it takes none of them."""
    given = request.headers.get("accept")
    if given is None or given == "*/*":
        return CONTENT_TYPE
    ranked: list[tuple[float, int, int]] = []
    for each in given.split(","):
        wanted, *parameters = (part.strip().lower() for part in each.split(";"))
        main, _, detail = wanted.partition("/")
        for place, kind in enumerate(_PRODUCED):
            if kind == wanted or (main == "application" and detail == "*") or main == "*":
                is_exact = kind == wanted
                ranked.append((_quality(parameters), is_exact, -place))
    quality, _, place = max(ranked, default=(0.0, 0, 0))
    if not quality:
        raise RegistryError(_NOT_ACCEPTABLE, "HTTP 406 Not Acceptable")
    return _PRODUCED[-place]


def _quality(parameters: Sequence[str]) -> float:
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _find(request: HttpServerRequest, path: str) -> tuple[_Answer, _Call]:
    parts = (
        [unquote(part, errors="replace") for part in path.strip("/").split("/")] if path.strip("/") else []
    )
    context: str | None = None
    if len(parts) > 2 and parts[0] == "contexts":
        context, parts = _context(parts[1]), parts[2:]
    answers, named = _match(parts)
    method = "GET" if request.method == "HEAD" else request.method
    answer = answers.get(method)
    if answer is None:
        raise RegistryError(405, "HTTP 405 Method Not Allowed")
    query: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(
            request.raw_query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS
        ):
            query.setdefault(name, []).append(value)
    except ValueError:
        raise RegistryError(400, "There are too many parameters.") from None
    return answer, _Call(request, named, query, context, "subjects" in parts[:2])


def _match(parts: list[str]) -> tuple[dict[str, _Answer], dict[str, str]]:
    for template, answers in _BY_LENGTH.get(len(parts), ()):
        named = {}
        for part, wanted in zip(parts, template, strict=True):
            if wanted.startswith("{"):
                named[wanted[1:-1]] = part
            elif part != wanted:
                break
        else:
            return answers, named
    raise RegistryError.not_found()


# JSON


def _encode(found: object) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _size(found: object) -> int:
    """Roughly how many bytes an answer has."""
    if isinstance(found, dict):
        return 100 + len(found.get("schema", "")) + 100 * len(found.get("references", ()))
    if isinstance(found, list):
        return sum(_size(each) for each in found) if found and isinstance(found[0], dict) else 40 * len(found)
    return 10
