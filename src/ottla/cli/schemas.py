"""`ottla schemas`: the schemas of a registry, of a node or any that answers as Confluent's does.

`export` writes one file that `import` brings to another registry with its ids and versions, as records have
the ids in them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from ottla.cli import command_config
from ottla.cli.commands import Argument, Option, command, group
from ottla.cli.errors import UNREACHABLE, CliError, WrongUsage, did_you_mean, unreadable
from ottla.cli.options import DryRun, Json, Yes
from ottla.cli.output import note, print_json, print_line, print_pairs, print_table, print_text, time_text
from ottla.cli.session import confirm

if TYPE_CHECKING:
    from ottla.client.serdes.registry_settings import Headers
    from ottla.runtime.http import TlsContext
    from ottla.schemas.registry_client import RegistryClient

HELP: Final = "List, show, register, check, delete and move schemas of a registry."
app = group("schemas", HELP)

DEFAULT_REGISTRY: Final = "http://127.0.0.1:9644/schema-registry"
_PAGE: Final = 500
_FORMAT: Final = "ottla-schemas"

Registry: TypeAlias = Annotated[
    str,
    Option(
        "--registry",
        metavar="URL",
        envvar="OTTLA_SCHEMA_REGISTRY_URL",
        help="The address of the registry; https://USER:PASSWORD@HOST has a login.",
    ),
]
Subject: TypeAlias = Annotated[
    str, Argument(metavar="SUBJECT", help="Such as orders-value, for the values of the topic orders.")
]
Version: TypeAlias = Annotated[str, Option("--version", metavar="NUMBER", help="A version, or latest.")]
SchemaFile: TypeAlias = Annotated[str, Argument(metavar="FILE", help="The schema; - is standard input.")]
Kind: TypeAlias = Annotated[
    str | None,
    Option(
        "--type",
        metavar="TYPE",
        choices=("avro", "json", "protobuf"),
        help="Without it, by the name of the file: .avsc, .proto, .json.",
    ),
]
References: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="What the schema refers to by NAME; may be repeated.",
    ),
]
_TYPES: Final = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}


def _client(url: str) -> RegistryClient:
    from urllib.parse import urlsplit

    from ottla.cli.node_http import tls_context
    from ottla.schemas.registry_client import RegistryClient

    is_https = urlsplit(url).scheme.lower() == "https"
    has_login = urlsplit(url).username is not None
    tls = tls_context() if is_https else None
    try:
        return RegistryClient.of(
            url,
            headers=_login(tls) if is_https and not has_login else None,
            tls=tls,
            timeout_seconds=60.0,
        )
    except ValueError as error:
        raise WrongUsage(f"--registry {url}: {error}") from None


def _login(tls: TlsContext | None) -> Headers:
    """The login that `--command-config` has for registries, as Confluent's clients name it; else Kafka's."""
    from ottla.cli.node_http import login_headers
    from ottla.client.serdes.registry_settings import login_headers as registry_login
    from ottla.runtime.properties import parse_properties

    of_kafka = login_headers()  # a file that cannot be read ends the command here
    file = command_config.given()
    given = {} if file is None else parse_properties(Path(file).read_text(encoding="utf-8"))
    own = {name.removeprefix("schema.registry."): text for name, text in given.items()}
    return registry_login(own, tls) or (lambda: of_kafka)


def _call(client: RegistryClient, method: str, path: str, body: object = None, **query: object) -> Any:
    from ottla.runtime.http import HttpError
    from ottla.schemas.registry_client import RegistryRequestError

    try:
        return client.call(method, path, body, **query)
    except RegistryRequestError as error:
        if error.status in (401, 403):
            raise CliError(f"{error}: name a login in --registry or --command-config") from None
        raise CliError(str(error)) from None
    except HttpError as error:
        raise CliError(
            str(error),
            f"`ottla start` has a registry at {DEFAULT_REGISTRY}; --registry names another.",
            status=UNREACHABLE,
        ) from None


def _path(*parts: str | int) -> str:
    from ottla.schemas.registry_client import part

    return "".join(f"/{part(each)}" for each in parts)


def _known_subject(client: RegistryClient, subject: str, *, deleted: bool = False) -> None:
    names = _call(client, "GET", "/subjects", deleted=deleted)
    if subject not in names:
        raise CliError(f"the registry has no subject {subject!r}{did_you_mean(subject, names)}")


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(file, error) from None


def _body(file: str, kind: str | None, references: list[str] | None) -> dict[str, Any]:
    found = _TYPES.get(Path(file).suffix.lower()) if kind is None else kind.upper()
    if found is None:
        raise WrongUsage(f"{file}: name the kind of the schema with --type avro, json or protobuf")
    body: dict[str, Any] = {"schema": _read(file), "schemaType": found}
    if references:
        body["references"] = [_reference(each) for each in references]
    return body


def _reference(text: str) -> dict[str, Any]:
    name, _, rest = text.partition("=")
    subject, _, version = rest.rpartition(":")
    if not name or not subject or not version.isdigit():
        raise WrongUsage(f"--reference {text}: expected NAME=SUBJECT:VERSION, as money.proto=money:1")
    return {"name": name, "subject": subject, "version": int(version)}


@command(app, "list")
def list_schemas(
    subject: Annotated[
        str | None, Argument(metavar="[SUBJECT]", help="Its versions; without it, all subjects.")
    ] = None,
    registry: Registry = DEFAULT_REGISTRY,
    deleted: Annotated[bool, Option("--deleted", help="Also those that were deleted softly.")] = False,
    json: Json = False,
) -> None:
    """List the subjects of a registry with their latest schemas, or the versions of one."""
    client = _client(registry)
    if subject is None:
        found = _all_schemas(client, latestOnly=True, deleted=deleted)
    else:
        _known_subject(client, subject, deleted=deleted)
        found = [
            each
            for each in _all_schemas(client, subjectPrefix=subject, deleted=deleted)
            if each["subject"] == subject
        ]
    if json:
        print_json(found)
        return
    if not found:
        note("there are no schemas: `ottla schemas register SUBJECT FILE` registers one")
        return
    print_table(
        ("SUBJECT", "VERSION", "ID", "TYPE", "DELETED"),
        [
            (each["subject"], each["version"], each["id"], _type(each), each.get("deleted") is True)
            for each in found
        ],
    )


def _type(schema: dict[str, Any]) -> str:
    return str(schema.get("schemaType") or "AVRO").lower()


def _all_schemas(client: RegistryClient, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = _call(client, "GET", "/schemas", offset=len(found), limit=_PAGE, **query)
        found += page
        if len(page) < _PAGE:
            return found


@command(app, "show")
def show(
    subject: Subject,
    version: Version = "latest",
    registry: Registry = DEFAULT_REGISTRY,
    text: Annotated[bool, Option("--text", help="Print the schema alone, as for a file.")] = False,
    json: Json = False,
) -> None:
    """Show a version of a subject: its schema, ids, references and settings."""
    client = _client(registry)
    found = _call(client, "GET", f"/subjects{_path(subject)}/versions{_path(version)}")
    if text:
        print_text(found["schema"])
        return
    config = _call(client, "GET", f"/config{_path(subject)}", defaultToGlobal=True)
    mode = _call(client, "GET", f"/mode{_path(subject)}", defaultToGlobal=True)
    level = config.get("compatibilityLevel")
    if json:
        print_json({**found, "compatibility": level, "mode": mode.get("mode")})
        return
    references = found.get("references") or []
    print_pairs(
        [
            ("subject", found["subject"]),
            ("version", found["version"]),
            ("id", found["id"]),
            ("type", _type(found)),
            ("compatibility", level),
            ("mode", mode.get("mode")),
            ("registered", time_text(found["ts"]) if found.get("ts") else None),
            *(("refers to", f"{each['name']} = {each['subject']}:{each['version']}") for each in references),
        ]
    )
    print_line()
    for line in _pretty(found).splitlines():
        print_line(line)


def _pretty(schema: dict[str, Any]) -> str:
    from json import dumps, loads

    text: str = schema["schema"]
    return text if _type(schema) == "protobuf" else dumps(loads(text), indent=2, ensure_ascii=False)


@command(app, "register")
def register(
    subject: Subject,
    file: SchemaFile,
    kind: Kind = None,
    reference: References = None,
    registry: Registry = DEFAULT_REGISTRY,
    normalize: Annotated[
        bool, Option("--normalize", help="Bring the schema into a normal form first.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Register a schema as the next version of a subject. One that is there already keeps its version."""
    client, body = _client(registry), _body(file, kind, reference)
    if dry_run:
        _check(client, subject, body, as_json=json)
        return
    answer = _call(client, "POST", f"/subjects{_path(subject)}/versions", body, normalize=normalize)
    found = _call(client, "POST", f"/subjects{_path(subject)}", body, normalize=normalize)
    if json:
        print_json({"subject": subject, "version": found["version"], "id": answer["id"]})
    else:
        print_line(f"{subject} has it as version {found['version']} with the id {answer['id']}")


@command(app, "check")
def check(
    subject: Subject,
    file: SchemaFile,
    kind: Kind = None,
    reference: References = None,
    registry: Registry = DEFAULT_REGISTRY,
    json: Json = False,
) -> None:
    """Check whether a schema could be registered as the next version of a subject. Exits with 1 if not."""
    _check(_client(registry), subject, _body(file, kind, reference), as_json=json)


def _check(client: RegistryClient, subject: str, body: dict[str, Any], *, as_json: bool) -> None:
    found = _call(client, "POST", f"/compatibility/subjects{_path(subject)}/versions", body, verbose=True)
    messages = found.get("messages") or []
    if as_json:
        print_json(found)
    elif found["is_compatible"]:
        print_line(f"{subject} takes this schema")
    else:
        for each in messages:
            print_line(str(each))
    if not found["is_compatible"]:
        raise CliError(f"{subject} does not take this schema")


@command(app, "delete")
def delete(
    subject: Subject,
    version: Annotated[
        str | None, Option("--version", metavar="NUMBER", help="Only this version; without it, all.")
    ] = None,
    permanent: Annotated[
        bool,
        Option("--permanent", help="Delete it for good: no record with its id can be read then."),
    ] = False,
    registry: Registry = DEFAULT_REGISTRY,
    yes: Yes = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Delete a subject or a version of it: softly, so that its records can be read, or for good."""
    client = _client(registry)
    _known_subject(client, subject, deleted=True)
    path = f"/subjects{_path(subject)}"
    versions = _call(client, "GET", f"{path}/versions", deleted=True)
    active = _call(client, "GET", f"{path}/versions", deletedAsNegative=True, deleted=True)
    going = versions if version is None else [_number(version, versions)]
    shown = f"{subject}, version{'s' if len(going) > 1 else ''} {', '.join(map(str, going))}"
    if dry_run:
        _done({"subject": subject, "versions": going}, f"would delete {shown}", as_json=json)
        return
    confirm(f"Delete {shown}{' for good' if permanent else ''}?", yes=yes)
    if permanent:
        # What is not deleted softly yet has to be, first.
        for each in [number for number in active if number in going]:
            _call(client, "DELETE", f"{path}/versions{_path(each)}")
    if version is None:
        _call(client, "DELETE", path, permanent=permanent)
    else:
        _call(client, "DELETE", f"{path}/versions{_path(going[0])}", permanent=permanent)
    _done({"subject": subject, "versions": going}, f"deleted {shown}", as_json=json)


def _done(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_line(text)


def _number(text: str, versions: list[int]) -> int:
    if text == "latest" and versions:
        return versions[-1]
    if not text.isdigit() or int(text) not in versions:
        raise CliError(f"there is no version {text}: there are {', '.join(map(str, versions))}")
    return int(text)


@command(app, "export")
def export(
    file: Annotated[str, Argument(metavar="FILE", help="Where to write; - is standard output.")] = "-",
    subject: Annotated[
        str | None, Option("--subject", metavar="PREFIX", help="Only subjects that begin with it.")
    ] = None,
    registry: Registry = DEFAULT_REGISTRY,
    json: Json = False,
) -> None:
    """Write all schemas with their ids, versions and settings to a file, for `import`.

    What schemas refer to is in it too.
    """
    from json import dumps

    client = _client(registry)
    everything = _all_schemas(client, deleted=True)
    chosen = _with_references(everything, subject or "")
    configs, modes = {}, {}
    for name in sorted({each["subject"] for each in chosen}):
        found = _setting(client, f"/config{_path(name)}")
        if found is not None:
            configs[name] = found
        mode = _setting(client, f"/mode{_path(name)}")
        if mode is not None:
            modes[name] = mode["mode"]
    document = {
        "format": _FORMAT,
        "version": 1,
        "config": _call(client, "GET", "/config"),
        "configs": configs,
        "modes": modes,
        "schemas": chosen,
    }
    text = dumps(document, indent=1, ensure_ascii=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    Path(file).write_text(text, encoding="utf-8")
    _done({"file": file, "schemas": len(chosen)}, f"{file} has {len(chosen)} schemas", as_json=json)


def _setting(client: RegistryClient, path: str) -> dict[str, Any] | None:
    """A setting of a subject; None if it has none of its own."""
    from ottla.schemas.registry_client import RegistryRequestError

    try:
        found: dict[str, Any] = client.call("GET", path)
    except RegistryRequestError as error:
        if error.status == 404:
            return None
        raise CliError(str(error)) from None
    return found


def _with_references(schemas: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """The schemas of these subjects with all that they refer to, in the order in which they can be
    registered.
    """
    by_version = {(each["subject"], each["version"]): each for each in schemas}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    waiting = [key for key in sorted(by_version, reverse=True) if key[0].startswith(prefix)]
    begun: set[tuple[str, int]] = set()
    while waiting:
        key = waiting[-1]
        needed = [
            (each["subject"], each["version"])
            for each in by_version[key].get("references") or []
            if (each["subject"], each["version"]) in by_version
        ]
        missing = [] if key in begun else [each for each in needed if each not in found]
        begun.add(key)
        if missing:
            waiting += missing
        else:
            found.setdefault(key, by_version[key])
            waiting.pop()
    return list(found.values())


@command(app, "import")
def import_schemas(
    file: Annotated[str, Argument(metavar="FILE", help="What `export` has written; - is standard input.")],
    registry: Registry = DEFAULT_REGISTRY,
    yes: Yes = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Bring the schemas of a file to a registry, with their ids and versions.

    What is there already stays, so that an import which was interrupted goes on. An id that another schema
    has there is an error; before it nothing is changed.
    """
    client = _client(registry)
    document = _document(file)
    schemas: list[dict[str, Any]] = document["schemas"]
    there = {(each["subject"], each["version"]): each for each in _all_schemas(client, deleted=True)}
    ids = {each["id"]: each for each in there.values()}
    new = []
    for each in schemas:
        key = (each["subject"], each["version"])
        known = there.get(key)
        if known is not None and (known["id"], known["schema"]) != (each["id"], each["schema"]):
            raise CliError(f"{key[0]} has another version {key[1]} there, with the id {known['id']}")
        other = ids.get(each["id"])
        if other is not None and other["schema"] != each["schema"] and _context(other) == _context(each):
            raise CliError(
                f"the id {each['id']} of {key[0]}, version {key[1]}, is that of {other['subject']} there"
            )
        if known is None:
            new.append(each)
    subjects = sorted({each["subject"] for each in new} | set(_importing(client, schemas)))
    if dry_run:
        text = f"would import {len(new)} schemas of {len(subjects)} subjects"
        _done({"imported": len(new), "subjects": subjects}, text, as_json=json)
        return
    if new:
        confirm(f"Import {len(new)} schemas of {len(subjects)} subjects?", yes=yes)
    for name in subjects:
        _call(client, "PUT", f"/mode{_path(name)}", {"mode": "IMPORT"}, force=True)
    for each in new:
        names = ("schema", "schemaType", "references", "metadata", "ruleSet", "id", "version")
        body = {name: each[name] for name in names if each.get(name) is not None}
        path = f"/subjects{_path(each['subject'])}/versions"
        _call(client, "POST", path, body)
        if each.get("deleted"):
            _call(client, "DELETE", f"{path}{_path(each['version'])}")
    for name in subjects:
        mode = document.get("modes", {}).get(name)
        if mode is None:
            _call(client, "DELETE", f"/mode{_path(name)}")
        else:
            _call(client, "PUT", f"/mode{_path(name)}", {"mode": mode}, force=True)
        config = document.get("configs", {}).get(name)
        if config is not None:
            level = config.pop("compatibilityLevel", None)
            _call(client, "PUT", f"/config{_path(name)}", {**config, "compatibility": level})
    text = f"imported {len(new)} schemas, {len(schemas) - len(new)} were there"
    _done({"imported": len(new), "subjects": subjects}, text, as_json=json)


def _importing(client: RegistryClient, schemas: list[dict[str, Any]]) -> list[str]:
    """The subjects that an import which was interrupted has left as they are meanwhile."""
    names = {each["subject"] for each in schemas}
    modes = {name: _setting(client, f"/mode{_path(name)}") for name in names}
    return [name for name, found in modes.items() if found is not None and found["mode"] == "IMPORT"]


def _context(schema: dict[str, Any]) -> str:
    subject: str = schema["subject"]
    return subject.split(":")[1] if subject.startswith(":.") else "."


def _document(file: str) -> dict[str, Any]:
    from json import loads

    try:
        document = loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise CliError(f"{file} is no JSON: {error}") from None
    names = ("subject", "version", "id", "schema")
    if (
        not isinstance(document, dict)
        or document.get("format") != _FORMAT
        or not isinstance(document.get("schemas"), list)
        or any(
            not isinstance(each, dict) or any(name not in each for name in names)
            for each in document["schemas"]
        )
    ):
        raise CliError(f"{file} is no file that `ottla schemas export` has written")
    return document
