"""What a container of Ottla runs: a node by the environment variables of Apache Kafka's image.

    python -m ottla.cli.container [NAME=VALUE ...]

`KAFKA_LOG_RETENTION_MS` is `log.retention.ms`: `_` stands for a dot, `__` for an underscore, `___` for a
dash. Variables win over `server.properties` in the directory for shared files, and arguments over variables.
Key stores and the files with their passwords are named without their directory, that for secrets. The file
with logins that `KAFKA_OPTS` names for Java is read too.

Once the node serves, it also prints the lines of a starting Kafka that test suites wait for.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.cli.output import print_line
from ottla.cli.start import announce, serve
from ottla.runtime.clock import SystemClock
from ottla.runtime.properties import parse_properties

if TYPE_CHECKING:
    from ottla.node.node import Node

DATA: Final = "/var/lib/kafka/data"
PORT: Final = 9092
# That of Apache Kafka's image, so that nodes of a cluster without a variable agree.
CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
_MEANINGS: Final = {1: ".", 2: "_", 3: "-"}
# Variables of Java, of Kafka's scripts, and those that Kubernetes sets for a service of the name `kafka`.
_NO_SETTINGS: Final = re.compile(
    r"KAFKA_(VERSION|HEAP_OPTS|OPTS|LOG4J_OPTS|JMX_OPTS|JMX_PORT|JMX_HOSTNAME|JVM_PERFORMANCE_OPTS|GC_LOG_OPTS"
    r"|LOG4J_ROOT_LOGLEVEL|LOG4J_LOGGERS|TOOLS_LOG4J_LOGLEVEL|SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+"
    r"|SSL_(KEYSTORE|TRUSTSTORE)_(FILENAME|CREDENTIALS)|SSL_KEY_CREDENTIALS)"
)
_LOG_LEVELS: Final = {"TRACE": "debug", "DEBUG": "debug", "INFO": "info", "WARN": "warning"}
_STORES: Final = {
    "KAFKA_SSL_KEYSTORE_FILENAME": "ssl.keystore.location",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "ssl.truststore.location",
}
_PASSWORDS: Final = {
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": "ssl.keystore.password",
    "KAFKA_SSL_KEY_CREDENTIALS": "ssl.key.password",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "ssl.truststore.password",
}
_MECHANISMS: Final = {
    "PlainLoginModule": ("plain",),
    "ScramLoginModule": ("scram-sha-256", "scram-sha-512"),
    "OAuthBearerLoginModule": ("oauthbearer",),
    "Krb5LoginModule": ("gssapi",),
}
_LOGIN_FILE: Final = re.compile(r"-Djava\.security\.auth\.login\.config=(?:file:)?(\S+)")
_SERVER_SECTION: Final = re.compile(r"(?:^|[\s.])KafkaServer\s*\{(.*?)\}\s*;", re.DOTALL)
_LOGIN_ENTRY: Final = re.compile(r'[^;"]*(?:"(?:\\.|[^"\\])*"[^;"]*)*;')


class ContainerError(Exception):
    """The variables do not make a node; the text says which, and what to set."""


@dataclass(frozen=True, slots=True)
class Directories:
    """Where files are mounted."""

    shared: Path = Path("/mnt/shared/config")
    secrets: Path = Path("/etc/kafka/secrets")


def settings_of(variables: Mapping[str, str], directories: Directories) -> dict[str, str]:
    """The settings of the node."""
    settings = _shared_settings(directories.shared)
    settings |= dict(_named_settings(variables))
    settings |= dict(_secret_settings(variables, directories.secrets))
    for name, value in _logins(variables):
        settings.setdefault(name, value)
    _complete_listeners(settings)
    if "log.dirs" not in settings and "log.dir" not in settings:
        settings["log.dirs"] = DATA
    if variables.get("CLUSTER_ID"):
        settings.setdefault("cluster.id", variables["CLUSTER_ID"])
    elif not _is_formatted(settings):
        settings.setdefault("cluster.id", CLUSTER_ID)
    return settings


def _is_formatted(settings: Mapping[str, str]) -> bool:
    """Whether a data directory already says to which cluster it belongs."""
    paths = (settings.get("log.dirs") or settings.get("log.dir") or "").split(",")
    return any((Path(path.strip()) / "meta.properties").exists() for path in paths if path.strip())


def setting_name(variable: str) -> str:
    """The setting that a variable means: `KAFKA_ABC_DEF` is `abc.def`, `KAFKA_ABC__DEF` `abc_def`."""

    def meaning(underscores: re.Match[str]) -> str:
        text = _MEANINGS.get(len(underscores[0]))
        if text is None:
            raise ContainerError(f"{variable}: more than three underscores in a row have no meaning")
        return text

    return re.sub("_+", meaning, variable.removeprefix("KAFKA_")).lower()


def _shared_settings(directory: Path) -> dict[str, str]:
    file = directory / "server.properties"
    try:
        return parse_properties(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ContainerError(f"cannot read {file}: {error}") from None


def _named_settings(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable, value in variables.items():
        if variable.startswith("KAFKA_") and not _NO_SETTINGS.fullmatch(variable):
            yield setting_name(variable), value


def _secret_settings(variables: Mapping[str, str], directory: Path) -> Iterator[tuple[str, str]]:
    for variable, name in _STORES.items():
        if variables.get(variable):
            yield name, str(_secret(variable, directory / variables[variable]))
    for variable, name in _PASSWORDS.items():
        if variables.get(variable):
            yield name, _read(variable, directory / variables[variable]).strip()


def _secret(variable: str, path: Path) -> Path:
    if not path.is_file():
        raise ContainerError(
            f"{variable}: there is no file {path}; mount it, or set the variable to its name"
        )
    return path


def _read(variable: str, path: Path) -> str:
    try:
        return _secret(variable, path).read_text()
    except OSError as error:
        raise ContainerError(f"{variable}: cannot read {path}: {error.strerror}") from None


def _logins(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The entries of the section `KafkaServer` in Java's file of logins, as settings."""
    found = _LOGIN_FILE.search(variables.get("KAFKA_OPTS", ""))
    if found is None:
        return
    text = _read("KAFKA_OPTS", Path(found[1]))
    section = _SERVER_SECTION.search(text)
    if section is None:
        raise ContainerError(f"KAFKA_OPTS: there is no section KafkaServer in {found[1]}")
    for entry in _LOGIN_ENTRY.findall(section[1]):
        module = entry.split()[0].rpartition(".")[2]
        if module not in _MECHANISMS:
            raise ContainerError(f"KAFKA_OPTS: the login module {module} in {found[1]} is not known here")
        for mechanism in _MECHANISMS[module]:
            yield f"{mechanism}.sasl.jaas.config", " ".join(entry.split())


def _complete_listeners(settings: dict[str, str]) -> None:
    """Listen on all addresses of the container for what is advertised; without either, for this machine."""
    advertised = settings.get("advertised.listeners", "")
    if settings.get("process.roles") == "controller":
        if advertised:
            raise ContainerError(
                "KAFKA_ADVERTISED_LISTENERS is not supported on a KRaft controller; leave it out"
            )
        settings.pop("advertised.listeners", None)
    elif not settings.get("listeners"):
        if not advertised:
            advertised = settings["advertised.listeners"] = f"PLAINTEXT://localhost:{PORT}"
        settings["listeners"] = re.sub(r"://[^,]*:(\d+)", r"://0.0.0.0:\1", advertised)


def main(arguments: Sequence[str]) -> int:
    began_ns = SystemClock().monotonic_ns()
    variables = dict(os.environ)
    try:
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if not equals:
                raise ContainerError(f"{argument}: expected NAME=VALUE, as KAFKA_NODE_ID=1")
            variables[name] = value
        settings = settings_of(variables, Directories())
    except ContainerError as error:
        print_line(f"ottla: {error}", file=sys.stderr)
        return 2
    level = _LOG_LEVELS.get(variables.get("KAFKA_LOG4J_ROOT_LOGLEVEL", "WARN").upper(), "error")

    def ready(node: Node, addresses: str) -> None:
        announce(node, addresses, began_ns)
        for line in kafka_lines(node.config.node_id, is_broker=node.config.is_broker):
            print_line(line, flush=True)

    return serve(settings, level, ready)


def kafka_lines(node_id: int, *, is_broker: bool) -> Iterator[str]:
    """What Kafka's log says once a node serves, for those who wait for it, as Testcontainers do."""
    if is_broker:
        yield f"[BrokerLifecycleManager id={node_id}] Transitioning from RECOVERY to RUNNING."
        yield f"[KafkaServer id={node_id}] started"
    yield f"[KafkaRaftServer nodeId={node_id}] Kafka Server started"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
