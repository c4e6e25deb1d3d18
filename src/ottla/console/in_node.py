"""Make the console of a node from the settings of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.console.config import ConsoleConfig
    from ottla.console.console import Console
    from ottla.node.server.broker_server import BrokerServer
    from ottla.node.server.shared_server import SharedServer
    from ottla.runtime.http_server import HttpMount
    from ottla.runtime.runtime import Runtime


# What a user can type in; the strongest first.
LOGIN_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_TRUST: Final = (
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    "ssl.truststore.certificates",
)


async def load_console(broker: BrokerServer) -> HttpMount:
    """The console of a node that serves. HttpProblem if it does not, or its settings cannot be used."""
    # Some hundred modules: the node's loop has other things to do meanwhile.
    await broker.shared.runtime.pool.run(_import_console)
    from ottla.console.console import Console
    from ottla.console.host import mount_in_thread
    from ottla.console.node_inspector import RunningNodeInspector
    from ottla.runtime.http_server import HttpProblem
    from ottla.schemas.errors import SchemaError

    if not broker.shared.state.is_serving:
        raise HttpProblem(503, "The node is starting; the console comes with it.")
    try:
        config = console_config(broker.shared)
    except SchemaError as error:
        raise HttpProblem(500, f"http.console.schemas: {error}") from None
    inspector = RunningNodeInspector(broker.shared, broker)

    def make(runtime: Runtime) -> Console:
        return Console(runtime, config, inspector)

    return await mount_in_thread(make)


def _import_console() -> None:
    from ottla.console import host, node_inspector  # noqa: F401
    from ottla.console.console import api_routes

    api_routes()


def console_config(shared: SharedServer) -> ConsoleConfig:
    """How a console in a node reaches the cluster: through a listener of the node that needs no login, where
    only this machine reaches the console; otherwise through one with SASL, as the users that log in.
    """
    from pathlib import Path

    from ottla.console.config import ConsoleConfig, LoginMode
    from ottla.console.messages.topic_schemas import TopicSchemas, load_topic_schemas
    from ottla.runtime.address import Address
    from ottla.runtime.http_server import HttpProblem

    http, config = shared.http.endpoint, shared.config
    assert http is not None
    endpoints = shared.endpoints.for_clients()
    open_ones = [each for each in endpoints if not each.protocol.tls and not each.protocol.sasl]
    secured = [each for each in endpoints if each.protocol.sasl]
    mechanisms: tuple[str, ...] = ()
    if http.is_loopback and open_ones:
        chosen, login = open_ones[0], LoginMode.NONE
    elif secured:
        chosen, login = secured[0], LoginMode.SASL
        enabled = config.with_listener_prefix(chosen.name, "sasl.enabled.mechanisms")
        names = enabled if isinstance(enabled, tuple) else str(enabled).split(",")
        mechanisms = tuple(each for each in LOGIN_MECHANISMS if each in {str(name).strip() for name in names})
    else:
        raise HttpProblem(
            503,
            "The console acts as a user of the cluster: that takes a listener with SASL, or, on a loopback "
            "address, one without TLS. This node has neither; use `ottla console --command-config`.",
        )
    if login is LoginMode.SASL and not mechanisms:
        raise HttpProblem(
            503, f"The console logs in by {', '.join(LOGIN_MECHANISMS)}; listener {chosen.name} has none."
        )
    host = "127.0.0.1" if chosen.wildcard else chosen.host
    settings = {"bootstrap.servers": str(Address(host, chosen.port))}
    if login is LoginMode.SASL:
        settings["security.protocol"] = chosen.protocol.name
    if chosen.protocol.tls:
        for name in _TRUST:
            value = config.with_listener_prefix(chosen.name, name)
            if value:
                settings[name] = str(value)
        # It is this machine's own certificate, whatever name it is for.
        settings["ssl.endpoint.identification.algorithm"] = ""
    schemas = config.text("http.console.schemas")
    return ConsoleConfig(
        settings,
        login,
        mechanisms,
        "User:ANONYMOUS" if login is LoginMode.NONE else None,
        loopback_only=http.is_loopback,
        own_host=http.host,
        read_only=config.flag("http.console.read.only"),
        payloads=config.flag("http.console.payloads"),
        schemas=load_topic_schemas(Path(schemas)) if schemas else TopicSchemas(),
        pipelines=tuple(_spec(path) for path in config.names("http.console.pipelines")),
        own_registry_url=_own_registry(shared),
    )


def _own_registry(shared: SharedServer) -> str | None:
    """The node's schema registry, where it is open to all of this machine, as the console is."""
    from ottla.runtime.address import Address

    http = shared.http.endpoint
    if http is None or not http.is_loopback or http.protocol.tls:
        return None
    if not shared.config.flag("schema.registry.enable"):
        return None
    return f"http://{Address(http.host, http.port)}/schema-registry"


def _spec(path: str) -> Path:
    """The specification of a pipeline by its file or its directory; that it is missing is shown later."""
    from pathlib import Path

    from ottla.spark.pipelines.project import SPEC_NAMES, ProjectError, find_project

    try:
        return find_project(Path(path)).spec
    except ProjectError:
        return Path(path) / SPEC_NAMES[0]
