"""`ottla start`: run a node until it is stopped.

The options are parsed by hand: there are few, and a parser would take longer than the rest of the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.cli.output import print_line
from ottla.runtime.clock import SystemClock

if TYPE_CHECKING:
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.node import Node

HELP: Final = """\
Usage: ottla start [server.properties] [options]

Start a node. Without a file it is a cluster by itself: broker and controller, on 127.0.0.1:9092,
with its data in ./ottla-data, and the first members of a group wait for no others
(group.initial.rebalance.delay.ms=0). An empty data directory is formatted at the first start. SIGTERM
or Ctrl-C stops it. The console, health and metrics are at http://127.0.0.1:9644, if that is free
(http.listener).

Options:
  --data-dir DIR       the data directory (log.dirs)
  --listen HOST:PORT   where clients connect; port 0 picks a free one (listeners)
  --set NAME=VALUE     any setting of server.properties, overrides the file; may be repeated
  --log-level LEVEL    debug, info, warning (default) or error
  --help               this text
"""
DEFAULT_DATA_DIR: Final = "ottla-data"
_JOINS_A_QUORUM: Final = (
    *("controller.quorum.voters", "controller.quorum.bootstrap.servers", "metadata.store", "process.roles"),
)
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
_LOG_LEVELS: Final = ("debug", "info", "warning", "warn", "error")


class UsageError(Exception):
    """Invalid options; the text says which and why."""


@dataclass(slots=True)
class Options:
    file: str | None = None
    data_dir: str | None = None
    listen: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    log_level: str = "warning"
    help: bool = False


def parse(arguments: Sequence[str]) -> Options:
    options = Options()
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("-"):
            if options.file is not None:
                raise UsageError(f"two files were given, {options.file} and {argument}")
            options.file = argument
            continue
        name, equals, value = argument.partition("=")
        if name in ("--help", "-h"):
            options.help = True
            continue
        if name not in ("--data-dir", "--listen", "--set", "--log-level"):
            raise UsageError(f"there is no option {name}; `ottla start --help` lists them")
        if not equals:
            if not remaining:
                raise UsageError(f"{name} needs a value")
            value = remaining.pop(0)
        _set_option(options, name, value)
    return options


def _set_option(options: Options, name: str, value: str) -> None:
    if name == "--data-dir":
        options.data_dir = value
    elif name == "--listen":
        host, colon, port = value.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise UsageError(f"--listen {value}: expected HOST:PORT, as 127.0.0.1:9092")
        options.listen = f"{host}:{port}"
    elif name == "--set":
        key, equals, setting = value.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {value}: expected NAME=VALUE")
        options.settings[key.strip()] = setting.strip()
    elif value.lower() not in _LOG_LEVELS:
        raise UsageError(f"--log-level {value}: allowed are {', '.join(_LOG_LEVELS)}")
    else:
        options.log_level = value.lower()


def settings_of(options: Options) -> dict[str, str]:
    """The settings of the file, overridden by those of the options."""
    from ottla.runtime.properties import parse_properties

    settings: dict[str, str] = {}
    if options.file is not None:
        try:
            with open(options.file, "rb") as file:
                settings = parse_properties(_decode(file.read()))
        except OSError as error:
            raise UsageError(f"cannot read {options.file}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{options.file}, {error}") from None
    if options.data_dir is not None:
        settings["log.dirs"] = options.data_dir
    if options.listen is not None:
        settings["listeners"] = _with_listener(settings, options.listen)
        settings.pop("advertised.listeners", None)
    settings.update(options.settings)
    if options.file is None and not any(name in settings for name in _JOINS_A_QUORUM):
        settings.setdefault("group.initial.rebalance.delay.ms", "0")
    if "log.dirs" not in settings and "log.dir" not in settings:
        settings["log.dirs"] = DEFAULT_DATA_DIR
    # Absolute paths do not depend on the working directory.
    for name in ("log.dirs", "log.dir", "metadata.log.dir"):
        if name in settings:
            paths = [path.strip() for path in settings[name].split(",") if path.strip()]
            settings[name] = ",".join(map(os.path.abspath, paths))
    return settings


def _decode(data: bytes) -> str:
    """The text of a properties file: UTF-8, or Latin-1 as Java reads it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _with_listener(settings: dict[str, str], address: str) -> str:
    """The listeners, with this one for clients; those of the controller are kept."""
    controller = {name.strip() for name in settings.get("controller.listener.names", "CONTROLLER").split(",")}
    kept = [
        entry.strip()
        for entry in settings.get("listeners", "").split(",")
        if entry.strip().partition("://")[0] in controller
    ]
    return ",".join([f"PLAINTEXT://{address}", *kept])


def start(arguments: Sequence[str]) -> int:
    """Run a node with these arguments; its exit status."""
    began_ns = SystemClock().monotonic_ns()
    try:
        options = parse(arguments)
        if options.help:
            sys.stdout.write(HELP)
            return 0
        settings = settings_of(options)
        problem = unknown_problem(options.settings, with_zookeeper="metadata.store" in settings)
        if problem is not None:
            raise UsageError(f"--set: {problem}")
    except UsageError as error:
        return _fail(str(error), status=2)
    return serve(settings, options.log_level, lambda node, addresses: announce(node, addresses, began_ns))


def unknown_problem(settings: Mapping[str, str], *, with_zookeeper: bool = False) -> str | None:
    """What is wrong with the name of a setting that was typed; None if all of them exist. A file may have
    unknown ones: those of other versions, of Java, of other programs.
    """
    from ottla.node.config.definitions.zookeeper import METADATA_STORE
    from ottla.node.config.node_config import unknown_names

    lines = unknown_names([*settings, *([METADATA_STORE] if with_zookeeper else [])])
    return lines[0].replace("it is ignored", "docs/compatibility.md lists the settings") if lines else None


def serve(settings: dict[str, str], log_level: str, ready: Callable[[Node, str], None]) -> int:
    """Run a node with these settings; its exit status. `ready` is called with its addresses."""
    from ottla.runtime.process import write_stacks_on_request

    write_stacks_on_request()  # before anything that may never end

    import logging

    from ottla.console.extension import ConsoleExtension
    from ottla.node.config.definitions.config_def import ConfigError
    from ottla.node.config.loggers import configure_logging
    from ottla.node.config.node_config import NodeConfig, unknown_names
    from ottla.node.run import NodeFailed, run_node

    configure_logging(log_level)
    log = logging.getLogger("ottla.node.config.node_config")
    for line in unknown_names(settings):
        log.warning(line)
    try:
        config = NodeConfig(settings)
        for remark in _remarks(config, address_is_chosen="listeners" in settings):
            log.warning(remark)
        run_node(
            config,
            ready=ready,
            report=lambda status: print_line(f"ottla status: {status.to_json()}", flush=True),
            extensions=(ConsoleExtension,),
        )
    except ConfigError as error:
        return _fail(str(error))
    except NodeFailed as failure:
        return _fail(str(failure))
    return 0


def _remarks(config: NodeConfig, *, address_is_chosen: bool) -> Iterator[str]:
    """What a first start stumbles over and is no error."""
    from ottla.cli.surroundings import container, directory_remarks

    for problem, advice in directory_remarks(config.log_dirs):
        yield f"{problem}: {advice}"
    around = "" if address_is_chosen else container()
    if around and config.is_broker and all(at.host in _LOOPBACK for at in config.listeners):
        yield (
            f"this is a container ({around}), and the node listens at {config.listeners[0].host}, where only "
            "what runs inside of it can connect: add --listen 0.0.0.0:9092 --set "
            "advertised.listeners=PLAINTEXT://HOST:9092, with the name by which clients reach it"
        )


def announce(node: Node, addresses: str, began_ns: int) -> None:
    from ottla import __version__

    took_ms = (SystemClock().monotonic_ns() - began_ns) // 1_000_000
    dirs = ", ".join(node.data_directories())
    http = "" if node.shared.http.url is None else f", {node.shared.http.url}"
    if node.shared.http.taken is not None:
        http = f", no HTTP: {node.shared.http.taken} is taken"
    print_line(f"ottla {__version__} is ready: {addresses}, data in {dirs}, {took_ms} ms{http}", flush=True)


def _fail(problem: str, *, status: int = 1) -> int:
    print_line(f"ottla: {problem}", file=sys.stderr)
    return status
