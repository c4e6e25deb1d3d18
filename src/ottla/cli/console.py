"""`ottla console`: the console beside any cluster, Apache Kafka's too.

On a loopback address it acts as the principal of `--command-config`, for who has the address that it prints:
every user of this machine reaches the port. On any other address it takes TLS, and users log in with their
own credentials.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from ottla.cli.command_config import connect_to
from ottla.cli.commands import Option, command
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.options import DEFAULT_BOOTSTRAP_SERVERS, Bootstrap
from ottla.cli.output import note
from ottla.cli.session import run

if TYPE_CHECKING:
    from ottla.console.config import ConsoleConfig
    from ottla.console.files.inspector import NodeInspector
    from ottla.console.messages.topic_schemas import TopicSchemas
    from ottla.runtime.runtime import Runtime

DEFAULT_LISTEN: Final = "http://127.0.0.1:9645"
_POOL_WORKERS: Final = 4


@command(None, "console")
def app(
    listen: Annotated[
        str, Option("--listen", metavar="URL", help="Where to serve: http://HOST:PORT or https://HOST:PORT.")
    ] = DEFAULT_LISTEN,
    certificate: Annotated[
        str | None, Option("--certificate", metavar="PEM", help="The certificate for https, with its chain.")
    ] = None,
    key: Annotated[str | None, Option("--key", metavar="PEM", help="The key of the certificate.")] = None,
    login: Annotated[
        bool, Option("--login", help="Have users log in by SASL on a loopback address, too.")
    ] = False,
    read_only: Annotated[bool, Option("--read-only", help="Refuse every change of the cluster.")] = False,
    no_payloads: Annotated[bool, Option("--no-payloads", help="Do not show what messages hold.")] = False,
    schemas: Annotated[
        str | None,
        Option("--schemas", metavar="TOML", help="Which schemas the messages of topics have."),
    ] = None,
    registry: Annotated[
        str | None,
        Option("--schema-registry", metavar="URL", help="A registry that answers as Confluent's does."),
    ] = None,
    data_dirs: Annotated[
        list[str] | None,
        Option("--data-dir", metavar="DIR", help="Show the files in a data directory; may be repeated."),
    ] = None,
    pipelines: Annotated[
        list[str] | None,
        Option("--pipeline", metavar="DIR", help="Show a Spark pipeline; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
) -> None:
    """See and manage a cluster in the browser.

    On 127.0.0.1 it acts as the user of --command-config. It prints an address that lets one browser in;
    when it was opened, the next one is printed. Other addresses need https, and every user logs in with
    SASL as one of the cluster's users.
    """
    from ottla.console.server import ConsoleServer, ServerCertificate, serve_until
    from ottla.runtime.runtime import Runtime

    scheme, host, port = _address(listen)
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    if scheme == "https" and (certificate is None or key is None):
        raise WrongUsage(f"--listen {listen}: https needs --certificate and --key")
    if scheme == "http" and not is_loopback:
        raise WrongUsage(
            f"--listen {listen}: other machines reach this address; use https, with --certificate and --key"
        )
    config = _config(
        bootstrap,
        login=login or not is_loopback,
        is_loopback=is_loopback,
        host=host,
        read_only=read_only,
        payloads=not no_payloads,
        schemas=_schemas(schemas),
        registry=_registry(registry),
        pipelines=[_project(each) for each in pipelines or ()],
    )

    async def serve() -> None:
        from ottla.runtime import process

        runtime = Runtime.real(pool_workers=_POOL_WORKERS)
        stop = asyncio.Event()
        undo = process.on_termination(lambda _signal: stop.set())
        try:
            files = None
            if certificate is not None and key is not None:
                files = ServerCertificate(certificate, key)
            server = ConsoleServer(
                runtime,
                config,
                host,
                port,
                certificate=files if scheme == "https" else None,
                make_inspector=lambda own: _inspector(own, data_dirs),
                on_address=_on_address,
            )
            await serve_until(stop, server)
        except ValueError as error:
            raise WrongUsage(str(error)) from None
        except OSError as error:
            raise CliError(
                f"cannot serve {listen}: {error.strerror or error}; --listen chooses another address"
            ) from None
        finally:
            undo()
            runtime.close()

    run(serve(), fast_loop=True)


def _on_address(url: str) -> None:
    note(f"the console is at {url}  (Ctrl-C ends it)")


def _address(listen: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(listen if "://" in listen else f"http://{listen}")
        port = parts.port
    except ValueError:
        port = None
    if port is None or parts.scheme not in ("http", "https") or parts.path not in ("", "/"):
        raise WrongUsage(f"--listen {listen}: expected http://HOST:PORT or https://HOST:PORT")
    return parts.scheme, parts.hostname or "", port


def _config(
    bootstrap: str,
    *,
    login: bool,
    is_loopback: bool,
    host: str,
    read_only: bool,
    payloads: bool,
    schemas: TopicSchemas,
    registry: str | None,
    pipelines: list[Path],
) -> ConsoleConfig:
    from ottla.client.missing_acl import principal_of
    from ottla.client.settings import is_about_security
    from ottla.console.config import ConsoleConfig, LoginMode
    from ottla.console.in_node import LOGIN_MECHANISMS
    from ottla.security.clients.settings import SecuritySettings

    settings = connect_to(bootstrap)
    mechanisms: tuple[str, ...] = ()
    principal = None
    if login:
        if not settings.get("security.protocol", "").upper().startswith("SASL_"):
            raise WrongUsage(
                "users log in with SASL: name the protocol of the brokers in --command-config, as "
                "security.protocol=SASL_SSL"
            )
        named = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper()
        mechanisms = (named,) if named in LOGIN_MECHANISMS else LOGIN_MECHANISMS
    else:
        try:
            security = {name: value for name, value in settings.items() if is_about_security(name)}
            principal = principal_of(SecuritySettings.of(security))
        except ValueError as error:
            raise WrongUsage(str(error)) from None
    return ConsoleConfig(
        settings,
        LoginMode.SASL if login else LoginMode.ADDRESS,
        mechanisms,
        principal,
        loopback_only=is_loopback,
        own_host=host,
        read_only=read_only,
        payloads=payloads,
        schemas=schemas,
        registry_url=registry,
        pipelines=tuple(pipelines),
    )


def _schemas(path: str | None) -> TopicSchemas:
    from ottla.console.messages.topic_schemas import TopicSchemas, load_topic_schemas
    from ottla.schemas.errors import SchemaError

    try:
        return TopicSchemas() if path is None else load_topic_schemas(Path(path))
    except SchemaError as error:
        raise WrongUsage(f"--schemas {error}") from None


def _registry(url: str | None) -> str | None:
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        raise WrongUsage(f"--schema-registry {url}: expected http:// or https://")
    return url


def _project(path: str) -> Path:
    from ottla.spark.pipelines.project import ProjectError, find_project

    try:
        return find_project(Path(path)).spec
    except ProjectError as error:
        raise WrongUsage(f"--pipeline {error}") from None


def _inspector(runtime: Runtime, data_dirs: list[str] | None) -> NodeInspector | None:
    from ottla.console.files.inspector import DataDirectories

    if not data_dirs:
        return None
    for path in data_dirs:
        if not Path(path).is_dir():
            raise WrongUsage(f"--data-dir {path}: there is no such directory")
    return DataDirectories(runtime.disk, [str(Path(path).resolve()) for path in data_dirs])
