"""Look at the configuration of a node, its data directories and its listeners, as `ottla start` would.

Nothing is changed: directories are not made, locked or formatted, and a port is free again at once.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ottla.cli.diagnosis import Diagnosis, doubtful, fine, wrong
from ottla.cli.surroundings import container, directory_remarks, durability_remarks, existing_parent
from ottla.runtime.disk import RealDisk

if TYPE_CHECKING:
    from ottla.node.config.listeners import Endpoint
    from ottla.node.config.node_config import NodeConfig

_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
_LOCK: Final = ".lock"
_IGNORED: Final = frozenset((_LOCK, "lost+found", ".DS_Store"))
_SOON_DAYS: Final = 30


def check_settings(settings: Mapping[str, str], source: str) -> tuple[NodeConfig | None, list[Diagnosis]]:
    """The configuration that the settings make, if they make one, and what is wrong with them."""
    from ottla.node.config.definitions.config_def import ConfigError
    from ottla.node.config.node_config import NodeConfig, unknown_names

    found = [
        doubtful(source, line, "correct the name, or remove the line") for line in unknown_names(settings)
    ]
    try:
        config = NodeConfig(settings)
    except ConfigError as error:
        return None, [
            *found,
            wrong(source, str(error), f"correct it in {source}; docs/compatibility.md has each setting"),
        ]
    found += _check_alone(config, source)
    return config, found or [fine(source, f"{len(settings)} settings")]


def _check_alone(config: NodeConfig, source: str) -> Iterator[Diagnosis]:
    from ottla.node.config.rules import voter_ids

    needed = config.number("offsets.topic.replication.factor")
    if needed > 1 and voter_ids(config) == {config.node_id} and config.is_broker:
        yield doubtful(
            source,
            f"this node is the only one of its quorum, and __consumer_offsets needs {needed} brokers: "
            "without as many, "
            "consumer groups do not work",
            "for a node alone, set offsets.topic.replication.factor=1, "
            "transaction.state.log.replication.factor=1 and transaction.state.log.min.isr=1",
        )
    default, least = config.number("default.replication.factor"), config.number("min.insync.replicas")
    if least > default > 1:
        yield doubtful(
            source,
            f"min.insync.replicas={least} and default.replication.factor={default}: topics with the "
            "default take no "
            "records with acks=all",
            f"set min.insync.replicas={default - 1}, or default.replication.factor={least + 1}",
        )


# Directories


def check_directories(config: NodeConfig) -> tuple[int | None, list[Diagnosis]]:
    """The process that has the directories locked, if one does, and what is wrong with them."""
    from ottla.log.directory.meta_properties import (
        StorageError,
        check_metadata_store,
        check_not_of_zookeeper,
        load_directories,
    )

    disk, dirs = RealDisk(), list(dict.fromkeys((config.metadata_log_dir, *config.log_dirs)))
    found: list[Diagnosis] = []
    holder: int | None = None
    for path in dirs:
        problem = _unusable(path)
        if problem is not None:
            found.append(wrong(path, *problem))
            continue
        holder = holder or _locked_by(disk, path)
        found += _check_contents(disk, path)
    found += [doubtful("data", *remark) for remark in directory_remarks(dirs)]
    if config.text("log.durability") == "disk":
        found += [doubtful("durability", *remark) for remark in durability_remarks(config.log_dirs)]
    if any(each.subject in dirs and each.severity == "wrong" for each in found):
        return holder, found
    try:
        check_not_of_zookeeper(disk, dirs)
        check_metadata_store(disk, dirs, zookeeper=config.uses_zookeeper)
        existing = [path for path in dirs if disk.is_dir(path)]
        load_directories(
            disk,
            existing,
            node_id=config.node_id if config.is_set("node.id") else None,
            cluster_id=config.text("cluster.id") if config.is_set("cluster.id") else None,
        )
    except StorageError as error:
        found.append(wrong("data", str(error), "`ottla storage info DIR` shows whose a directory is"))
    except OSError as error:
        found.append(
            wrong("data", f"cannot read {error.filename}: {error.strerror}", "see its rights and its disk")
        )
    return holder, found or [fine("data", ", ".join(dirs))]


def _unusable(path: str) -> tuple[str, str] | None:
    """Why a node cannot have its data there, and what to do; None if it can."""
    parent = existing_parent(path)
    what = path if parent == os.path.abspath(path) else parent
    if not os.path.isdir(what):
        return f"{what} is a file, not a directory", "choose another directory with --data-dir (log.dirs)"
    try:
        is_read_only = bool(os.statvfs(what).f_flag & os.ST_RDONLY)
    except OSError as error:
        return f"cannot look at {what}: {error.strerror}", "see whether the disk works and is mounted"
    if is_read_only:
        return (
            f"the file system of {what} is read-only",
            "`mount -o remount,rw` it, after a look at `dmesg`; or choose another directory with --data-dir",
        )
    if not os.access(what, os.W_OK | os.X_OK | os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        return (
            f"no permission to write to {what}",
            f"`sudo chown -R {_user()} {what}`, or choose another directory with --data-dir",
        )
    return None


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _locked_by(disk: RealDisk, path: str) -> int | None:
    try:
        return disk.locked_by(os.path.join(path, _LOCK))
    except OSError:
        return None


def _check_contents(disk: RealDisk, path: str) -> Iterator[Diagnosis]:
    if not disk.is_dir(path):
        return
    names = [name for name in disk.list_dir(path) if name not in _IGNORED]
    if (
        names
        and "meta.properties" not in names
        and not any(n.startswith("bootstrap.checkpoint") for n in names)
    ):
        yield wrong(
            path,
            f"it is not empty (it has {names[0]!r}) and not the data directory of a node: it has no "
            "meta.properties",
            "choose another directory with --data-dir; if it was one, restore meta.properties from a copy",
        )
    elif names and not disk.is_private(path):
        yield doubtful(
            path,
            "every user of this machine may read the data, with the keys of SCRAM users",
            f"`chmod -R go-rwx {path}`",
        )


# Listeners


def check_listeners(
    config: NodeConfig, holder: int | None, cluster_at: Callable[[str], str | None]
) -> tuple[str | None, list[Diagnosis]]:
    """The address of a node that runs and can be asked, if one does, and what is wrong with the listeners.

    `holder` is the process that runs with this configuration, and has its ports. `cluster_at` asks an address
    of which cluster it is.
    """
    found: list[Diagnosis] = []
    asked = addresses_of(config)
    running = next(iter(asked.values()), None) if holder is not None else None
    for endpoint in config.listeners if holder is None else ():
        problem = None if endpoint.port == 0 else port_problem(endpoint)
        if problem is None:
            continue
        address = asked.get(endpoint.name) if problem.is_taken else None
        cluster = cluster_at(address) if address is not None else None
        if cluster is None:
            found.append(wrong("listeners", problem.text, problem.advice))
            continue
        running = running or address
        found.append(
            doubtful(
                "listeners",
                f"{address} is of a node that runs with other data, those of cluster {cluster}; another one "
                f"with {', '.join(config.log_dirs)} would not start beside it",
                f"nothing to do if that node is meant; for a second one {_other_port(endpoint)}",
            )
        )
    if not found:
        seen = ", ".join(map(str, config.listeners))
        found.append(
            fine("listeners", seen if holder is None else f"{seen}, of a node that runs as process {holder}")
        )
    return running, [*found, *_check_advertised(config), *_check_voters(config)]


@dataclass(frozen=True, slots=True)
class PortProblem:
    """Why a node cannot listen at an address, and what to do. `is_taken` if another process does."""

    text: str
    advice: str
    is_taken: bool = False


def port_problem(endpoint: Endpoint) -> PortProblem | None:
    """Why a node cannot listen there; None if it can."""
    host, port = endpoint.host, endpoint.port
    try:
        places = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return PortProblem(
            f"the name {host} cannot be resolved: {error.strerror}",
            "set listeners to an address of this machine, or to 0.0.0.0 for all of them",
        )
    family, kind, protocol, _, address = places[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return _bind_problem(error, endpoint)
    return None


def _bind_problem(error: OSError, endpoint: Endpoint) -> PortProblem:
    host, port = endpoint.host or "*", endpoint.port
    if error.errno == errno.EADDRINUSE:
        return PortProblem(
            f"{host}:{port} is in use by another process",
            f"`ss -ltnp 'sport = :{port}'` shows which; stop it, or choose another port: "
            f"{_other_port(endpoint)}",
            is_taken=True,
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return PortProblem(
            f"{host} is not an address of this machine",
            f"listeners={replace(endpoint, host='0.0.0.0')}, and advertised.listeners={endpoint}; "
            "`ip address` shows the addresses",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return PortProblem(
            f"no permission to listen on port {port}: those below 1024 are for privileged processes",
            f"choose a port from 1024 on: {_at_port(endpoint, 9092)}",
        )
    return PortProblem(
        f"cannot listen on {host}:{port}: {error.strerror}", "choose another address in listeners"
    )


def _other_port(endpoint: Endpoint) -> str:
    return _at_port(endpoint, endpoint.port + 10 if endpoint.port < 65_000 else endpoint.port - 10)


def _at_port(endpoint: Endpoint, port: int) -> str:
    """What to give for this listener at another port. `--listen` is the plain one's."""
    at = replace(endpoint, port=port)
    return f"--listen {str(at).partition('://')[2]}" if at.name == "PLAINTEXT" else f"listeners={at}"


def _check_advertised(config: NodeConfig) -> Iterator[Diagnosis]:
    if not config.is_broker:
        return
    around = container()
    if around and all(each.host in _LOOPBACK for each in config.advertised_listeners):
        yield doubtful(
            "advertised.listeners",
            f"this is a container ({around}), and only what runs inside of it can connect to "
            f"{config.advertised_listeners[0]}",
            f"listeners={_open_to_all(config)}, and advertised.listeners with the name by which "
            "clients reach it",
        )
    if not config.is_set("advertised.listeners"):
        return
    listened = {each.name: each for each in config.listeners}
    for each in config.advertised_listeners:
        own = listened.get(each.name)
        if each.host in _LOOPBACK and own is not None and own.wildcard and not config.alone:
            yield doubtful(
                "advertised.listeners",
                f"{each} sends clients on other machines to themselves",
                "set it to the name or address of this machine that clients reach",
            )
        elif (problem := _unresolved(each)) is not None:
            yield problem


def _open_to_all(config: NodeConfig) -> str:
    return ",".join(
        str(each if each.name in config.controller_listener_names else replace(each, host="0.0.0.0"))
        for each in config.listeners
    )


def _unresolved(endpoint: Endpoint) -> Diagnosis | None:
    try:
        socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return doubtful(
            "advertised.listeners",
            f"the name {endpoint.host} cannot be resolved here: {error.strerror}",
            f"clients must know it: an entry in DNS or /etc/hosts, or an address instead of {endpoint.host}",
        )
    return None


def _check_voters(config: NodeConfig) -> Iterator[Diagnosis]:
    for name in ("controller.quorum.voters", "controller.quorum.bootstrap.servers"):
        for entry in config.names(name):
            host = entry.rpartition("@")[2].rpartition(":")[0].strip("[]")
            try:
                socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError as error:
                yield wrong(
                    name,
                    f"the name {host} of {entry} cannot be resolved: {error.strerror}",
                    "correct it, or add it to DNS or /etc/hosts: without a majority of controllers no "
                    "node gets ready",
                )


# TLS


def check_tls(config: NodeConfig) -> Iterator[Diagnosis]:
    from ottla.node.network.node_security import listener_tls_settings
    from ottla.security.tls.errors import TlsError
    from ottla.security.tls.expiry import describe
    from ottla.security.tls.material import load_identity, load_trusted

    for endpoint in config.listeners:
        if not endpoint.protocol.tls:
            continue
        where = f"TLS of {endpoint.name}"
        try:
            settings = listener_tls_settings(config, endpoint.name, endpoint.protocol)
            identity = load_identity(RealDisk(), settings.keystore)
            load_trusted(RealDisk(), settings.truststore)
        except (TlsError, OSError) as error:
            yield wrong(where, str(error), "`ottla secure init` makes a CA, keys and the settings of a node")
            continue
        if identity is None:
            yield wrong(
                where,
                "there is no certificate: ssl.keystore.location is not set",
                "`ottla secure init` makes a CA, keys and the settings of a node",
            )
            continue
        facts = describe(identity.certificate)
        left = int((facts.ends_ms / 1000 - time.time()) // 86_400)
        renew = "`ottla secure issue NAME --host HOST --replace` renews it; the node takes it as it runs"
        if left < 0:
            yield wrong(where, f"the certificate of {facts.subject} has expired on {facts.end_text}", renew)
        elif left < _SOON_DAYS:
            yield doubtful(where, f"the certificate of {facts.subject} expires on {facts.end_text}", renew)
        else:
            yield fine(where, f"the certificate of {facts.subject} is valid until {facts.end_text}")


def addresses_of(config: NodeConfig) -> dict[str, str]:
    """Where clients of this machine connect without TLS or a login, by the name of the listener."""
    return {
        each.name: str(replace(each, host="127.0.0.1") if each.wildcard else each).partition("://")[2]
        for each in config.listeners
        if each.port != 0
        and each.name not in config.controller_listener_names
        and not (each.protocol.tls or each.protocol.sasl)
    }
